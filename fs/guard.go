package fs

import (
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
)

// guard stands around the filesystem that the kernel talks to, and refuses a request that has ended two daemons: see [handover.Suspects]. Requests
// that it does not name are answered from memory.
type guard struct {
	fuse.RawFileSystem
	mount    *Mount
	suspects *handover.Suspects
}

// guarded is the filesystem that the kernel talks to. Where nobody holds the mount, no request comes again.
func (m *Mount) guarded() fuse.RawFileSystem {
	if m.suspects == nil {
		return m.around
	}
	return &guard{m.around, m, m.suspects}
}

// begin marks a request. ok is false where it is refused.
func (g *guard) begin(h *fuse.InHeader) (mark handover.Mark, ok bool) {
	if mark, ok = g.suspects.Begin(h.Unique); !ok {
		g.mount.failed.count(fuse.EIO)
		g.mount.log.Error("a request is refused with EIO: two daemons have crashed while they handled it", "opcode", h.Opcode, "node", h.NodeId, "uid", h.Uid, "pid", h.Pid)
	}
	return mark, ok
}

// Task marks work of a user that the next daemon begins again, where the kernel does not ask for it: see [handover.Suspects.BeginTask]. The error
// says that two daemons have crashed in it.
func (m *Mount) Task(uid uint32, kind string, what []byte) (end func(), err error) {
	if m == nil || m.suspects == nil {
		return func() {}, nil
	}
	mark, ok := m.suspects.BeginTask(uid, kind, what)
	if !ok {
		m.log.Error("work is refused: two daemons have crashed while they did it", "work", kind, "uid", uid)
		return nil, fmt.Errorf("two daemons have crashed in it, and no other tries until hbmfs is upgraded or mounted anew: the log says why they crashed: %w", unix.EIO)
	}
	return func() { m.suspects.End(mark) }, nil
}

// do handles a request that is not refused.
func (g *guard) do(h *fuse.InHeader, handle func() fuse.Status) fuse.Status {
	mark, ok := g.begin(h)
	if !ok {
		return fuse.EIO
	}
	defer g.suspects.End(mark)
	return handle()
}

// Read implements [fuse.RawFileSystem].
func (g *guard) Read(c <-chan struct{}, h *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	mark, ok := g.begin(&h.InHeader)
	if !ok {
		return nil, fuse.EIO
	}
	defer g.suspects.End(mark)
	return g.RawFileSystem.Read(c, h, buf)
}

// Write implements [fuse.RawFileSystem].
func (g *guard) Write(c <-chan struct{}, h *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	mark, ok := g.begin(&h.InHeader)
	if !ok {
		return 0, fuse.EIO
	}
	defer g.suspects.End(mark)
	return g.RawFileSystem.Write(c, h, data)
}

// Release implements [fuse.RawFileSystem]. The kernel wants no answer.
func (g *guard) Release(c <-chan struct{}, h *fuse.ReleaseIn) {
	if mark, ok := g.begin(&h.InHeader); ok {
		defer g.suspects.End(mark)
		g.RawFileSystem.Release(c, h)
	}
}

// ReleaseDir implements [fuse.RawFileSystem]. The kernel wants no answer.
func (g *guard) ReleaseDir(h *fuse.ReleaseIn) {
	if mark, ok := g.begin(&h.InHeader); ok {
		defer g.suspects.End(mark)
		g.RawFileSystem.ReleaseDir(h)
	}
}

// Lookup implements [fuse.RawFileSystem].
func (g *guard) Lookup(c <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return g.do(h, func() fuse.Status { return g.RawFileSystem.Lookup(c, h, name, out) })
}

// GetAttr implements [fuse.RawFileSystem].
func (g *guard) GetAttr(c <-chan struct{}, h *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.GetAttr(c, h, out) })
}

// SetAttr implements [fuse.RawFileSystem].
func (g *guard) SetAttr(c <-chan struct{}, h *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.SetAttr(c, h, out) })
}

// Mknod implements [fuse.RawFileSystem].
func (g *guard) Mknod(c <-chan struct{}, h *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Mknod(c, h, name, out) })
}

// Mkdir implements [fuse.RawFileSystem].
func (g *guard) Mkdir(c <-chan struct{}, h *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Mkdir(c, h, name, out) })
}

// Unlink implements [fuse.RawFileSystem].
func (g *guard) Unlink(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return g.do(h, func() fuse.Status { return g.RawFileSystem.Unlink(c, h, name) })
}

// Rmdir implements [fuse.RawFileSystem].
func (g *guard) Rmdir(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return g.do(h, func() fuse.Status { return g.RawFileSystem.Rmdir(c, h, name) })
}

// Rename implements [fuse.RawFileSystem].
func (g *guard) Rename(c <-chan struct{}, h *fuse.RenameIn, old string, name string) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Rename(c, h, old, name) })
}

// Create implements [fuse.RawFileSystem].
func (g *guard) Create(c <-chan struct{}, h *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Create(c, h, name, out) })
}

// Open implements [fuse.RawFileSystem].
func (g *guard) Open(c <-chan struct{}, h *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Open(c, h, out) })
}

// Lseek implements [fuse.RawFileSystem].
func (g *guard) Lseek(c <-chan struct{}, h *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Lseek(c, h, out) })
}

// Ioctl implements [fuse.RawFileSystem].
func (g *guard) Ioctl(c <-chan struct{}, h *fuse.IoctlIn, in []byte, out *fuse.IoctlOut, buf []byte) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Ioctl(c, h, in, out, buf) })
}

// Flush implements [fuse.RawFileSystem].
func (g *guard) Flush(c <-chan struct{}, h *fuse.FlushIn) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Flush(c, h) })
}

// Fsync implements [fuse.RawFileSystem].
func (g *guard) Fsync(c <-chan struct{}, h *fuse.FsyncIn) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Fsync(c, h) })
}

// Fallocate implements [fuse.RawFileSystem].
func (g *guard) Fallocate(c <-chan struct{}, h *fuse.FallocateIn) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.Fallocate(c, h) })
}

// OpenDir implements [fuse.RawFileSystem].
func (g *guard) OpenDir(c <-chan struct{}, h *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.OpenDir(c, h, out) })
}

// ReadDir implements [fuse.RawFileSystem].
func (g *guard) ReadDir(c <-chan struct{}, h *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.ReadDir(c, h, out) })
}

// ReadDirPlus implements [fuse.RawFileSystem].
func (g *guard) ReadDirPlus(c <-chan struct{}, h *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.ReadDirPlus(c, h, out) })
}

// FsyncDir implements [fuse.RawFileSystem].
func (g *guard) FsyncDir(c <-chan struct{}, h *fuse.FsyncIn) fuse.Status {
	return g.do(&h.InHeader, func() fuse.Status { return g.RawFileSystem.FsyncDir(c, h) })
}
