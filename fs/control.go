package fs

import (
	"context"
	"os"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	wire "github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/layout"
)

// Ready is closed once Serve has made the control socket, or has logged why it cannot. Readers need not wait for it.
func (m *Mount) Ready() <-chan struct{} { return m.control.Ready() }

// Ioctl asks the server of the control channel about an open file.
func (m *Mount) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, inbuf []byte, out *fuse.IoctlOut, outbuf []byte) fuse.Status {
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	n, status := m.node(ctx, in.NodeId)
	switch {
	case n == nil:
		return status
	case n.kind != kindObject && n.kind != kindView:
		return fuse.Status(syscall.ENOTTY)
	}
	return m.control.Ioctl(ctx, n, number(in.NodeId), in, inbuf, out, outbuf)
}

// Mknod makes the control socket when this process binds it, and nothing else, ever.
func (m *Mount) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	parent := m.tree.get(number(in.NodeId))
	if parent == nil || parent.dir == nil || name != mountpoint.SocketName || in.Mode&syscall.S_IFMT != syscall.S_IFSOCK || int(in.Uid) != os.Geteuid() {
		return erofs
	}
	n, i := m.tree.find(parent.dir, name)
	if n == nil || n.kind != kindSocket || !m.control.Binds() {
		return erofs
	}
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	if _, err := n.attr(ctx, &out.Attr); err != nil {
		return m.fail(n, "make", err)
	}
	n.entry(i, out)
	return fuse.OK
}

// served is a mount as the server of its control channel sees it.
type served struct{ *Mount }

// Find implements [control.Mount].
func (m served) Find(ctx context.Context, path string, by control.User) (control.File, int, error) {
	n, i := m.tree.get(rootNumber), rootNumber
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." || name == ".." {
			return nil, 0, syscall.EINVAL
		}
		switch {
		case n.kind == kindLink:
			return nil, 0, syscall.ELOOP
		case n.dir == nil:
			return nil, 0, syscall.ENOTDIR
		case !m.asNow(i, n).lets(by, 0o1):
			return nil, 0, syscall.EACCES
		}
		child, number, err := m.child(ctx, i, n, name)
		if err != nil {
			return nil, 0, err
		}
		if n, i = child, number; n == nil {
			return nil, 0, syscall.ENOENT
		}
	}
	switch {
	case n.kind == kindLink:
		return nil, 0, syscall.ELOOP
	case n.kind == kindDir:
		return nil, 0, syscall.EISDIR
	case n.kind == kindDenied:
		return nil, 0, syscall.EACCES
	case n.kind != kindObject && n.kind != kindView:
		return nil, 0, syscall.EOPNOTSUPP
	case !n.lets(by, 0o4):
		return nil, 0, syscall.EACCES
	}
	return n, i, nil
}

// ReadOnly implements [control.Mount].
func (m served) ReadOnly() error {
	if m.opt.Top != nil {
		return m.opt.Top.Origin().ReadOnlyMount()
	}
	for _, o := range m.listing.Objects {
		if l, ok := o.Origin.(interface{ ReadOnlyMount() error }); ok {
			return l.ReadOnlyMount()
		}
	}
	return nil
}

// Errno implements [control.Mount].
func (served) Errno(err error) syscall.Errno { return syscall.Errno(statusOf(err)) }

// Fail implements [control.Mount].
func (m served) Fail(f control.File, path, verb string, err error) syscall.Errno {
	n, found := f.(*node)
	if !found { // one of its directories failed
		n = &node{name: path}
	}
	return syscall.Errno(m.fail(n, verb, err))
}

// lets reports whether a user has the rights of one class to a node.
func (n *node) lets(by control.User, rights uint16) bool { return by.May(n.uid, n.gid, n.perm, rights) }

// Object implements [control.File].
func (n *node) Object() *layout.Object { return n.object }

// View implements [control.File].
func (n *node) View() *layout.File {
	if n.kind != kindView {
		return nil
	}
	return n.view.file
}

// Generation implements [control.File]. The inode number of a view stands for its path alone, and its content for this mount alone.
func (n *node) Generation(mount wire.Epoch) uint64 {
	if n.kind != kindView {
		return n.ino
	}
	return inoOf(n.name, string(mount[:])) ^ n.ino
}
