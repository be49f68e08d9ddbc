package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Volume is a directory of checkpoints that a daemon looks after: files of what is published there are read-only, and nobody keeps
// one open for writing.
type Volume struct {
	Root  *os.Root    // the directory; it stays the caller's
	Path  string      // its path, as messages name it
	Umask fs.FileMode // of the writer: bits that what is published does not have
	Past  bool        // files are those of [Draft.Make], which a client writes past FUSE
}

// BeginIn is [Begin] in a volume. The calling thread has the writer's rights: see package asuser.
func BeginIn(ctx context.Context, v Volume, name string, part Part) (*Draft, error) {
	d, err := newIn(v, name, part)
	if err != nil {
		return nil, err
	}
	if d.parent, err = v.Root.OpenRoot("."); err == nil {
		err = d.begin(ctx)
	}
	if err == nil && v.Past {
		d.tree, err = cloneOf(d.self)
	}
	if err != nil && d.dir != nil {
		_ = d.parent.Remove(d.base()) // it is empty
	}
	return d.orFailed("begin", err)
}

func newIn(v Volume, name string, part Part) (*Draft, error) {
	if err := part.check(); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, failf(ErrInvalid, "%q cannot be a checkpoint: %v", name, err)
	}
	v.Umask &= 0o777
	return &Draft{path: filepath.Join(v.Path, name), name: name, part: part, volume: &v}, nil
}

// Resume goes on with a draft of a process that has ended, which has left the files of [Draft.Kept]. [ErrExists]: it was
// published, and is on the disk.
func Resume(v Volume, name string, part Part, kept Kept) (*Draft, error) {
	d, err := newIn(v, name, part)
	if err != nil {
		return nil, err
	}
	d.tree = kept.Tree
	if d.parent, err = v.Root.OpenRoot("."); err != nil {
		return d.orFailed("go on with", err)
	}
	d.lock = &lock{dir: d.parent, base: hidden(name, lockEnding), file: kept.Lock}
	switch err = d.open(); {
	case errors.Is(err, fs.ErrNotExist) && kept.isAt(d.parent, name):
		if err = syncDir(d.parent, "."); err == nil {
			err = failf(ErrExists, "it was published before")
		}
	case err == nil && !kept.isAt(d.parent, d.base()):
		err = failf(ErrForeign, "%s is no longer the draft that was made: it was moved or removed meanwhile", d.Dir())
	case err == nil:
		d.thaw()
		err = d.hide()
	}
	return d.orFailed("go on with", err)
}

// Kept is what the process that goes on with a draft needs: open files, and which directory it was.
type Kept struct {
	Lock     *os.File // nobody else takes the lock while it is open
	Tree     *os.File // nil where there is none
	Dev, Ino uint64   // of the draft's directory
}

// Kept gives the files that another process needs to go on. They stay the draft's.
func (d *Draft) Kept() (Kept, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return Kept{}, os.ErrClosed
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(d.self.Fd()), &st); err != nil {
		return Kept{}, err
	}
	return Kept{d.lock.file, d.tree, st.Dev, st.Ino}, nil
}

// isAt tells whether a name in a directory is that of the draft's directory.
func (k *Kept) isAt(in *os.Root, name string) bool {
	info, err := in.Lstat(name)
	if err != nil {
		return false
	}
	dev, ino := identity(info)
	return dev == k.Dev && ino == k.Ino
}

// cloneOf makes a mount of a directory that no path leads to. It is how files are given to clients: once the mount is read-only, no
// descriptor that came through it can be opened again for writing, by root neither, and the kernel makes it read-only only when none is.
// A process that may not mount gets none, and no error: it serves its own user, who owns the files anyway.
func cloneOf(dir *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	switch {
	case errors.Is(err, unix.EPERM) && os.Geteuid() != 0:
		return nil, nil //nolint:nilnil // see above
	case err != nil:
		return nil, fmt.Errorf("clone the mount of the draft, which needs CAP_SYS_ADMIN and Linux 5.12: %w", err)
	}
	tree := os.NewFile(uintptr(fd), dir.Name())
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return nil, errors.Join(fmt.Errorf("make the clone of the draft's mount private: %w", err), tree.Close())
	}
	return tree, nil
}

// setReadOnly makes the draft's own mount read-only, or writable again.
func (d *Draft) setReadOnly(on bool) error {
	if d.tree == nil {
		return nil
	}
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if on {
		attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	return unix.MountSetattr(int(d.tree.Fd()), "", unix.AT_EMPTY_PATH, &attr)
}
