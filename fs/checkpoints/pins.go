package checkpoints

import (
	"os"

	"golang.org/x/sys/unix"
)

// An inode that the kernel evicts takes its write-back errors along. Descriptors keep inodes, but end with their daemon. So the holder of the mount
// keeps one inotify instance, whose watches keep inodes until the next daemon has descriptors of its own.

// openPins makes the inotify instance. Without one nothing is pinned.
func (v *Volume) openPins() {
	if v.opt.Life == nil {
		return
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err == nil {
		v.pins = os.NewFile(uintptr(fd), keptPins)
		err = v.opt.Life.Keep(keptPins, v.pins)
	}
	if err != nil {
		v.unkept(err)
	}
}

// pin keeps the inode of a file whose bytes may not be on the disk. The caller has use.
func (v *Volume) pin(n *node) {
	if v.pins == nil || n.pinned || n.draft == v.side {
		return
	}
	var events [4096]byte
	_, _ = unix.Read(int(v.pins.Fd()), events[:]) // of watches that have ended: the kernel keeps 16,384
	wd, err := unix.InotifyAddWatch(int(v.pins.Fd()), procPath(n.file), unix.IN_DELETE_SELF)
	n.pinned, n.pinID = err == nil, uint32(wd) // the limit of watches is no reason to refuse a file
}

// unpin lets an inode go. The kernel has done so where the file was removed.
func (v *Volume) unpin(n *node) {
	if n.pinned {
		_, _ = unix.InotifyRmWatch(int(v.pins.Fd()), n.pinID)
		n.pinned = false
	}
}
