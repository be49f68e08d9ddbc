package checkpoints

import (
	"errors"
	"io"
	"os"
	"path"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// hides tells whether a name in a directory is hbmfs's own: a draft that is published has its manifest for a moment.
func (n *node) hides(name string) bool {
	return name == checkpoint.ManifestName && n.draft != nil && n.draft.root == n
}

// inDir opens a directory of a draft to work on its names. A change is begun, and end ends both.
func (n *node) inDir(names ...string) (at int, end func(), err error) {
	if !n.isDir {
		return -1, nil, unix.ENOTDIR
	}
	over, err := n.draft.change()
	if err != nil {
		return -1, nil, err
	}
	for _, name := range names {
		if n.hides(name) {
			n.draft.v.refuse("%s/%s: the manifest is hbmfs's own, and no program writes it", n.draft.shown, name)
			over()
			return -1, nil, unix.EPERM
		}
	}
	p, err := n.at()
	if err != nil {
		over()
		return -1, nil, err
	}
	return p.fd, func() { p.end(); over() }, nil
}

// takes refuses a name that no checkpoint can have, before anything is made of it. below is how many directories are below it.
func (n *node) takes(name string, isDir bool, below int) error {
	err := checkpoint.CheckEntry(path.Join(n.path(), name), isDir, below)
	if err != nil {
		n.draft.v.refuse("%q in %s: %v", name, n.draft.shown, err)
	}
	return err
}

// takesNew is takes for a name of something new.
func (n *node) takesNew(name string, isDir bool) error {
	if err := n.takes(name, isDir, 0); err != nil {
		return err
	}
	return n.draft.moreNodes()
}

// takesTree is takes for a rename from another directory, with all below it.
func (n *node) takesTree(from *node, at int, old, name string, st *unix.Statx_t) (err error) {
	below, isDir := 0, st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir && from != n {
		below, err = levels(at, old)
	}
	if err != nil {
		return err
	}
	return n.takes(name, isDir, below)
}

// levels is how many directories are below one another in a directory.
func levels(dir int, name string) (most int, err error) {
	fd, err := beneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }() // opened for reading
	const some = 1024
	for {
		entries, err := f.ReadDir(some)
		for _, e := range entries {
			if !e.IsDir() {
				continue
			}
			below, err := levels(fd, e.Name())
			if err != nil {
				return 0, err
			}
			most = max(most, below+1)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return most, err
		}
	}
}

// find looks a name up in a directory of a draft.
func (v *Volume) find(in *node, name string) (*node, *unix.Statx_t, error) {
	if !in.isDir {
		return nil, nil, unix.ENOTDIR
	}
	if in.hides(name) {
		return nil, nil, unix.ENOENT
	}
	at, err := in.at()
	if err != nil {
		return nil, nil, err
	}
	defer at.end()
	if in.draft != nil {
		in.draft.names.RLock()
		defer in.draft.names.RUnlock()
	}
	return v.foundAt(in, at.fd, name)
}

// foundAt makes the node of a name in a directory that is open. The caller has the draft's names.
func (v *Volume) foundAt(in *node, at int, name string) (*node, *unix.Statx_t, error) {
	st, err := statx(at, name)
	if err != nil {
		return nil, nil, err
	}
	return v.known(in, name, st, false)
}

// known makes the node of a file that was found at a name, or was made there.
func (v *Volume) known(in *node, name string, st *unix.Statx_t, made bool) (*node, *unix.Statx_t, error) {
	if !ordinary(st) || unix.Mkdev(st.Dev_major, st.Dev_minor) != v.device { // made past the mount; publishing names it
		return nil, nil, unix.ENOENT
	}
	v.mu.Lock()
	isNew := v.nodes[st.Ino] == nil
	v.mu.Unlock()
	if isNew && !made && in.draft != nil { // a file that the kernel had forgotten
		if err := in.draft.moreNodes(); err != nil {
			return nil, nil, err
		}
	}
	return v.seen(in, name, st, made), st, nil
}

