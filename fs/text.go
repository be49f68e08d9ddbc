package fs

import (
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// texts are the open status files: each shows its content at the open.
type texts struct {
	bytes *shares

	mu     sync.Mutex // guards the fields below
	next   uint64
	byOpen map[uint64]text
}

type text struct {
	uid     uint32
	content []byte
}

// textBytes bounds what all open texts take.
const textBytes = 64 << 20

func (t *texts) init() {
	t.next, t.byOpen, t.bytes = firstText, map[uint64]text{}, newShares(textBytes, textBytes/2, 0)
}

// open keeps a text for a user until it is closed, and reports whether there was room.
func (t *texts) open(uid uint32, content []byte) (handle uint64, ok bool) {
	if !t.bytes.reserve(uid, int64(len(content))) {
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	handle = t.next
	t.next++
	t.byOpen[handle] = text{uid, content}
	return handle, true
}

func (t *texts) close(handle uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	closed := t.byOpen[handle]
	t.bytes.book(closed.uid, -int64(len(closed.content)))
	delete(t.byOpen, handle)
}

func (t *texts) read(handle uint64, off int64, n int) fuse.ReadResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	content := t.byOpen[handle].content
	content = content[min(off, int64(len(content))):]
	return copied(content[:min(n, len(content))])
}
