package fs

import (
	"context"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

// NOFLUSH lets the kernel close a file without a request: nothing is ever written, and close(2) must not fail for a reader
// that outlived the daemon.
const (
	openCached      = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	openPassthrough = fuse.FOPEN_PASSTHROUGH | fuse.FOPEN_NOFLUSH
)

// Open opens a file: passthrough if the kernel can read the source itself, through its page cache otherwise.
func (m *Mount) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	i := number(in.NodeId)
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	n, status := m.node(ctx, in.NodeId)
	if n == nil {
		return status
	}
	if status := m.mayOpen(ctx, n, in.Flags); status != fuse.OK {
		return status
	}
	if fh, h := m.handles.answered(&in.InHeader); h != nil { // by a daemon whose answer was lost
		opened(out, fh, h.state.Load(), h.backing)
		return fuse.OK
	}
	switch n.kind {
	case kindText:
		return m.openText(n, in, out)
	case kindObject, kindView:
	case kindDenied: // the kernel itself refuses everybody but root
		return m.fail(n, "open", syscall.EACCES)
	default:
		return fuse.EINVAL
	}
	o, err := n.whole(ctx)
	if err != nil {
		return m.fail(n, "open", err)
	}
	fd, release := -1, func() {} // of the one local file that has all bytes
	if o != nil {
		switch s := storage.Of(o); {
		case s.Local != nil:
			fd, err = s.Local.OpenObject(ctx, o) // even where the kernel has the file, or has refused it: a changed file must not open
			if err == nil {
				fd, err = storage.StillGrants(in.Uid, o, fd)
			}
		case s.Segmented != nil:
			fd, release, err = s.Segmented.OpenWhole(ctx, o)
		}
		if err != nil {
			return m.fail(n, "open", err)
		}
	}
	state := handleCached
	ok := m.backing.open(i, fd, release, func(id int32) (ok bool) {
		if id != noBacking {
			state = handlePassthrough
		}
		out.BackingID = id
		out.Fh, ok = m.handles.open(&in.InHeader, state, id, 0)
		return ok
	})
	if !ok { // nobody needs so many at a time
		return fuse.Status(syscall.ENFILE)
	}
	if state == handlePassthrough {
		m.counters.passthroughOpens.Add(1)
	} else {
		m.counters.cachedOpens.Add(1)
	}
	opened(out, out.Fh, state, out.BackingID)
	return fuse.OK
}

// mayOpen returns OK where this process is to open a file, and otherwise what the kernel is told.
func (m *Mount) mayOpen(ctx context.Context, n *node, flags uint32) fuse.Status {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY || flags&syscall.O_TRUNC != 0 {
		return erofs
	}
	switch itself, err := m.opensItself(ctx); {
	case err != nil:
		return m.fail(n, "open", err)
	case itself:
		return fuse.ENOSYS
	}
	return fuse.OK
}

// opened fills in the answer to an OPEN.
func opened(out *fuse.OpenOut, fh uint64, state uint32, backing int32) {
	out.Fh = fh
	switch state {
	case handleText:
		out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
	case handlePassthrough:
		out.OpenFlags, out.BackingID = openPassthrough, backing
	default:
		out.OpenFlags, out.BackingID = openCached, noBacking
	}
}

// Flush is not needed: nothing is written. After one ENOSYS the kernel closes files without it.
func (m *Mount) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

// Release ends an open file.
func (m *Mount) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	h := m.handles.get(in.Fh)
	if h == nil { // the kernel says it again, to the next daemon
		return
	}
	switch h.state.Load() {
	case handlePassthrough:
		m.backing.release(number(in.NodeId), func() { h.state.Store(handleClosing) })
		m.control.EndFile(number(in.NodeId)) // all of it is local
		m.counters.passthroughCloses.Add(1)
	case handleText:
		m.texts.close(in.Fh)
	default:
		if m.backing.closedCached(number(in.NodeId)) {
			m.control.EndFile(number(in.NodeId))
		}
		m.counters.cachedCloses.Add(1)
	}
	m.handles.close(in.Fh)
	m.yields.yield() // nobody waits for this answer
}

// Body implements [control.File].
func (n *node) Body(ctx context.Context) (*layout.Body, error) {
	if n.kind == kindObject {
		var b layout.Body
		b.Add(n.object, 0, n.object.Size)
		return &b, nil
	}
	file, err := n.view.get(ctx)
	if err != nil {
		return nil, err
	}
	if file == nil {
		return nil, &layout.AbsentError{Why: "the view is not there"}
	}
	return &file.Body, nil
}

