package fs

import (
	"context"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

// local is an origin whose objects are files of this machine, which the kernel can read without this process.
type local interface {
	// OpenObject opens o with a file description of its own, checked to be the listed version.
	OpenObject(ctx context.Context, o *layout.Object) (fd int, err error)
	// Borrow returns a descriptor of o, checked to be the listed version, until done is called.
	Borrow(ctx context.Context, o *layout.Object) (fd int, done func(), err error)
}

// Handles say how a file was opened. Texts have handles from firstText on.
const (
	handleCached uint64 = iota
	handlePassthrough
	firstText
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
	n := m.tree.get(i)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY || in.Flags&syscall.O_TRUNC != 0 {
		return erofs
	}
	switch n.kind {
	case kindText:
		var ok bool
		if out.Fh, ok = m.texts.open(in.Uid, n.text()); !ok { // nobody needs so many at a time
			return fuse.Status(syscall.EMFILE)
		}
		out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
		return fuse.OK
	case kindObject, kindView:
	case kindDenied: // the kernel itself refuses everybody but root
		return m.fail(n, "open", syscall.EACCES)
	default:
		return fuse.EINVAL
	}
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	body, err := n.body(ctx)
	if err != nil {
		return m.fail(n, "open", err)
	}
	fd, release := -1, func() {} // of the one local file that has all bytes
	if o := body.Whole(); o != nil {
		switch origin := o.Origin.(type) {
		case local:
			fd, err = origin.OpenObject(ctx, o) // even where the kernel has the file, or has refused it: a changed file must not open
			if err == nil {
				fd, err = stillGrants(in.Uid, o, fd)
			}
		case segmented:
			fd, release, err = origin.OpenWhole(ctx, o)
		}
		if err != nil {
			return m.fail(n, "open", err)
		}
	}
	if id := m.backing.open(i, fd, release); id != noBacking {
		m.counters.passthroughOpens.Add(1)
		out.Fh, out.OpenFlags, out.BackingID = handlePassthrough, openPassthrough, id
		return fuse.OK
	}
	m.counters.cachedOpens.Add(1)
	out.Fh, out.OpenFlags = handleCached, openCached
	return fuse.OK
}

// Release ends an open file.
func (m *Mount) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	switch {
	case in.Fh == handlePassthrough:
		m.backing.release(number(in.NodeId))
		m.control.prefetch.endFile(number(in.NodeId)) // all of it is local
		m.counters.passthroughCloses.Add(1)
	case in.Fh >= firstText:
		m.texts.close(in.Fh)
	default:
		if m.backing.closedCached(number(in.NodeId)) {
			m.control.prefetch.endFile(number(in.NodeId))
		}
		m.counters.cachedCloses.Add(1)
	}
}

// body returns where the bytes of a file lie.
func (n *node) body(ctx context.Context) (*layout.Body, error) {
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
}

type backing struct {
	id       int32
	opens    int
	released func() // called after the last close
}

func (b *backings) init() {
	b.byNode, b.refused, b.cached = map[int]*backing{}, map[int]bool{}, map[int]int{}
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
// calls released once the kernel no longer has the file, or at once where the kernel does not get this one.
func (b *backings) open(i, fd int, released func()) (id int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.byNode[i]
	if k == nil {
		k = b.register(i, fd, released)
	} else {
		discard(fd, released)
	}
	if k == nil {
		b.cached[i]++
		return noBacking
	}
	k.opens++
	return k.id
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
			b.off = "the kernel wants CAP_SYS_ADMIN in the initial user namespace for passthrough: mount as root outside of containers"
		}
		discard(fd, released)
		return nil
	}
	_ = unix.Close(fd) // opened for reading: nothing is lost
	b.byNode[i] = &backing{id: id, released: released}
	return b.byNode[i]
}

// discard closes a file that is not needed.
func discard(fd int, released func()) {
	if fd >= 0 {
		_ = unix.Close(fd) // opened for reading: nothing is lost
		released()
	}
}

func (b *backings) release(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.byNode[i]
	if k == nil {
		return
	}
	if k.opens--; k.opens == 0 {
		delete(b.byNode, i)
		_ = b.server.UnregisterBackingFd(k.id) // it fails only when the mount is gone, and all its ids with it
		k.released()
	}
}
