package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// What would change the dataset gets EROFS from the filesystem itself. The superblock cannot be mounted read-only, since
// the daemon makes its control socket in it (see Mknod); sealReadOnly makes it so afterwards, where it may.

const erofs = fuse.Status(syscall.EROFS)

func (m *Mount) SetAttr(<-chan struct{}, *fuse.SetAttrIn, *fuse.AttrOut) fuse.Status { return erofs }
func (m *Mount) Mkdir(<-chan struct{}, *fuse.MkdirIn, string, *fuse.EntryOut) fuse.Status {
	return erofs
}
func (m *Mount) Unlink(<-chan struct{}, *fuse.InHeader, string) fuse.Status             { return erofs }
func (m *Mount) Rmdir(<-chan struct{}, *fuse.InHeader, string) fuse.Status              { return erofs }
func (m *Mount) Rename(<-chan struct{}, *fuse.RenameIn, string, string) fuse.Status     { return erofs }
func (m *Mount) Link(<-chan struct{}, *fuse.LinkIn, string, *fuse.EntryOut) fuse.Status { return erofs }
func (m *Mount) Symlink(<-chan struct{}, *fuse.InHeader, string, string, *fuse.EntryOut) fuse.Status {
	return erofs
}
func (m *Mount) Create(<-chan struct{}, *fuse.CreateIn, string, *fuse.CreateOut) fuse.Status {
	return erofs
}
func (m *Mount) Tmpfile(<-chan struct{}, *fuse.CreateIn, *fuse.CreateOut) fuse.Status { return erofs }
func (m *Mount) Fallocate(<-chan struct{}, *fuse.FallocateIn) fuse.Status             { return erofs }
