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
	OpenObject(o *layout.Object) (fd int, err error)
	// Borrow returns a descriptor of o, checked to be the listed version, until done is called.
	Borrow(o *layout.Object) (fd int, done func(), err error)
}

// Handles say how a file was opened. Texts have handles from firstText on.
const (
	handleCached uint64 = iota
	handlePassthrough
	handleKept // cached, of what is counted while it is open: a view, or an object that may be opened with passthrough later
	firstText
)

// With each open the kernel hears that a close needs no word of this process: nothing is ever written, and close(2)
// must not fail for a reader that outlived the daemon.
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
		out.Fh = m.texts.open(n.text())
		out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
		return fuse.OK
	case kindObject, kindView:
	default:
		return fuse.EINVAL
	}
	ctx := requestContext(cancel)
	body, err := n.body(ctx)
	if err != nil {
		return m.fail(n, "open", err)
	}
	if o := body.Whole(); o != nil {
		switch origin := o.Origin.(type) {
		case local:
			return m.openLocal(n, i, o, origin, out)
		case kept:
			return m.openKept(ctx, n, i, o, origin, out)
		}
	}
	m.counters.cachedOpens.Add(1)
	out.OpenFlags = openCached
	if n.kind == kindView { // whose plan ends when it is closed
		m.backing.openedCached(i)
		out.Fh = handleKept
	}
	return fuse.OK
}

// openLocal opens a node that is one whole local file.
func (m *Mount) openLocal(n *node, i int, o *layout.Object, origin local, out *fuse.OpenOut) fuse.Status {
	id, err := m.backing.acquire(i, func() (int, error) { return origin.OpenObject(o) }, func() {})
	if err != nil {
		return m.fail(n, "open", err)
	}
	if id != noBacking {
		return m.passthrough(id, out)
	}
	m.counters.cachedOpens.Add(1)
	out.Fh, out.OpenFlags = handleCached, openCached
	return fuse.OK
}

func (m *Mount) passthrough(id int32, out *fuse.OpenOut) fuse.Status {
	m.counters.passthroughOpens.Add(1)
	out.Fh, out.OpenFlags, out.BackingID = handlePassthrough, openPassthrough, id
	return fuse.OK
}

// Release ends an open file.
func (m *Mount) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	switch {
	case in.Fh == handlePassthrough:
		m.backing.release(number(in.NodeId))
		m.control.prefetch.endPlan(nodeReader(number(in.NodeId))) // all of it was here
		m.counters.passthroughCloses.Add(1)
	case in.Fh >= firstText:
		m.texts.close(in.Fh)
	default:
		if in.Fh == handleKept {
			if m.backing.closedCached(number(in.NodeId)) {
				m.control.prefetch.endPlan(nodeReader(number(in.NodeId)))
			}
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

// backings are the source files that the kernel holds for passthrough: one for each open inode, however often it is
// open. This process keeps no descriptor of them.
type backings struct {
	server *fuse.Server

	mu     sync.Mutex
	byNode map[int]*backing
	// refused are the nodes whose files the kernel would not take, and cached how often others are open without
	// passthrough now: the kernel refuses to mix.
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

// openedCached and closedCached count the opens without passthrough of a node that may be opened with it later.
func (b *backings) openedCached(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cached[i]++
}

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

// acquire returns the backing id for node i, which open opens at need, or noBacking. The error is open's: a file that
// the kernel will not take is read without passthrough. released is called once the kernel no longer has the file, or
// at once where it does not take this one.
func (b *backings) acquire(i int, open func() (fd int, err error), released func()) (id int32, err error) {
	taken := false
	defer func() {
		if !taken {
			released()
		}
	}()
	fd, err := open() // even where the kernel has the file, or does not want it: one that changed must not open
	if err != nil {
		return noBacking, err
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading: nothing is lost
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.byNode[i]; k != nil {
		k.opens++
		return k.id, nil
	}
	if b.off != "" || b.refused[i] || b.cached[i] > 0 {
		return noBacking, nil
	}
	id, errno := b.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if errno != 0 {
		b.failures++
		b.lastErr = errno.Error()
		b.refused[i] = true
		if errno == syscall.EPERM {
			b.off = "the kernel wants CAP_SYS_ADMIN in the initial user namespace for passthrough: mount as root outside of containers"
		}
		return noBacking, nil
	}
	b.byNode[i], taken = &backing{id, 1, released}, true
	return id, nil
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
