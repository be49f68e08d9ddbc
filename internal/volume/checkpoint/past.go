package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// past is the state of a draft whose files are written past FUSE, by descriptors of clients.
type past struct {
	// tree is a mount of the draft's directory that no path leads to. Files are made through it. Once it is read-only, nobody can open a
	// descriptor again for writing, not even root. The kernel makes it read-only only when no file is open for writing. It is nil where
	// this process may not mount: then it serves its own user, who owns the files anyway.
	tree *os.File
	// Of files while they are published: the first of them with a lease.
	frozen []*os.File
}

// Past makes a draft one whose files are those of [Draft.Make]. tree is that of [Draft.Tree] in an earlier process, or nil.
func (d *Draft) Past(tree *os.File) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return os.ErrClosed
	}
	if tree == nil {
		if tree, err = cloneOf(d.self); err != nil {
			return err
		}
	}
	d.past = &past{tree: tree}
	d.thaw() // the earlier process may have ended while it published
	return nil
}

// Tree is a file that another process needs to go on with the draft, nil for none. It stays the draft's.
func (d *Draft) Tree() *os.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.past == nil {
		return nil
	}
	return d.past.tree
}

// Directory opens the directory.
func (h *Home) Directory() (*os.File, error) { return h.root.Open(".") }

// ID is the number of the draft's directory, which the checkpoint keeps: see [Found].
func (d *Draft) ID() (uint64, error) {
	info, err := d.dir.Stat(".")
	if err != nil {
		return 0, err
	}
	return inode(info), nil
}

