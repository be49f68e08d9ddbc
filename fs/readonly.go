package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// readOnly answers requests that a filesystem without changes need not serve: EROFS to requests that would change it, ENOSYS to the rest. After one
// ENOSYS the kernel opens directories itself and keeps their listings, and closes files without FLUSH. The superblock cannot be mounted read-only,
// since the daemon makes its control socket in it (see Mknod). The control server makes it so afterwards, where it may.
type readOnly struct{ fuse.RawFileSystem }

const erofs = fuse.Status(syscall.EROFS)

// Flush is ENOSYS, which go-fuse answers with OK otherwise.
func (readOnly) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func (readOnly) SetAttr(<-chan struct{}, *fuse.SetAttrIn, *fuse.AttrOut) fuse.Status { return erofs }
func (readOnly) Mkdir(<-chan struct{}, *fuse.MkdirIn, string, *fuse.EntryOut) fuse.Status {
	return erofs
}
func (readOnly) Unlink(<-chan struct{}, *fuse.InHeader, string) fuse.Status             { return erofs }
func (readOnly) Rmdir(<-chan struct{}, *fuse.InHeader, string) fuse.Status              { return erofs }
func (readOnly) Rename(<-chan struct{}, *fuse.RenameIn, string, string) fuse.Status     { return erofs }
func (readOnly) Link(<-chan struct{}, *fuse.LinkIn, string, *fuse.EntryOut) fuse.Status { return erofs }
func (readOnly) Symlink(<-chan struct{}, *fuse.InHeader, string, string, *fuse.EntryOut) fuse.Status {
	return erofs
}
func (readOnly) Create(<-chan struct{}, *fuse.CreateIn, string, *fuse.CreateOut) fuse.Status {
	return erofs
}
func (readOnly) Tmpfile(<-chan struct{}, *fuse.CreateIn, *fuse.CreateOut) fuse.Status { return erofs }
func (readOnly) Fallocate(<-chan struct{}, *fuse.FallocateIn) fuse.Status             { return erofs }
