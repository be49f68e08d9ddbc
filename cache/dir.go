package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/layout"
)

// ErrChanged says that an object is no longer the one that was listed: replaced, rewritten, cut or removed.
var ErrChanged = errors.New("changed since the dataset was mounted: mount it again to see the new version")

// ErrDamaged says that the bytes of an object differ from the dataset's description of them.
var ErrDamaged = errors.New("the bytes are damaged")

// Dir is an origin that reads the files below one directory. Names that leave the directory, symbolic links among
// them, are refused. It is safe for concurrent use.
type Dir struct {
	path   string
	paths  []string // by which absolute links lead into it
	only   string   // the one file that is listed, "" for all
	within string   // the directory below the root that names are relative to, with a slash at its end; "" but for a snapshot of the Hub
	by     stampBy
	root   *os.Root
	fd     int // the same directory, for openat2
	files  *filePool
	noACL  sync.Map // devices whose files have no access control lists

	readOnly readOnly
}

// OpenDir opens a directory, or one file, as an origin. maxOpen bounds the file descriptors that reads keep open.
func OpenDir(source string, maxOpen int) (*Dir, error) {
	abs, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(abs)
	if meant := address.Meant(source); err != nil && meant != "" {
		return nil, fmt.Errorf("open the source: %w: an address has two slashes, as in %s", err, meant)
	} else if err != nil {
		return nil, fmt.Errorf("open the source: %w", err)
	}
	d := &Dir{path: abs}
	switch {
	case info.Mode().IsRegular():
		d.path, d.only = filepath.Split(abs)
	case !info.IsDir():
		return nil, fmt.Errorf("open the source: %s is neither a directory nor a file", source)
	}
	root, within := snapshot(d.path)
	d.within = within
	return d, d.openRoot(root, maxOpen)
}

// snapshot returns the root of a directory, and where the directory is in it. A snapshot in the cache of Hugging Face's Hub
// (models--ORG--NAME/snapshots/COMMIT) is links to files of ../../blobs, so its root is the repository's directory.
func snapshot(dir string) (root, within string) {
	found := regexp.MustCompile(`^(.*/(?:models|datasets|spaces)--[^/]+)/(snapshots/[0-9a-f]{40}(?:/.*)?)$`).FindStringSubmatch(filepath.Clean(dir))
	if found == nil {
		return dir, ""
	}
	return found[1], found[2] + "/"
}

// OpenDirAt opens the directory of a file as an origin, even if another path leads to it now. It is listed
// already.
func OpenDirAt(f *os.File, path string, maxOpen int) (*Dir, error) {
	d := &Dir{path: path}
	_, d.within = snapshot(path)
	return d, d.openRoot(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), maxOpen)
}

func (d *Dir) openRoot(path string, maxOpen int) (err error) {
	if d.root, err = os.OpenRoot(path); err != nil {
		return fmt.Errorf("open the source: %w", err)
	}
	if d.fd, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		_ = d.root.Close()
		return fmt.Errorf("open the source: %w", err)
	}
	top, _ := snapshot(d.path)
	d.paths = []string{strings.TrimRight(top, "/")}
	if real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", d.fd)); err == nil { // the path may lead to the mount by now
		d.paths = append(d.paths, strings.TrimRight(real, "/"))
	}
	d.files = newFilePool(maxOpen, d.open, d.stampOf)
	return nil
}

// File opens the directory for [OpenDirAt].
func (d *Dir) File() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the source again: %w", err)
	}
	return os.NewFile(uintptr(fd), d.path), nil
}

// PinChangeTime makes the time of the last change (ctime) part of every version, which no program can put back. It is
// called before List. A change of permissions, of the owner, of the name or of the number of links is another version then.
func (d *Dir) PinChangeTime() { d.by = byChangeTime }

// Path returns the absolute path of the directory.
func (d *Dir) Path() string { return d.path }

// Close closes all descriptors. Files that are borrowed stay open until they are given back.
func (d *Dir) Close() error {
	d.files.close()
	return errors.Join(d.readOnly.close(), unix.Close(d.fd), d.root.Close())
}