func cloneOf(dir *os.File) (*os.File, error) {
	fd, err := unix.OpenTree(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	switch {
	case errors.Is(err, unix.EPERM) && os.Geteuid() != 0:
		return nil, nil //nolint:nilnil // see past.tree
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
func (p *past) setReadOnly(on bool) error {
	if p.tree == nil {
		return nil
	}
	attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if on {
		attr = unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	return unix.MountSetattr(int(p.tree.Fd()), "", unix.AT_EMPTY_PATH, &attr)
}

func (p *past) letGo() {
	for _, f := range p.frozen {
		_ = f.Close() // and the lease with it
	}
	p.frozen = nil
}

func (p *past) end() {
	if p == nil {
		return
	}
	p.letGo()
	if p.tree != nil {
		_ = p.tree.Close() // nothing was written to it
	}
}

// mostLeases is how many leases a draft holds at once. The other files are read-only, and were looked at.
const mostLeases = 1024

// closing is how long a file may still be open: a driver may close its own descriptor a moment after its user did.
const closing = 300 * time.Millisecond

// freeze makes files read-only, and fails with [Writing] where anybody has one open for writing, or maps it so.
func (d *Draft) freeze(ctx context.Context, files []File) error {
	if d.past == nil {
		return nil
	}
	end := time.Now().Add(closing)
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.dir.Chmod(file.Name, 0o444&d.mode); err != nil {
			return err
		}
		f, err := d.leased(file.Name)
		for errors.Is(err, ErrOpen) && time.Now().Before(end) && pause.For(ctx, time.Millisecond) == nil {
			f, err = d.leased(file.Name)
		}
		switch {
		case err != nil:
			return err
		case len(d.past.frozen) < mostLeases:
			d.past.frozen = append(d.past.frozen, f)
		default:
			_ = f.Close() // opened for reading
		}
	}
	// A file that has no name yet, or none any more, has no lease either.
	switch err := d.past.setReadOnly(true); {
	case errors.Is(err, unix.EBUSY):
		return failf(ErrOpen, "a file that was given, and is none of the %d, is still open for writing, or mapped: close it, then publish again", len(files))
	case err != nil:
		return fmt.Errorf("make the draft's mount read-only: %w", err)
	}
	return nil
}

// stillFrozen fails where a process has begun to open a file for writing since, past the volume.
func (p *past) stillFrozen() error {
	if p == nil {
		return nil
	}
	for _, f := range p.frozen {
		if held, err := unix.FcntlInt(f.Fd(), unix.F_GETLEASE, 0); err != nil || held != unix.F_RDLCK {
			return errors.Join(&Writing{f.Name()}, err)
		}
	}
	return nil
}

// thaw undoes freeze, but for the files' modes: their writers have descriptors.
func (d *Draft) thaw() {
	if d.past == nil {
		return
	}
	d.past.letGo()
	_ = d.past.setReadOnly(false) // it goes with the draft
}

const page = 4096 // direct writes fill the last one

// Making is a file of a draft that is being written.
type Making struct {
	Name string
	Size int64
	Pen  *os.File // for the writer, who closes it
	// Read is the same file, open for reading. A file without a name is there as long as somebody has it open. It is nil where the file
	// has its name already.
	Read *os.File
	// Doubt says that Read may have told an earlier process of bytes that the disk has lost, which it does once.
	Doubt bool
	lost  error // some are
}

// Make makes a file of a draft, for its writer alone (mode 0600), with its blocks allocated. The file belongs to the user as whom this
// thread acts, and the kernel asks that user's quota. It has no name until [Draft.Link]; with named, or where the filesystem has no such files,
// it has its name at once. [fs.ErrExist]: the name is taken.
func (d *Draft) Make(name string, size int64, named bool) (m *Making, err error) {
	if err := CheckEntry(name, false, 0); err != nil {
		return nil, failf(ErrInvalid, "file %q: %v", name, err)
	}
	if size < 0 || size > math.MaxInt64-page {
		return nil, failf(ErrInvalid, "file %q cannot have %d bytes", name, size)
	}
	root, end, err := d.penRoot()
	if err != nil {
		return nil, err
	}
	defer end()
	m = &Making{Name: name, Size: size}
	if !named {
		m.Pen, err = root.OpenFile(".", os.O_RDWR|unix.O_TMPFILE, 0o600)
		named = errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR)
	}
	if named {
		if err = root.MkdirAll(path.Dir(name), 0o777); err == nil {
			m.Pen, err = root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("make file %q of checkpoint %s: %w", name, d.path, err)
	}
	if err = allocate(m.Pen, (size+page-1)/page*page); err == nil && !named {
		m.Read, err = again(m.Pen, os.O_RDONLY)
	}
	if err != nil {
		_ = m.Pen.Close() // nothing was written
		if named {
			_ = root.Remove(name)
		}
		return nil, fmt.Errorf("make file %q of %d bytes of checkpoint %s: %w", name, size, d.path, err)
	}
	return m, nil
}

// Again opens a file that [Draft.Make] has made once more for writing.
func (d *Draft) Again(m *Making) (*os.File, error) {
	root, end, err := d.penRoot()
	if err != nil {
		return nil, err
	}
	defer end()
	return reopen(root, m, os.O_RDWR)
}

// Link gives a file its name in the draft, once it has its size and its bytes are on the disk: sums are of them. It closes Read.
func (d *Draft) Link(m *Making, sums []uint32) error {
	root, end, err := d.penRoot()
	if err != nil {
		return err
	}
	defer end()
	info, err := d.look(root, m)
	if err != nil {
		return fmt.Errorf("file %q of checkpoint %s: %w", m.Name, d.path, err)
	}
	if info.Size() != m.Size {
		return failf(ErrInvalid, "file %q has %d bytes, and should have %d: cut it before it is sealed", m.Name, info.Size(), m.Size)
	}
	if err := d.proven(root, m, sums); err != nil || m.Read == nil {
		return err
	}
	if err := link(root, m); err != nil {
		return fmt.Errorf("give file %q of checkpoint %s its name: %w", m.Name, d.path, err)
	}
	err = m.Read.Close()
	m.Read = nil
	return err
}

func (d *Draft) look(root *os.Root, m *Making) (fs.FileInfo, error) {
	if m.Read != nil {
		return m.Read.Stat()
	}
	return root.Lstat(m.Name)
}

func link(root *os.Root, m *Making) error {
	if err := root.MkdirAll(path.Dir(m.Name), 0o777); err != nil {
		return err
	}
	dir, err := root.Open(path.Dir(m.Name))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // the names are synced when they are published
	err = unix.Linkat(unix.AT_FDCWD, pathOf(m.Read), int(dir.Fd()), path.Base(m.Name), unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EEXIST) && isSame(root, m) { // a process that was killed here has done it
		return nil
	}
	return err
}

func isSame(root *os.Root, m *Making) bool {
	named, err := root.Lstat(m.Name)
	if err != nil {
		return false
	}
	opened, err := m.Read.Stat()
	return err == nil && os.SameFile(named, opened)
}

// penRoot opens the draft's directory as it is for making files: in the draft's own mount, where there is one.
func (d *Draft) penRoot() (root *os.Root, end func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ended:
		return nil, nil, fmt.Errorf("checkpoint %s: it was published or dropped before: %w", d.path, os.ErrClosed)
	case d.past == nil:
		return nil, nil, errors.New("checkpoint: internal error: Make before Past")
	case d.past.tree == nil:
		root, err = d.dir.OpenRoot(".")
	default:
		root, err = os.OpenRoot(pathOf(d.past.tree))
	}
	if err != nil {
		return nil, nil, err
	}
	return root, func() { _ = root.Close() }, nil // its new directories are synced when it is published
}

// pathOf is a path to an open file, which needs no right but that to the file.
func pathOf(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

func again(f *os.File, how int) (*os.File, error) {
	fd, err := unix.Open(pathOf(f), how|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// allocate has the filesystem find all blocks, so that a full disk, or a quota that is used up, is known before anything is written.
// Where a filesystem cannot, the file only gets its size.
func allocate(f *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	for {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return f.Truncate(size)
		}
		return os.NewSyscallError("fallocate", err)
	}
}
