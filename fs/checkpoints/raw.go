package checkpoints

import (
	iofs "io/fs"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
)

// router is the filesystem that the kernel talks to. It leaves other requests to the inner mount: checkpoints that are published, their
// views, the control socket.
type router struct {
	*fs.Mount
	v *Volume
}

const rootID = fuse.FUSE_ROOT_ID

func isOuter(id uint64) bool { return id&outer != 0 }

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
	out.SetEntryTimeout(fs.ShortTimeout)
	if n.draft.root == n {
		out.SetEntryTimeout(draftTimeout)
		n.draft.told.Store(time.Now().UnixNano())
	}
	if n.isDir {
		out.SetAttrTimeout(fs.ShortTimeout)
	}
}

// tellDraft looks a draft up.
func (r *router) tellDraft(d *mountedDraft, out *fuse.EntryOut) fuse.Status {
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
		out.SetTimeout(fs.ShortTimeout)
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
	out.SetTimeout(fs.ShortTimeout)
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
		return r.frozen(r.Mount.Unlink(cancel, h, name))
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
		return r.frozen(r.Mount.Rmdir(cancel, h, name))
	}
	return r.unlink(h, name, unix.AT_REMOVEDIR)
}

// frozen names, in the status and the log, the command that removes a published checkpoint: an errno cannot. One stray rm -r must not.
func (r *router) frozen(status fuse.Status) fuse.Status {
	if status == fuse.EROFS {
		r.v.refuse("rm in a published checkpoint: its files never change; hbmfs checkpoint rm %[1]s/NAME, or rmdir %[1]s/NAME, removes the whole checkpoint", r.Point())
	}
	return status
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