// create makes a file, and opens it.
func (v *Volume) create(in *node, name string, req *fuse.CreateIn, out *fuse.CreateOut) (*node, *unix.Statx_t, error) {
	if fh, o, ok := v.inner.Answered(&req.InHeader); ok { // by a daemon whose answer was lost
		n, st, err := v.find(in, name)
		if err == nil && n.ino == o.Inode {
			answer(&out.OpenOut, fh, o.Backing)
			return n, st, nil
		}
	}
	at, end, err := in.inDir(name)
	if err != nil {
		return nil, nil, err
	}
	defer end()
	if err := in.takesNew(name, false); err != nil {
		return nil, nil, err
	}
	o := &opening{at: -1}
	defer func() {
		if o.at >= 0 && !o.taken {
			_ = unix.Close(o.at) // nothing was written
		}
	}()
	n, st, err := v.createAt(in, at, name, req, o)
	if err != nil {
		return nil, nil, err
	}
	if o.made != found {
		out.SetAttrTimeout(fs.ShortTimeout) // until it is written: the kernel then forgets them itself
	}
	if err = v.opened(n, o, &req.InHeader, req.Flags, &out.OpenOut); err != nil {
		v.forget(n.ino, 1)
	}
	return n, st, err
}

// createAt makes a file in a directory that is open, and its node.
func (v *Volume) createAt(in *node, at int, name string, req *fuse.CreateIn, o *opening) (*node, *unix.Statx_t, error) {
	again, _ := handover.Resent(req.Unique) // then the daemon before may have made it
	in.draft.names.RLock()
	defer in.draft.names.RUnlock()
	err := asCaller(&req.InHeader, func() (err error) {
		flags, made := unix.O_RDONLY|unix.O_NONBLOCK, readable
		if in.draft == v.side || v.inner.Passthrough() != "" {
			flags, made = int(req.Flags)&unix.O_ACCMODE|unix.O_NONBLOCK, writable
		}
		o.at, err = beneath(at, name, uint64(flags|unix.O_CREAT|unix.O_EXCL), uint64(req.Mode&0o7777))
		switch {
		case err == nil:
			o.made = made
			return v.unmask(at, name, req.Mode)
		case errors.Is(err, unix.EEXIST) && (again || req.Flags&unix.O_EXCL == 0):
			in.draft.rewritten()
			o.at, err = beneath(at, name, uint64(req.Flags)&(unix.O_ACCMODE|unix.O_TRUNC)|unix.O_NONBLOCK, 0)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	st, err := statx(o.at, "")
	if err != nil {
		return nil, nil, err
	}
	return v.known(in, name, st, o.made != found)
}

// unmask gives a new file the bits that this process's umask took. The kernel has applied the caller's umask.
func (v *Volume) unmask(at int, name string, mode uint32) error {
	if mode&v.umask == 0 {
		return nil
	}
	st, err := statx(at, name)
	if err != nil {
		return err
	}
	return unix.Fchmodat(at, name, mode&0o7777|uint32(st.Mode)&unix.S_ISGID, 0)
}

// mknod makes a plain file. A checkpoint has no others.
func (v *Volume) mknod(in *node, name string, req *fuse.MknodIn) (*node, *unix.Statx_t, error) {
	if kind := req.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != 0 {
		v.refuse("a special file in %s: a checkpoint has regular files alone, no devices, pipes and sockets", in.draft.shownAs())
		return nil, nil, unix.EPERM
	}
	return v.make(in, name, &req.InHeader, req.Mode, false, func(at int) error {
		return unix.Mknodat(at, name, unix.S_IFREG|req.Mode&0o7777, 0)
	})
}

// mkdir makes a directory in a draft.
func (v *Volume) mkdir(in *node, name string, req *fuse.MkdirIn) (*node, *unix.Statx_t, error) {
	return v.make(in, name, &req.InHeader, req.Mode, true, func(at int) error {
		return unix.Mkdirat(at, name, req.Mode&0o7777)
	})
}

// make has call make a name in a directory, which is open as at, with the caller's rights.
func (v *Volume) make(in *node, name string, h *fuse.InHeader, mode uint32, isDir bool, call func(at int) error) (*node, *unix.Statx_t, error) {
	at, end, err := in.inDir(name)
	if err != nil {
		return nil, nil, err
	}
	defer end()
	if err := in.takesNew(name, isDir); err != nil {
		return nil, nil, err
	}
	in.draft.names.RLock()
	defer in.draft.names.RUnlock()
	err = asCaller(h, func() error {
		if err := call(at); err != nil {
			return err
		}
		return v.unmask(at, name, mode)
	})
	if again, _ := handover.Resent(h.Unique); again && errors.Is(err, unix.EEXIST) {
		err = nil
	}
	if err != nil {
		return nil, nil, err
	}
	return v.foundAt(in, at, name)
}

// unlink removes a name in a draft. flags are those of unlinkat(2).
func (v *Volume) unlink(in *node, h *fuse.InHeader, name string, flags int) error {
	at, end, err := in.inDir(name)
	if err != nil {
		return err
	}
	defer end()
	if flags != 0 { // a directory, by whose path others may name its files
		in.draft.names.Lock()
		defer in.draft.names.Unlock()
	}
	st, err := statx(at, name)
	var p *opened
	if err == nil {
		if flags != 0 {
			p = v.about(in, name, st, h.Uid)
		}
		err = asCaller(h, func() error { return unix.Unlinkat(at, name, flags) })
	}
	if err == nil {
		in.draft.rewritten()
	}
	if err == nil && (st.Nlink <= 1 || flags != 0) {
		v.unnamed(st.Ino, in, name)
	}
	v.without(st.Ino, p, h.Uid)
	if again, _ := handover.Resent(h.Unique); again && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// rename renames within a draft, and notes the end of torch's DCP.
func (v *Volume) rename(req *fuse.RenameIn, from *node, old string, to *node, name string) error {
	if from.draft != to.draft || from.draft == nil {
		return unix.EXDEV
	}
	d := from.draft
	if err := v.renameIn(req, from, old, to, name); err != nil {
		return err
	}
	if to == d.root && name == Metadata {
		d.finished(true)
	}
	return nil
}

// renameIn renames, and no more.
func (v *Volume) renameIn(req *fuse.RenameIn, from *node, old string, to *node, name string) error {
	at, end, err := from.inDir(old)
	if err != nil {
		return err
	}
	defer end()
	if to.hides(name) {
		v.refuse("%s/%s: the manifest is hbmfs's own, and no program writes it", to.draft.shown, name)
		return unix.EPERM
	}
	into, err := to.at()
	if err != nil {
		return err
	}
	defer into.end()
	from.draft.names.Lock()
	defer from.draft.names.Unlock()
	st, err := statx(at, old)
	over, overErr := statx(into.fd, name)
	if err == nil {
		err = to.takesTree(from, at, old, name, st)
	}
	if err == nil && overErr == nil && req.Flags&unix.RENAME_EXCHANGE != 0 {
		err = from.takesTree(to, into.fd, name, old, over)
	}
	if err == nil {
		if overErr == nil && req.Flags&unix.RENAME_EXCHANGE == 0 && over.Ino != st.Ino {
			p := v.about(to, name, over, req.Uid)
			defer func() { v.without(over.Ino, p, req.Uid) }()
		}
		err = asCaller(&req.InHeader, func() error { return unix.Renameat2(at, old, into.fd, name, uint(req.Flags)) })
	}
	if again, _ := handover.Resent(req.Unique); again && errors.Is(err, unix.ENOENT) && overErr == nil && req.Flags == 0 {
		return nil // the daemon before has done it
	}
	if err != nil {
		return err
	}
	if overErr == nil || from == from.draft.root && old == Metadata {
		from.draft.rewritten()
	}
	switch {
	case req.Flags&unix.RENAME_EXCHANGE != 0:
		v.moved(over.Ino, from, old)
	case overErr == nil && over.Ino != st.Ino && over.Nlink <= 1 || overErr == nil && over.Mode&unix.S_IFMT == unix.S_IFDIR:
		v.unnamed(over.Ino, to, name)
	}
	v.moved(st.Ino, to, name)
	return nil
}
