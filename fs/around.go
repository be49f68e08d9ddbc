package fs

import (
	"context"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
)

// These are for a filesystem around the mount's: see [Options].

// Request is the context of a request of the kernel, which ends when its caller no longer wants the answer. The caller calls end.
func Request(cancel <-chan struct{}, header *fuse.InHeader) (ctx context.Context, end func()) {
	r := newRequest(cancel, header)
	return r, r.end
}

// Log logs an error of the filesystem around once for each file and errno.
func (m *Mount) Log(file, verb string, errno unix.Errno, err error) {
	m.failed.count(fuse.Status(errno))
	type report struct {
		file, verb string
		errno      unix.Errno
	}
	if _, seen := m.failed.nodes.LoadOrStore(report{file, verb, errno}, true); !seen {
		m.log.Error("cannot "+verb, "file", file, "errno", errno.Error(), "error", err)
	}
}

// Register gives the kernel a file for passthrough. book is called under the lock that orders all such files, with the new id.
func (m *Mount) Register(fd int, book func(id int32)) (ok bool) {
	b := &m.backing
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.off != "" {
		return false
	}
	id, errno := b.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if errno != 0 {
		b.failures++
		b.lastErr = errno.Error()
		if errno == unix.EPERM {
			b.off = noCapability
		}
		return false
	}
	book(id)
	b.booked(id)
	return true
}

// Unregister takes a file back that Register gave.
func (m *Mount) Unregister(id int32) {
	_ = m.server.UnregisterBackingFd(id) // it fails only when the mount is gone, and all its ids with it
}

// Opened is an open file of the filesystem around, as the daemons of the mount have it in common.
type Opened struct {
	Inode   uint64
	Backing int32 // 0 where the kernel has none
	Writes  bool  // the program may write to it
}

// Book books a file that a request opens, and returns its handle. ok is false where its user has no room left.
func (m *Mount) Book(of *fuse.InHeader, o Opened) (handle uint64, ok bool) {
	from := *of
	if o.Writes {
		from.Unique |= requestWrites
	}
	return m.handles.openAs(&from, uint32(o.Inode), handleOuter, o.Backing, int(o.Inode>>32))
}

// Closing says that the file of the last open of a node is about to be unregistered. The next daemon does it again.
func (m *Mount) Closing(handle uint64) {
	if h := m.handles.get(handle); h != nil {
		h.state.Store(handleClosing)
	}
}

func (h *handle) outer() Opened {
	return Opened{Inode: uint64(h.size)<<32 | uint64(h.node), Backing: h.backing, Writes: h.request&requestWrites != 0}
}

// Answered returns the handle that a daemon before gave to a request that the kernel sends again.
func (m *Mount) Answered(of *fuse.InHeader) (handle uint64, o Opened, ok bool) {
	again, request := handover.Resent(of.Unique)
	if !again {
		return 0, o, false
	}
	t := m.handles
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.answers[request]
	if !ok || t.slot[i].state.Load() != handleOuter {
		return 0, o, false
	}
	return t.number(i), t.slot[i].outer(), true
}

// Unbook ends an open file.
func (m *Mount) Unbook(handle uint64) { m.handles.close(handle) }

// EachBooked goes through the open files that the daemon before has left.
func (m *Mount) EachBooked(each func(handle uint64, o Opened)) {
	t := m.handles
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.used {
		if h := &t.slot[i]; h.state.Load() == handleOuter {
			each(t.number(i), h.outer())
		}
	}
}

// Passthrough tells whether the kernel reads and writes files itself, and if not, why.
func (m *Mount) Passthrough() (why string) { return m.backing.why() }

// Inherited tells whether an earlier daemon made the mount.
func (m *Mount) Inherited() bool { return m.opt.Life.Adopts() }

// ViewsID is the node id of .hbmfs/views, which the filesystem around lists.
func (m *Mount) ViewsID() uint64 { return nodeID(m.tree.viewsNumber()) }

// DropBranch forgets a branch that was removed.
func (m *Mount) DropBranch(name string) { m.branches.drop(name) }