// ReadAt reads a listed object. It implements [layout.Origin].
func (d *Dir) ReadAt(ctx context.Context, o *layout.Object, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	h, err := d.files.get(ctx, o)
	if err != nil {
		return 0, err
	}
	defer d.files.put(h)
	for n := 0; n < len(p); {
		m, err := unix.Pread(h.fd, p[n:], off+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return n, fmt.Errorf("read %q at %d: %w", o.Name, off+int64(n), err)
		case m == 0 && off+int64(n) < o.Size:
			return n, changed(o, "it was cut short")
		case m == 0:
			return n, io.EOF
		}
		n += max(m, 0)
	}
	return len(p), nil
}

// Borrow returns a descriptor of o that is checked to be the listed version at this moment. The caller must not close
// it, nor change its offset or flags, and must call done when it no longer uses it. It waits while another process
// has a lease of the file.
func (d *Dir) Borrow(ctx context.Context, o *layout.Object) (fd int, done func(), err error) {
	h, err := d.files.get(ctx, o)
	if err != nil {
		return -1, nil, err
	}
	return h.fd, func() { d.files.put(h) }, nil
}

// Forget closes the descriptor that is kept open for o, unless it is borrowed.
func (d *Dir) Forget(o *layout.Object) { d.files.forget(o) }

// OpenObject opens o read-only with a file description of its own, checked to be the listed version. The caller closes
// the descriptor. It waits a moment while another process has a lease of the file, and then fails with [ErrFileLeased].
func (d *Dir) OpenObject(ctx context.Context, o *layout.Object) (fd int, err error) {
	// A program can open again, or report the error. A read, which cannot, waits until the kernel ends the lease (fs.lease-break-time, 45 s).
	err = whenUnleased(ctx, pause.Patience, func() error {
		if fd, err = d.OpenForOthers(o); !errors.Is(err, ErrOtherMount) {
			return err
		}
		fd, _, err = d.open(o)
		return err
	})
	return fd, err
}

func changed(o *layout.Object, how string) error {
	return fmt.Errorf("%q: %s: %w", o.Name, how, ErrChanged)
}

// Listing is everything below an origin's root.
type Listing struct {
	Objects  []*layout.Object // in the order of [layout.ComparePaths]
	Dirs     []DirEntry       // the root first, with the empty name
	Links    []LinkEntry
	Denied   []Denied         // in the order of [layout.ComparePaths]
	Problems []layout.Problem // objects that are left out, and why
}

// Bytes returns the size of all objects together.
func (l *Listing) Bytes() int64 {
	total := int64(0)
	for _, o := range l.Objects {
		total += o.Size
	}
	return total
}

// Find returns the object of a name, nil for none.
func (l *Listing) Find(name string) *layout.Object {
	if i, ok := l.Index(name); ok {
		return l.Objects[i]
	}
	return nil
}

// Index returns the place of an object among Objects.
func (l *Listing) Index(name string) (i int, ok bool) {
	return slices.BinarySearchFunc(l.Objects, name, func(o *layout.Object, name string) int { return layout.ComparePaths(o.Name, name) })
}

// Denied is a file of the origin that this process may not read. Only its name is known.
type Denied struct{ Name, Why string }

// DirEntry is a directory of a listing. Its rights are as those of [Rights].
type DirEntry struct {
	Name    string // slash-separated, relative to the root
	ModTime time.Time
	Perm    uint16
	UID     uint32
	GID     uint32
}

// LinkEntry is a symbolic link to a directory below the root.
type LinkEntry struct {
	Name    string
	Target  string // relative to the link's own directory
	ModTime time.Time
}

// List walks the directory. The cost is one stat for each file: no file is opened. Files and directories that cannot
// be read become problems.
func (d *Dir) List(ctx context.Context) (*Listing, error) {
	dir, err := d.root.Open(path.Join(".", d.within))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	above, end, err := d.above()
	defer end()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("list %s: %w", d.path, err), dir.Close())
	}
	l := &Listing{}
	if err := d.walk(ctx, l, above, dir, ""); err != nil {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	l.Check()
	return l, nil
}

// above opens the directories from the root to the one that is listed, without it: none where the root is.
func (d *Dir) above() (above []openDir, end func(), err error) {
	end = func() {
		for _, p := range above {
			_ = unix.Close(p.fd) // it was only looked through
		}
	}
	if d.within == "" {
		return nil, end, nil
	}
	at := d.fd
	for name := range strings.SplitSeq("./"+path.Dir(path.Clean(d.within)), "/") {
		next, err := d.pass(at, name)
		if err != nil {
			return above, end, err
		}
		at, next.base, next.passed = next.fd, name, false
		above = append(above, next)
	}
	return above, end, nil
}

