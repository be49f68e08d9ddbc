package cache

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

// readOnly is a private, read-only mount of the directory that no path leads to. To open a descriptor that came through
// it again for writing is EROFS, for root as well. A process with CAP_SYS_ADMIN in this mount namespace can still clone
// the descriptor's mount and make the clone writable: the kernel cannot forbid it. The mount keeps no access times, so
// that the kernel has 120 ns less to do for each passthrough read.
type readOnly struct {
	once sync.Once
	fd   int
	err  error // why there is none
	made bool
}

func (r *readOnly) close() error {
	if !r.made {
		return nil
	}
	r.made = false
	return unix.Close(r.fd)
}

// readOnlyMount clones the mount that dir lies on (Linux 5.12; CAP_SYS_ADMIN).
func readOnlyMount(dir int) (int, error) {
	fd, err := unix.OpenTree(dir, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("clone the mount of the source: %w", err)
	}
	// Private, since later mounts on the source must not appear in it.
	attr := unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOATIME, Attr_clr: unix.MOUNT_ATTR__ATIME, Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = unix.Close(fd) // nothing was done with it
		return -1, fmt.Errorf("make the clone of the source's mount read-only: %w", err)
	}
	return fd, nil
}

// ReadOnlyMount reports whether OpenForOthers opens through a read-only mount: nil if it does, or why not.
func (d *Dir) ReadOnlyMount() error {
	d.readOnly.once.Do(func() {
		d.readOnly.fd, d.readOnly.err = readOnlyMount(d.fd)
		d.readOnly.made = d.readOnly.err == nil
	})
	return d.readOnly.err
}

// ErrOtherMount says that an object lies on another mount than the source's directory.
var ErrOtherMount = errors.New("lies on another mount than the source")

// OpenForOthers opens o as OpenObject does, for another process: through a mount that is read-only if this process may
// make one. Mounts below the source are not part of it. An object there is an error that wraps [ErrOtherMount], never a
// descriptor that could be written through. It waits for nobody: a leased file is [ErrFileLeased].
func (d *Dir) OpenForOthers(o *layout.Object) (fd int, err error) {
	if d.ReadOnlyMount() != nil {
		fd, _, err = d.open(o)
		return fd, err
	}
	fd, _, err = d.openBelow(d.readOnly.fd, o)
	if !errors.Is(err, ErrChanged) {
		return fd, err
	}
	switch plain, _, plainErr := d.open(o); {
	case plainErr == nil:
		_ = unix.Close(plain) // it tells that the object is there
	case !errors.Is(plainErr, ErrFileLeased): // which tells it, too
		return -1, err
	}
	return -1, fmt.Errorf("%q: %w", o.Name, ErrOtherMount)
}
