package checkpoints

import (
	iofs "io/fs"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
)

// router is the filesystem that the kernel talks to. What it does not answer is the inner mount's: checkpoints that are published, their
// views, the control socket.
type router struct {
	*fs.Mount
	v *Volume
}

const rootID = fuse.FUSE_ROOT_ID

func isOuter(id uint64) bool { return id&outer != 0 }

// dirTimeout is how long the kernel keeps what it was told of directories of a draft. Files change behind it, by passthrough.
const dirTimeout = time.Second

// draftTimeout is how long the kernel keeps the name of a draft, which may soon be a published one's: see [draft.settle].
const draftTimeout = 50 * time.Millisecond

// draftForgotten is when the kernel has done so: it counts in ticks of up to 10 ms.
const draftForgotten = draftTimeout + 20*time.Millisecond

// answerTaken bounds how long an answer waits until its caller has a CPU to take it.
const answerTaken = 10 * time.Second

// fail makes an errno of an error. The log has those of the disk and the daemon, once of a kind.
func (r *router) fail(verb string, err error) fuse.Status {
	errno := unix.Errno(errnoOf(err))
	switch errno {
	case unix.EIO, unix.ENOSPC, unix.EDQUOT, unix.ENFILE, unix.EMFILE, unix.ENOMEM:
		r.Log("a file of a draft", verb, errno, err)
	}
	return fuse.Status(errno)
}

// told fills in the answer to a lookup.
func told(n *node, st *unix.Statx_t, out *fuse.EntryOut) {
	out.NodeId, out.Generation = n.ino|outer, n.generation
	attr(st, &out.Attr)
	out.SetEntryTimeout(dirTimeout)
	if n.draft.root == n {
		out.SetEntryTimeout(draftTimeout)
		n.draft.told.Store(time.Now().UnixNano())
	}
	if n.isDir {
		out.SetAttrTimeout(dirTimeout)
	}
}

// tellDraft looks a draft up.
func (r *router) tellDraft(d *draft, out *fuse.EntryOut) fuse.Status {
	st, err := d.root.stat()
	if err != nil {
		return r.fail("look up", err)
	}
	r.v.mu.Lock()
	d.root.lookups++
	r.v.mu.Unlock()
	told(d.root, st, out)
	return fuse.OK
}

func (r *router) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if !isOuter(h.NodeId) {
		if h.NodeId == rootID && name != mountpoint.ControlName {
			if d := r.v.settled(name); d != nil {
				return r.tellDraft(d, out)
			}
			status := r.Mount.Lookup(cancel, h, name, out)
			if status == fuse.OK && out.NodeId == 0 { // it may be there the next moment
				return r.lookupSide(name, out)
			}
			return status
		}
		return r.Mount.Lookup(cancel, h, name, out)
	}
	in, err := r.v.node(h.NodeId)
	if err != nil {
		return r.fail("look up", err)
	}
	n, st, err := r.v.find(in, name)
	if err != nil {
		return r.fail("look up", err)
	}
	told(n, st, out)
	return fuse.OK
}

func (r *router) Forget(id, count uint64) {
	if isOuter(id) {
		r.v.forget(id, count)
	}
}

func (r *router) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	switch {
	case in.NodeId == rootID:
		return r.rootAttr(out)
	case !isOuter(in.NodeId):
		return r.Mount.GetAttr(cancel, in, out)
	}
	n, err := r.v.node(in.NodeId)
	if err != nil {
		return r.fail("stat", err)
	}
	return r.nodeAttr(n, out)
}

func (r *router) nodeAttr(n *node, out *fuse.AttrOut) fuse.Status {
	st, err := n.stat()
	if err != nil {
		return r.fail("stat", err)
	}
	attr(st, &out.Attr)
	if n.isDir {
		out.SetTimeout(dirTimeout)
	}
	return fuse.OK
}

func (r *router) rootAttr(out *fuse.AttrOut) fuse.Status {
	st, err := r.v.statRoot()
	if err != nil {
		return r.fail("stat", err)
	}
	attr(st, &out.Attr)
	out.Ino = rootID
	out.SetTimeout(dirTimeout)
	return fuse.OK
}

func (r *router) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	switch {
	case in.NodeId == rootID: // of the directory, which has these attributes
		if err := setTo(int(r.v.self.Fd()), in); err != nil {
			return r.fail("change", err)
		}
		return r.rootAttr(out)
	case !isOuter(in.NodeId):
		return r.Mount.SetAttr(cancel, in, out)
	}
	n, err := r.v.node(in.NodeId)
	if err != nil {
		return r.fail("change", err)
	}
	end, err := n.draft.change()
	if err == nil {
		defer end()
		if n.draft.wrote(in.Pid); in.Valid&fuse.FATTR_SIZE != 0 {
			n.draft.rewritten()
		}
		if mode, ok := in.GetMode(); ok && n.draft.root == n { // it stays a draft, and gets the mode when it is published
			ctx, stop := fs.Request(cancel, &in.InHeader)
			n.draft.setMode(ctx, mode)
			stop()
			in.Valid &^= fuse.FATTR_MODE
		}
		err = n.set(in)
	}
	if err != nil {
		return r.fail("change", err)
	}
	return r.nodeAttr(n, out)
}