// ListBelow walks one directory in the root alone, which may have appeared since. Names are relative to the root all the same, and the
// root is the first of the listing's directories.
func (d *Dir) ListBelow(ctx context.Context, name string) (*Listing, error) {
	root, err := d.root.Open(".")
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	defer func() { _ = root.Close() }() // opened for reading: nothing is lost
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return nil, fmt.Errorf("list %s: %w", d.path, err)
	}
	here := d.placeOf(int(root.Fd()), &st)
	l := &Listing{Dirs: []DirEntry{{"", modTime(&st), here.rights.Perm, st.Uid, st.Gid}}}
	fd, err := unix.Openat(here.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		err = d.walk(ctx, l, []openDir{here}, os.NewFile(uintptr(fd), name), name)
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", path.Join(d.path, name), err)
	}
	l.Check()
	return l, nil
}

// Root tells of the directory itself as it is now.
func (d *Dir) Root() (DirEntry, error) {
	root, err := d.root.Open(".")
	if err != nil {
		return DirEntry{}, fmt.Errorf("look at %s: %w", d.path, err)
	}
	defer func() { _ = root.Close() }() // opened for reading: nothing is lost
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return DirEntry{}, fmt.Errorf("look at %s: %w", d.path, err)
	}
	here := d.placeOf(int(root.Fd()), &st)
	return DirEntry{"", modTime(&st), here.rights.Perm, st.Uid, st.Gid}, nil
}

// maxDepth is how many directories deep a listing goes. It bounds the descriptors of a walk, which holds one for each.
const maxDepth = 1024

// walk lists dir and everything below it, and closes dir. above are the directories that it is in, from the root on.
func (d *Dir) walk(ctx context.Context, l *Listing, above []openDir, dir *os.File, name string) error {
	defer func() { _ = dir.Close() }() // opened for reading: nothing is lost
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	here := d.placeOf(int(dir.Fd()), &st)
	above = append(slices.Clip(above), here)
	l.Dirs = append(l.Dirs, DirEntry{name, modTime(&st), here.rights.Perm, st.Uid, st.Gid})
	names, err := dir.Readdirnames(-1)
	if err != nil {
		l.leaveOut(name, "cannot be listed: %v", err)
	}
	if name == "" && d.only != "" {
		names = []string{d.only}
	}
	for _, base := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		full := path.Join(name, base)
		if err := unix.Fstatat(here.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			l.leaveOut(full, "cannot be read: %v", err)
			continue
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			l.Objects = append(l.Objects, d.object(full, &st, d.perm(here.fd, base, &st)))
		case unix.S_IFLNK:
			d.link(l, above, full, &st)
		case unix.S_IFDIR:
			if depth := len(above) - 1; depth == maxDepth {
				l.leaveOut(full, "lies %d directories deep: left out", depth)
				continue
			}
			fd, err := unix.Openat(here.fd, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				l.leaveOut(full, "cannot be opened: %v", err)
				continue
			}
			if err := d.walk(ctx, l, above, os.NewFile(uintptr(fd), full), full); err != nil {
				return err
			}
		default:
			l.leaveOut(full, "is a device, a pipe or a socket: left out")
		}
	}
	return nil
}

// Object looks one regular file up, as List would, in a directory that grows.
func (d *Dir) Object(name string) (*layout.Object, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, fmt.Errorf("stat %q: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("stat %q: it is no regular file", name)
	}
	return d.object(name, &st, uint16(st.Mode&0o777)), nil
}

func (d *Dir) object(name string, st *unix.Stat_t, perm uint16) *layout.Object {
	return &layout.Object{
		Name: name, Size: st.Size, ModTime: modTime(st), Version: d.by.stamp(st).version(),
		Perm: perm, UID: st.Uid, GID: st.Gid, Origin: d,
	}
}

func (l *Listing) leaveOut(name, format string, args ...any) {
	const most = 255 // bytes of a name, which may be as long as an origin likes
	if len(name) > most {
		name = name[:most] + "..."
	}
	l.Problems = append(l.Problems, layout.Problem{Object: name, Detail: fmt.Sprintf(format, args...)})
}

func modTime(st *unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }
