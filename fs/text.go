package fs

import (
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// texts are the open status files: each shows its content at the open.
type texts struct {
	bytes *shares.Shares

	mu        sync.Mutex // guards the fields below
	byOpen    map[uint64]text
	snapshots map[int]snapshot // of a frozen mount, by number
	shown     uint32           // how many there were
}

type text struct {
	uid     uint32
	content []byte
}

// textBytes bounds the memory of all open texts.
const textBytes = 64 << 20

func (t *texts) init() {
	t.byOpen, t.snapshots, t.bytes = map[uint64]text{}, map[int]snapshot{}, shares.New(textBytes, textBytes/2, 0)
}

// open keeps a text for a user until it is closed, and reports whether there was room.
func (t *texts) open(handle uint64, uid uint32, content []byte) (ok bool) {
	if !t.bytes.Reserve(uid, int64(len(content))) {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byOpen[handle] = text{uid, content}
	return true
}

func (t *texts) close(handle uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	closed := t.byOpen[handle] // nothing, where nobody read a file that the daemon before had opened
	t.bytes.Book(closed.uid, -int64(len(closed.content)))
	delete(t.byOpen, handle)
}

// read returns bytes of an open text; ok is false where this daemon has not opened it.
func (t *texts) read(handle uint64, off int64, n int) (res fuse.ReadResult, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	is, ok := t.byOpen[handle]
	content := is.content[min(off, int64(len(is.content))):]
	return copied(content[:min(n, len(content))]), ok
}

// openFor opens a text for a request.
func (t *texts) openFor(table *handles, n *node, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	content := n.text()
	fh, ok := table.open(&in.InHeader, handleText, 0, len(content))
	if ok && !t.open(fh, in.Uid, content) {
		table.close(fh)
		ok = false
	}
	if !ok { // nobody needs so many at a time
		return fuse.Status(syscall.EMFILE)
	}
	opened(out, fh, handleText, 0)
	return fuse.OK
}

// readFor reads an open text. One that the daemon before had opened is made anew for a reader that begins. A reader that has read it to
// its end finds the end, and one in the middle is told that the rest is gone.
func (t *texts) readFor(table *handles, n *node, in *fuse.ReadIn) (fuse.ReadResult, fuse.Status) {
	if number(in.NodeId) >= firstSnapshot {
		content := n.text()
		content = content[min(in.Offset, uint64(len(content))):]
		return copied(content[:min(int(in.Size), len(content))]), fuse.OK
	}
	res, ok := t.read(in.Fh, int64(in.Offset), int(in.Size))
	if ok {
		return res, fuse.OK
	}
	switch h := table.get(in.Fh); {
	case h == nil:
		return nil, fuse.EBADF
	case in.Offset == 0:
		content := n.text()
		h.size = uint32(len(content))
		if !t.open(in.Fh, in.Uid, content) {
			return nil, fuse.Status(syscall.EMFILE)
		}
		res, _ = t.read(in.Fh, 0, int(in.Size))
		return res, fuse.OK
	case in.Offset >= uint64(h.size):
		return copied(nil), fuse.OK
	}
	return nil, fuse.Status(syscall.ESTALE)
}
