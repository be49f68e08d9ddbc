package fs

import (
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// texts are the open status files: each shows what it was when it was opened.
type texts struct {
	mu     sync.Mutex
	next   uint64
	byOpen map[uint64][]byte
}

func (t *texts) init() { t.next, t.byOpen = firstText, map[uint64][]byte{} }

func (t *texts) open(content []byte) (handle uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	handle = t.next
	t.next++
	t.byOpen[handle] = content
	return handle
}

func (t *texts) close(handle uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byOpen, handle)
}

func (t *texts) read(handle uint64, off int64, n int) fuse.ReadResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	content := t.byOpen[handle]
	content = content[min(off, int64(len(content))):]
	return copied(content[:min(n, len(content))])
}
