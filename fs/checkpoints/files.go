package checkpoints

import (
	"errors"
	"os"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs"
)

// writes tells whether an open is for writing.
func writes(flags uint32) bool {
	return flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0
}

// pen tells whether a program can write to a file that it opens.
func pen(flags uint32) bool { return flags&unix.O_ACCMODE != unix.O_RDONLY }

// openFile opens a file of a draft for a request.
func (v *Volume) openFile(n *node, h *fuse.InHeader, flags uint32, out *fuse.OpenOut) error {
	if fh, o, ok := v.inner.Answered(h); ok { // by a daemon whose answer was lost
		answer(out, fh, o.Backing)
		return nil
	}
	if n.isDir {
		return unix.EISDIR
	}
	at, err := n.at()
	if err != nil {
		return err
	}
	defer at.end()
	return v.opened(n, &opening{at: at.fd}, h, flags, out)
}

// opening is a descriptor of a file that is being opened.
type opening struct {
	at    int    // names the file
	made  making // for this open
	taken bool   // at is the node's file now
}

// making tells whether the file was made for an open, by a descriptor with rights that its mode forbids.
type making uint8

const (
	found    making = iota
	readable        // made, by a descriptor for reading
	writable        // made, by one as the program has asked for
)

// file opens the file for reading.
func (o *opening) file() (fd int, err error) {
	if o.made == readable {
		o.taken = true
		return o.at, nil
	}
	fd, err = readOnly(o.at)
	if errors.Is(err, unix.EACCES) && o.made == writable { // this process is no root
		return unix.FcntlInt(uintptr(o.at), unix.F_DUPFD_CLOEXEC, 0)
	}
	return fd, err
}

// opened books an open. Permission was asked for by the kernel.
func (v *Volume) opened(n *node, o *opening, h *fuse.InHeader, flags uint32, out *fuse.OpenOut) error {
	n.use.Lock()
	defer n.use.Unlock()
	if (n.file < 0 || n.waits) && !v.room.files.Reserve(h.Uid, 1) {
		v.refuse("open a file of %s: user %d has as many files of drafts open as it may", n.draft.shownAs(), h.Uid)
		return unix.ENFILE
	}
	if n.waits {
		v.room.waiting.Book(n.opener, -1)
		n.waits, n.opener = false, h.Uid
	}
	if n.file < 0 {
		fd, err := o.file()
		if err != nil {
			v.room.files.Book(h.Uid, -1)
			return err
		}
		v.mu.Lock()
		n.file, n.opener = fd, h.Uid
		v.mu.Unlock()
	}
	if n.written = n.written || o.made != found || writes(flags); n.written {
		v.pin(n)
	}
	v.mayMap(n, flags)
	fh, ok := uint64(0), false
	book := func(id int32) {
		if fh, ok = v.inner.Book(h, fs.Opened{Inode: n.ino, Backing: id, Writes: pen(flags)}); ok {
			v.mu.Lock()
			n.backing = id
			v.has(fh, n, pen(flags))
			v.mu.Unlock()
		}
	}
	switch {
	case n.opens > 0: // the kernel refuses to mix ways of opening a file
		book(n.backing)
	case n.draft == v.side || !v.inner.Register(n.file, func(id int32) {
		if book(id); !ok {
			v.inner.Unregister(id)
		}
	}):
		book(0)
	}
	if !ok {
		v.idle(n)
		return unix.ENFILE
	}
	if n.backing == 0 {
		if err := v.plainOpen(fh, n, o, flags); err != nil {
			v.closed(n, fh)
			return err
		}
	}
	answer(out, fh, n.backing)
	if n.draft == v.side && isTracker(n.called()) && writes(flags) {
		out.OpenFlags &^= fuse.FOPEN_NOFLUSH
	}
	return nil
}

// has books an open of a file. The caller has mu.
func (v *Volume) has(fh uint64, n *node, writes bool) {
	n.opens++
	v.handles[fh] = n
	if writes {
		v.pens[fh] = n
	}
}

// mayMap notes whether the program can map the file for writing, which takes a descriptor for reading and writing.
func (v *Volume) mayMap(n *node, flags uint32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	how := flags & unix.O_ACCMODE
	n.mapped = n.mapped || how != unix.O_RDONLY && how != unix.O_WRONLY
}

// mapped tells whether a program could map a file of the draft for writing. Of files that were made past the mount nobody knows.
func (d *mountedDraft) mapped(f *os.File) bool {
	st, err := statx(int(f.Fd()), "")
	if err != nil {
		return true
	}
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	n := d.v.nodes[st.Ino]
	return n == nil || n.draft != d || n.generation != generation(st) || n.mapped
}

func answer(out *fuse.OpenOut, fh uint64, backing int32) {
	out.Fh, out.BackingID = fh, backing
	out.OpenFlags = fuse.FOPEN_NOFLUSH
	if backing != 0 {
		out.OpenFlags |= fuse.FOPEN_PASSTHROUGH
	}
}

// idle closes descriptors that a file needs only while it is open. The caller has use.
func (v *Volume) idle(n *node) {
	if n.opens > 0 {
		return
	}
	v.settle(n)
	v.mu.Lock()
	defer v.mu.Unlock()
	if n.file >= 0 {
		v.room.files.Book(n.opener, -1)
	}
	if n.file >= 0 && !n.waits {
		_ = unix.Close(n.file) // opened for reading
		n.file = -1
		v.unpin(n)
	}
	n.backing = 0
	v.mayGo(n)
}

