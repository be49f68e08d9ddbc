package fs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/fs/storage"
	"github.com/hbmfs/hbmfs/layout"
)

// NOFLUSH lets the kernel close a file without a request. Nothing is ever written, and close(2) must not fail for a reader
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
		return m.texts.openFor(m.handles, n, in, out)
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
	if state == handleCached && o != nil {
		if k := storage.Of(o).Segmented; k != nil && k.Stale(o) {
			out.OpenFlags &^= fuse.FOPEN_KEEP_CACHE // the kernel drops its pages
		}
	}
	return fuse.OK
}

// mayOpen returns OK where this process is to open a file, and otherwise the kernel's error.
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