// whole returns the object that a file is from its first byte to its last, nil where it is anything else.
func (n *node) whole(ctx context.Context) (*layout.Object, error) {
	if n.kind == kindObject && n.object.Size > 0 { // as the body would say, without making one
		return n.object, nil
	}
	body, err := n.Body(ctx)
	if err != nil {
		return nil, err
	}
	return body.Whole(), nil
}

// noBacking is the backing id of a file that is read through this process.
const noBacking int32 = 0

// backings are the backing files that the kernel has for passthrough: one for each open inode, however often it is open.
// This process keeps no descriptor of them.
type backings struct {
	server interface { // the part of fuse.Server that takes files for passthrough
		RegisterBackingFd(*fuse.BackingMap) (id int32, errno syscall.Errno)
		UnregisterBackingFd(id int32) syscall.Errno
	}

	mu     sync.Mutex
	byNode map[int]*backing
	// refused are the nodes whose files the kernel has refused. cached counts the opens of a node without passthrough, now.
	refused  map[int]bool
	cached   map[int]int
	off      string // why there is no passthrough at all, "" while there is
	failures int64
	lastErr  string
	booked   func(id int32) // called once the books have an id that is new
}

type backing struct {
	id       int32
	opens    int
	released func() // called after the last close; nil where the daemon before has registered the file
}

func (b *backings) init() {
	b.byNode, b.refused, b.cached, b.booked = map[int]*backing{}, map[int]bool{}, map[int]int{}, func(int32) {}
}

// closedCached is the end of an open without passthrough. It reports whether no other is left.
func (b *backings) closedCached(i int) (last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cached[i]--; b.cached[i] == 0 {
		delete(b.cached, i)
		return true
	}
	return false
}

func (b *backings) disable(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.off = why
}

// why returns the reason for which passthrough is off, "" while it is on.
func (b *backings) why() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.off
}

// open opens node i with a backing id, until release, or through this process, with noBacking, until closedCached. One lock
// guards both, since the kernel refuses to mix them (EIO). open closes fd, which is -1 where there is no one local file. It
// calls released once the kernel no longer has the file, or at once where the kernel does not get this one. What it decided it
// gives to book under the lock, so that the books of the next daemon have every id. Where book says no, nothing is open.
func (b *backings) open(i, fd int, released func(), book func(id int32) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.byNode[i]
	switch {
	case k == nil:
		k = b.register(i, fd, released)
	case k.released == nil && fd >= 0: // the daemon before has registered it
		k.released = released
		_ = unix.Close(fd) // opened for reading: nothing is lost
	default:
		discard(fd, released)
	}
	if k == nil {
		if !book(noBacking) {
			return false
		}
		b.cached[i]++
		return true
	}
	k.opens++
	if !book(k.id) {
		b.drop(i, k, func() {})
		return false
	}
	if k.opens == 1 { // its id is new
		b.booked(k.id)
	}
	return true
}

// register offers a file to the kernel, and returns nil where the kernel does not get it.
func (b *backings) register(i, fd int, released func()) *backing {
	if fd < 0 || b.off != "" || b.refused[i] || b.cached[i] > 0 {
		discard(fd, released)
		return nil
	}
	id, errno := b.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if errno != 0 {
		b.failures++
		b.lastErr = errno.Error()
		b.refused[i] = true
		if errno == syscall.EPERM {
			b.off = noCapability
		}
		discard(fd, released)
		return nil
	}
	_ = unix.Close(fd) // opened for reading: nothing is lost
	b.byNode[i] = &backing{id: id, released: released}
	return b.byNode[i]
}

const noCapability = "the kernel wants CAP_SYS_ADMIN in the initial user namespace for passthrough: mount as root outside of containers"

// discard closes a file that is not needed.
func discard(fd int, released func()) {
	if fd >= 0 {
		_ = unix.Close(fd) // opened for reading: nothing is lost
		released()
	}
}

// release is the end of an open with passthrough. closing is called before the kernel takes the id back.
func (b *backings) release(i int, closing func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.byNode[i]; k != nil {
		b.drop(i, k, closing)
	}
}

func (b *backings) drop(i int, k *backing, closing func()) {
	if k.opens--; k.opens == 0 {
		closing()
		delete(b.byNode, i)
		_ = b.server.UnregisterBackingFd(k.id) // it fails only when the mount is gone, and all its ids with it
		if k.released != nil {
			k.released()
		}
	}
}

// adopt books an open of the daemon before.
func (b *backings) adopt(i int, id int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id == noBacking {
		b.cached[i]++
		return
	}
	if b.byNode[i] == nil {
		b.byNode[i] = &backing{id: id}
	}
	b.byNode[i].opens++
}
