package checkpoints

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs"
)

func (r *router) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	if !isOuter(in.NodeId) && in.NodeId != rootID {
		return r.Mount.Tmpfile(cancel, in, out)
	}
	return fuse.Status(syscall.EOPNOTSUPP) // programs then make a name
}

func (r *router) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if in.NodeId != rootID && !isOuter(in.NodeId) {
		return r.Mount.Create(cancel, in, name, out)
	}
	dir, err := r.inRoot(in.NodeId, name)
	if err != nil {
		return r.fail("make", err)
	}
	dir.draft.wrote(in.Pid)
	n, st, err := r.v.create(dir, name, in, out)
	if err != nil {
		return r.fail("make", err)
	}
	told(n, st, &out.EntryOut)
	return fuse.OK
}

func (r *router) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if !isOuter(in.NodeId) {
		return r.Mount.Open(cancel, in, out)
	}
	n, err := r.v.node(in.NodeId)
	if err == nil && writes(in.Flags) {
		n.draft.wrote(in.Pid)
		n.draft.rewritten()
		var end func()
		if end, err = n.draft.change(); err == nil {
			defer end()
		}
	}
	if err == nil {
		err = r.v.openFile(n, &in.InHeader, in.Flags, out)
	}
	return r.fail("open", err)
}

func (r *router) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	if !isOuter(in.NodeId) {
		r.Mount.Release(cancel, in)
		return
	}
	r.v.release(in.Fh)
}

func (r *router) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if !isOuter(in.NodeId) {
		return r.Mount.Read(cancel, in, buf)
	}
	n, err := r.v.node(in.NodeId)
	fd, read := -1, 0
	if err == nil {
		if fd, err = r.v.plainAgain(in.Fh, n, in.Flags); err != nil {
			fd, err = r.v.plainFile(in.Fh, n, unix.O_RDONLY)
		}
	}
	buf = buf[:min(len(buf), int(in.Size))]
	for err == nil && read < len(buf) {
		m, readErr := unix.Pread(fd, buf[read:], int64(in.Offset)+int64(read))
		if err = readErr; m <= 0 {
			break
		}
		read += m
	}
	if err != nil {
		return nil, r.fail("read", err)
	}
	return fuse.ReadResultData(buf[:read]), fuse.OK
}

func (r *router) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if !isOuter(in.NodeId) {
		return 0, fuse.EROFS
	}
	n, err := r.v.node(in.NodeId)
	fd, written := -1, 0
	if err == nil {
		err = n.fits(in.Offset + uint64(len(data)))
	}
	if err == nil { // a process that has it open for writing keeps the draft from being published
		fd, err = r.v.plainAgain(in.Fh, n, in.Flags|unix.O_RDWR)
	}
	for err == nil && written < len(data) {
		var m int
		m, err = unix.Pwrite(fd, data[written:], int64(in.Offset)+int64(written))
		written += max(m, 0)
	}
	if err != nil && written == 0 {
		return 0, r.fail("write", err)
	}
	return uint32(written), fuse.OK
}

func (r *router) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	if !isOuter(in.NodeId) {
		return r.Mount.Lseek(cancel, in, out)
	}
	n, err := r.v.node(in.NodeId)
	var at *opened
	if err == nil {
		at, err = n.at()
	}
	if err != nil {
		return r.fail("seek in", err)
	}
	defer at.end()
	fd, err := readOnly(at.fd)
	if err != nil {
		return r.fail("seek in", err)
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading
	off, err := unix.Seek(fd, int64(in.Offset), int(in.Whence))
	out.Offset = uint64(off)
	return r.fail("seek in", err)
}

func (r *router) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if !isOuter(in.NodeId) {
		return r.Mount.Fallocate(cancel, in)
	}
	n, err := r.v.node(in.NodeId)
	var end func()
	if err == nil {
		end, err = n.draft.change()
	}
	if err == nil {
		defer end()
		err = n.fits(in.Offset + in.Length)
	}
	if err == nil {
		err = n.writable(in.Fh, func(fd int) error {
			return unix.Fallocate(fd, in.Mode, int64(in.Offset), int64(in.Length))
		})
	}
	return r.fail("allocate", err)
}

// Fsync syncs a file. Published ones are on the disk.
func (r *router) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if !isOuter(in.NodeId) {
		return fuse.OK
	}
	n, err := r.v.node(in.NodeId)
	if err == nil {
		err = n.sync(in.FsyncFlags&1 != 0)
	}
	return r.fail("sync", err)
}

func (r *router) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if !isOuter(in.NodeId) {
		return fuse.OK
	}
	n, err := r.v.node(in.NodeId)
	if err == nil {
		err = n.sync(false)
	}
	return r.fail("sync", err)
}

// Flush is asked when a program closes a tracker: other files need none.
func (r *router) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	r.v.mu.Lock()
	n := r.v.handles[in.Fh]
	r.v.mu.Unlock()
	if n == nil || n.draft != r.v.side {
		return fuse.OK
	}
	ctx, end := fs.Request(cancel, &in.InHeader)
	defer end()
	return r.fail("publish what is named by", r.v.tracked(ctx, n, in.Pid))
}

func (r *router) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, inbuf []byte, out *fuse.IoctlOut, outbuf []byte) fuse.Status {
	if !isOuter(in.NodeId) {
		return r.Mount.Ioctl(cancel, in, inbuf, out, outbuf)
	}
	n, err := r.v.node(in.NodeId)
	switch {
	case err != nil:
		return r.fail("command", err)
	case in.Cmd != control.DraftCommand || n.draft == nil || n.draft.root != n:
		return fuse.Status(syscall.ENOTTY)
	case in.Uid != 0 && in.Uid != n.draft.owner.UID:
		return fuse.EPERM
	}
	clear(outbuf)
	verb, err := control.ParseDraftRequest(inbuf)
	if err != nil {
		return fuse.EINVAL
	}
	if err := r.v.mayWrite(int(in.Pid)); err != nil {
		r.v.refuse("hbmfs publish: %v", err)
		return r.fail("command", err)
	}
	reply := n.draft.command(verb)
	reply.AppendTo(outbuf[:0])
	return fuse.OK
}
