package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs/storage"
)

// Lseek finds data and holes of a file that is one whole local file, so that copies of a sparse file stay sparse. Other files have no holes, which
// any file may be said to have.
func (m *Mount) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	n, status := m.node(ctx, in.NodeId)
	if n == nil {
		return status
	}
	if n.kind == kindObject {
		if origin := storage.Of(n.object).Local; origin != nil {
			fd, err := origin.OpenObject(ctx, n.object)
			if err != nil {
				return m.fail(n, "seek in", err)
			}
			defer func() { _ = unix.Close(fd) }() // opened for reading
			off, err := unix.Seek(fd, int64(in.Offset), int(in.Whence))
			out.Offset = uint64(off)
			return fuse.ToStatus(err)
		}
	}
	var a fuse.AttrOut
	if status := m.GetAttr(cancel, &fuse.GetAttrIn{InHeader: in.InHeader}, &a); status != fuse.OK {
		return status
	}
	if in.Offset >= a.Size {
		return fuse.Status(syscall.ENXIO)
	}
	if out.Offset = in.Offset; in.Whence == unix.SEEK_HOLE {
		out.Offset = a.Size
	}
	return fuse.OK
}
