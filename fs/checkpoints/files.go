package checkpoints

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/fs"
)

// writes tells whether an open is for writing.
func writes(flags uint32) bool {
	return flags&unix.O_ACCMODE != unix.O_RDONLY || flags&unix.O_TRUNC != 0
}

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
	defer func() { _ = unix.Close(at) }() // opened to name it
	return v.opened(n, at, h, flags, out)
}

// opened books an open of the file that at names. Permission was asked for by the kernel.
func (v *Volume) opened(n *node, at int, h *fuse.InHeader, flags uint32, out *fuse.OpenOut) error {
	n.use.Lock()
	defer n.use.Unlock()
	if n.file < 0 {
		fd, err := readOnly(at)
		if err != nil {
			return err
		}
		v.mu.Lock()
		n.file = fd
		v.mu.Unlock()
	}
	fh, ok := uint64(0), false
	book := func(id int32) {
		if fh, ok = v.inner.Book(h, fs.Opened{Inode: n.ino, Backing: id}); ok {
			v.mu.Lock()
			n.backing = id
			n.opens++
			v.mu.Unlock()
		}
	}
	switch {
	case n.opens > 0: // the kernel refuses to mix ways of opening a file
		book(n.backing)
	case !v.inner.Register(n.file, func(id int32) {
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
		if _, err := v.plainFile(fh, n, flags); err != nil {
			v.inner.Unbook(fh)
			v.closed(n)
			return err
		}
	}
	answer(out, fh, n.backing)
	return nil
}

func answer(out *fuse.OpenOut, fh uint64, backing int32) {
	out.Fh, out.BackingID = fh, backing
	out.OpenFlags = fuse.FOPEN_NOFLUSH
	if backing != 0 {
		out.OpenFlags |= fuse.FOPEN_PASSTHROUGH
	}
}

// idle closes what a file needs only while it is open. The caller has use.
func (v *Volume) idle(n *node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n.opens > 0 {
		return
	}
	if n.file >= 0 {
		_ = unix.Close(n.file) // opened for reading
		n.file = -1
	}
	n.backing = 0
	v.mayGo(n)
}

// closed ends an open. The caller has use.
func (v *Volume) closed(n *node) {
	v.mu.Lock()
	n.opens--
	last := n.opens == 0
	backing := n.backing
	v.mu.Unlock()
	if last {
		if backing != 0 {
			v.inner.Unregister(backing)
		}
		v.idle(n)
	}
}

// release ends an open file. The kernel may say it again to the next daemon.
func (v *Volume) release(fh uint64) {
	o, ok := v.inner.Booked(fh)
	if !ok {
		return
	}
	v.mu.Lock()
	n := v.nodes[o.Inode]
	if fd, ok := v.plain[fh]; ok {
		_ = unix.Close(fd) // each write was answered
		delete(v.plain, fh)
	}
	v.mu.Unlock()
	if n != nil {
		n.use.Lock()
		v.closed(n)
		n.use.Unlock()
	}
	v.inner.Unbook(fh)
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
	defer func() { _ = unix.Close(at) }() // opened to name it
	mode := unix.O_RDONLY
	if writes(flags) {
		mode = unix.O_RDWR // the kernel may read a page to write a part of it
	}
	if fd, err = unix.Open(procPath(at), mode|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
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

// writable opens the file of a node for this process to change it, and calls do.
func (n *node) writable(do func(fd int) error) error {
	at, err := n.at()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }() // opened to name it
	fd, err := unix.Open(procPath(at), unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(fd), unix.Close(fd))
}

// sync has a file or directory written to the disk.
func (n *node) sync(data bool) error {
	at, err := n.at()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }() // opened to name it
	fd, err := readOnly(at)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // it is synced
	if data {
		return unix.Fdatasync(fd)
	}
	return unix.Fsync(fd)
}

// set changes attributes.
func (n *node) set(in *fuse.SetAttrIn) error {
	at, err := n.at()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(at) }() // opened to name it
	if size, ok := in.GetSize(); ok {
		cut := func() error {
			return n.writable(func(fd int) error { return unix.Ftruncate(fd, int64(size)) })
		}
		if in.Valid&fuse.FATTR_FH != 0 { // the descriptor is open for writing, whatever the mode says by now
			err = cut()
		} else {
			err = asCaller(&in.InHeader, func() error { return unix.Truncate(procPath(at), int64(size)) })
		}
		if err != nil {
			return err
		}
	}
	return setTo(at, in)
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