// modeOf keeps the permissions of a mode.
func modeOf(mode uint32) iofs.FileMode { return iofs.FileMode(mode & 0o777) }

func (r *router) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if in.NodeId != rootID && !isOuter(in.NodeId) {
		return r.Mount.Mknod(cancel, in, name, out)
	}
	dir, err := r.inRoot(in.NodeId, name)
	if err != nil {
		return r.fail("make", err)
	}
	dir.draft.wrote(in.Pid)
	n, st, err := r.v.mknod(dir, name, in)
	if err != nil {
		return r.fail("make", err)
	}
	told(n, st, out)
	return fuse.OK
}

func (r *router) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	switch {
	case in.NodeId == rootID:
		ctx, end := fs.Request(cancel, &in.InHeader)
		defer end()
		d, err := r.v.mkdirTop(ctx, in, name)
		if err != nil {
			return r.fail("begin a draft", err)
		}
		return r.tellDraft(d, out)
	case !isOuter(in.NodeId):
		return r.Mount.Mkdir(cancel, in, name, out)
	}
	dir, err := r.v.node(in.NodeId)
	if err != nil {
		return r.fail("make", err)
	}
	dir.draft.wrote(in.Pid)
	n, st, err := r.v.mkdir(dir, name, in)
	if err != nil {
		return r.fail("make", err)
	}
	told(n, st, out)
	return fuse.OK
}

func (r *router) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	switch {
	case h.NodeId == rootID && isSide(name):
		return r.fail("remove", r.v.removeSide(h, name))
	case h.NodeId == rootID:
		return fuse.Status(syscall.EISDIR)
	case !isOuter(h.NodeId):
		return r.Mount.Unlink(cancel, h, name)
	}
	return r.unlink(h, name, 0)
}

func (r *router) unlink(h *fuse.InHeader, name string, flags int) fuse.Status {
	dir, err := r.v.node(h.NodeId)
	if err == nil {
		dir.draft.wrote(h.Pid)
		err = r.v.unlink(dir, h, name, flags)
	}
	return r.fail("remove", err)
}

func (r *router) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	switch {
	case h.NodeId == rootID && name == mountpoint.ControlName:
		return fuse.EPERM
	case h.NodeId == rootID:
		return r.fail("remove", r.v.rmdirTop(h, name))
	case !isOuter(h.NodeId):
		return r.Mount.Rmdir(cancel, h, name)
	}
	return r.unlink(h, name, unix.AT_REMOVEDIR)
}

func (r *router) Rename(cancel <-chan struct{}, in *fuse.RenameIn, old, name string) fuse.Status {
	ctx, end := fs.Request(cancel, &in.InHeader)
	defer end()
	switch {
	case in.NodeId == rootID && in.Newdir == rootID:
		return r.fail("rename", r.v.renameTop(ctx, in, old, name))
	case isOuter(in.NodeId) != isOuter(in.Newdir):
		return fuse.EXDEV
	case !isOuter(in.NodeId):
		return r.Mount.Rename(cancel, in, old, name)
	}
	from, err := r.v.node(in.NodeId)
	if err != nil {
		return r.fail("rename", err)
	}
	to, err := r.v.node(in.Newdir)
	if err == nil {
		from.draft.wrote(in.Pid)
		err = r.v.rename(in, from, old, to, name)
	}
	return r.fail("rename", err)
}

func (r *router) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if !isOuter(in.NodeId) && in.NodeId != rootID {
		return r.Mount.Link(cancel, in, name, out)
	}
	return r.noLinks()
}

func (r *router) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	if !isOuter(h.NodeId) && h.NodeId != rootID {
		return r.Mount.Symlink(cancel, h, target, name, out)
	}
	return r.noLinks()
}

func (r *router) noLinks() fuse.Status {
	r.v.refuse("a link: a checkpoint has no links: copy the file")
	return fuse.EPERM
}

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
		fd, err = r.v.plainFile(in.Fh, n, in.Flags)
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
	if err == nil { // whoever has it open for writing keeps the draft from being published
		fd, err = r.v.plainFile(in.Fh, n, in.Flags|unix.O_RDWR)
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
	var at *place
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
		return r.fail("command", err)
	}
	reply := n.draft.command(verb)
	reply.AppendTo(outbuf[:0])
	return fuse.OK
}
