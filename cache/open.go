package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/layout"
)

// ErrFileLeased says that another process has a write lease of a file (F_SETLEASE, as file servers take them). The kernel has
// told it that somebody wants to read.
var ErrFileLeased = errors.New("its holder of a lease has not let go of it yet: try again")

// whenUnleased calls open again until nobody has a lease of the file, or a time is over, or ctx ends.
func whenUnleased(ctx context.Context, most time.Duration, open func() error) error {
	for began := time.Now(); ; {
		err := open()
		if !errors.Is(err, ErrFileLeased) || time.Since(began) > most {
			return err
		}
		if err := pause.For(ctx, pause.Look); err != nil {
			return err
		}
	}
}

// open opens an object without leaving the root, in one system call where the kernel has openat2 (Linux 5.6). It does
// not wait: a file that is leased is ErrFileLeased.
func (d *Dir) open(o *layout.Object) (fd int, at stamp, err error) { return d.openBelow(d.fd, o) }

func (d *Dir) openBelow(dir int, o *layout.Object) (fd int, at stamp, err error) {
	// O_NONBLOCK: a shard that became a pipe must not wait for its writer.
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	name := o.Name
	for range 100 { // EAGAIN: something was renamed meanwhile. A leased file gives this error, too
		fd, err = unix.Openat2(dir, name, &how)
		if errors.Is(err, unix.EXDEV) && name == o.Name { // by an absolute link, which may lead below the root all the same
			if to, missing := d.resolve([]openDir{{fd: d.fd}}, name); missing == nil && to.name != name {
				name = to.name
				continue
			}
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	// An old kernel, or a sandbox that does not know the call, or a path that is longer than a call takes (PATH_MAX).
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENAMETOOLONG) {
		fd, err = d.openSlowly(dir, o)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOTDIR):
		return -1, at, changed(o, "it is gone")
	case errors.Is(err, unix.EAGAIN):
		return -1, at, fmt.Errorf("open %q: %w", o.Name, ErrFileLeased)
	case err != nil:
		return -1, at, fmt.Errorf("open %q: %w", o.Name, err)
	}
	if at, err = d.stampOf(fd); err == nil && !at.is(o.Version) {
		err = changed(o, "it is version "+at.version()+", listed as "+o.Version)
	}
	if err == nil { // io_uring, in whose hands a client may put it, takes the flag to heart
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)
	}
	if err != nil {
		_ = unix.Close(fd) // opened for reading: nothing is lost
		return -1, at, err
	}
	return fd, at, nil
}

// openSlowly opens an object below dir as openat2 does, component by component.
func (d *Dir) openSlowly(dir int, o *layout.Object) (int, error) {
	root := d.root
	if dir != d.fd { // the read-only mount: a file that is opened through the other could be written to
		var err error
		if root, err = os.OpenRoot("/proc/self/fd/" + strconv.Itoa(dir)); err != nil {
			return -1, err
		}
		defer func() { _ = root.Close() }() // opened for reading: nothing is lost
	}
	f, err := root.OpenFile(filepath.FromSlash(o.Name), unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}