// closed ends an open, in an order in which the next daemon can go on anywhere. The caller has use.
func (v *Volume) closed(n *node, fh uint64) {
	v.mu.Lock()
	delete(v.handles, fh)
	delete(v.pens, fh)
	n.opens--
	last := n.opens == 0
	backing := n.backing
	v.mu.Unlock()
	if last && backing != 0 {
		v.inner.Closing(fh)
		v.inner.Unregister(backing)
	}
	v.inner.Unbook(fh)
	if last {
		v.idle(n)
	}
}

// release ends an open file. The kernel may say it again to the next daemon.
func (v *Volume) release(fh uint64) {
	v.mu.Lock()
	n := v.handles[fh]
	delete(v.pens, fh) // publishing does not wait for the rest
	if fd, ok := v.plain[fh]; ok {
		_ = unix.Close(fd) // each write was answered
		delete(v.plain, fh)
	}
	v.mu.Unlock()
	if n != nil {
		n.use.Lock()
		defer n.use.Unlock()
		v.closed(n, fh)
	}
}

// plainOpen opens a file that is open without passthrough.
func (v *Volume) plainOpen(fh uint64, n *node, o *opening, flags uint32) error {
	if o.made != writable {
		_, err := v.plainFile(fh, n, flags)
		return err
	}
	fd, err := unix.FcntlInt(uintptr(o.at), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.plain[fh] = fd
	return nil
}

// plainAgain is plainFile for a file that was opened before. If the daemon before had its descriptor, the file is opened for writing only while its draft
// may change.
func (v *Volume) plainAgain(fh uint64, n *node, flags uint32) (int, error) {
	v.mu.Lock()
	_, ok := v.plain[fh]
	v.mu.Unlock()
	if !ok && writes(flags) {
		end, err := n.draft.change()
		if err != nil {
			return -1, err
		}
		defer end()
	}
	return v.plainFile(fh, n, flags)
}

// plainFile returns the descriptor of a file that is open without passthrough. The next daemon opens it again.
func (v *Volume) plainFile(fh uint64, n *node, flags uint32) (int, error) {
	v.mu.Lock()
	fd, ok := v.plain[fh]
	v.mu.Unlock()
	if ok {
		return fd, nil
	}
	at, err := n.at()
	if err != nil {
		return -1, err
	}
	defer at.end()
	mode := unix.O_RDONLY
	if writes(flags) {
		mode = unix.O_RDWR // the kernel may read a page to write a part of it
	}
	if fd, err = unix.Open(procPath(at.fd), mode|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return -1, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if other, ok := v.plain[fh]; ok {
		_ = unix.Close(fd) // another thread was first
		return other, nil
	}
	v.plain[fh] = fd
	return fd, nil
}

// writable calls do with a descriptor by which this process may change the file of a node. It is that of an open file without passthrough,
// or one of its own.
func (n *node) writable(fh uint64, do func(fd int) error) error {
	v := n.draft.v
	v.mu.Lock()
	fd, ok := v.plain[fh]
	if ok {
		var err error
		if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			ok = false
		}
	}
	v.mu.Unlock()
	if ok {
		return errors.Join(do(fd), unix.Close(fd))
	}
	at, err := n.at()
	if err != nil {
		return err
	}
	defer at.end()
	if fd, err = unix.Open(procPath(at.fd), unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return err
	}
	return errors.Join(do(fd), unix.Close(fd))
}

// set changes attributes.
func (n *node) set(in *fuse.SetAttrIn) error {
	at, err := n.at()
	if err != nil {
		return err
	}
	defer at.end()
	if size, ok := in.GetSize(); ok {
		if err := n.fits(size); err != nil {
			return err
		}
		witness, held, err := n.witness(at.fd)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(witness) }() // it is synced where that matters
		cut := func() error {
			return n.writable(in.Fh, func(fd int) error { return unix.Ftruncate(fd, int64(size)) })
		}
		if in.Valid&fuse.FATTR_FH != 0 { // the descriptor is open for writing, even if the mode has changed
			err = cut()
		} else {
			err = asCaller(&in.InHeader, func() error { return unix.Truncate(procPath(at.fd), int64(size)) })
		}
		switch {
		case err != nil:
			return err
		case size == 0:
			n.emptied()
		case !held: // the rest of the last page was written, and nobody waits for that
			if err := unix.Fsync(witness); err != nil {
				return n.lose(err)
			}
		}
	}
	return setTo(at.fd, in)
}

// setTo changes attributes of the file that at names.
func setTo(at int, in *fuse.SetAttrIn) error {
	return asCaller(&in.InHeader, func() error {
		uid, gid := -1, -1
		if u, ok := in.GetUID(); ok {
			uid = int(u)
		}
		if g, ok := in.GetGID(); ok {
			gid = int(g)
		}
		if uid >= 0 || gid >= 0 {
			if err := unix.Fchownat(at, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
				return err
			}
		}
		if mode, ok := in.GetMode(); ok {
			if err := unix.Chmod(procPath(at), mode&0o7777); err != nil {
				return err
			}
		}
		if in.Valid&(fuse.FATTR_ATIME|fuse.FATTR_MTIME) == 0 {
			return nil
		}
		times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
		for i, t := range []struct {
			set, now uint32
			sec      uint64
			nsec     uint32
		}{{fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec}, {fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec}} {
			switch {
			case in.Valid&t.now != 0:
				times[i] = unix.Timespec{Nsec: unix.UTIME_NOW}
			case in.Valid&t.set != 0:
				times[i] = unix.Timespec{Sec: int64(t.sec), Nsec: int64(t.nsec)}
			}
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(at), times, 0)
	})
}
