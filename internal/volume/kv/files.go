package kv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// Names in the directory that are no namespaces'.
const (
	lockName = ".hbmfs-kv.lock"
	restName = ".hbmfs-kv.free"

	asideName = ".hbmfs-kv.aside-" // begins the names of files that were in the way of a namespace
)

// openOwn opens and locks the volume's own files. Where the disk takes no writes, the mount leaves the disk as it is: engines use the memory tier, and read
// blocks of the disk.
func (s *Store) openOwn() (err error) {
	for _, own := range []struct {
		file **os.File
		name string
	}{{&s.lock, lockName}, {&s.disk.rest, restName}} {
		*own.file, err = s.openOurs(s.dir, own.name, unix.O_RDWR|unix.O_CREAT)
		if s.frozen == "" && noWrites(err) {
			if s.memory == nil {
				return fmt.Errorf("the disk tier takes no writes, and without --memory there is no other: %w", err)
			}
			s.frozen = err.Error()
			*own.file, err = s.openOurs(s.dir, own.name, unix.O_RDONLY)
		}
		if s.frozen != "" && (errors.Is(err, unix.ENOENT) || noWrites(err)) { // who changes nothing needs no lock
			continue
		}
		if err == nil && own.file == &s.lock {
			err = flock(s.lock, s.opt.LeaseTime)
			if s.frozen != "" && s.opt.Life.Adopts() && errors.Is(err, ErrUsed) { // by a mount that came once the disk could be written: its namespaces in use are left out
				continue
			}
		}
		if err != nil && !s.readOnly(err) {
			return fmt.Errorf("use %s for a KV volume: %w", s.opt.Directory, err)
		}
	}
	if s.frozen != "" {
		s.note("the disk took no writes when this volume was mounted: blocks and new namespaces are kept in memory alone until it is mounted again: %s", s.frozen)
	}
	return nil
}

// openOurs opens a file of the volume. Where the disk takes no writes, it is opened to read.
func (s *Store) openOurs(dir *os.File, name string, flags int) (*os.File, error) {
	if s.frozen != "" {
		return openAt(dir, name, unix.O_RDONLY)
	}
	f, err := openAt(dir, name, flags)
	if s.readOnly(err) {
		f, err = openAt(dir, name, unix.O_RDONLY)
	}
	return f, err
}

// noWrites tells whether an error says that a disk, or its directory, takes no writes of this process.
func noWrites(err error) bool {
	return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// readOnly tells whether an error says that the disk takes no writes, and this daemon goes on all the same. Engines use the memory tier, and read blocks of the
// disk.
func (s *Store) readOnly(err error) bool {
	return (s.frozen != "" || s.opt.Life.Adopts()) && (noWrites(err) || errors.Is(err, unix.EBADF) || errors.Is(err, unix.EINVAL)) // write, and ftruncate, of a file that is open to read
}

// errOdd says that a file of a volume has the wrong kind.
var errOdd = errors.New("not a file that a KV volume makes")

// openAt opens a regular file of a directory, or with O_DIRECTORY a directory. Other users may make names there. So it opens nothing else, follows
// no link, and waits for nobody. O_PATH gives the inode without opening it, and that very inode is opened once it was judged.
func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	at, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) && flags&unix.O_CREAT != 0 {
		var fd int
		if fd, err = unix.Openat(int(dir.Fd()), name, flags|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600); err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	inode := os.NewFile(uintptr(at), path)
	defer func() { _ = inode.Close() }() // it was only looked at
	var st unix.Stat_t
	want := uint32(unix.S_IFREG)
	if flags&unix.O_DIRECTORY != 0 {
		want = unix.S_IFDIR
	}
	switch err := unix.Fstat(at, &st); {
	case err != nil:
		return nil, fmt.Errorf("look at %s: %w", path, err)
	case st.Mode&unix.S_IFMT != want:
		return nil, fmt.Errorf("%s is a %s: %w", path, kindOf(st.Mode), errOdd)
	case want == unix.S_IFREG && st.Nlink > 1: // cutting it would cut another's file
		return nil, fmt.Errorf("%s has another name, too: %w", path, errOdd)
	}
	return again(inode, flags&^unix.O_CREAT|unix.O_NONBLOCK) // O_NONBLOCK: a lease of its owner fails the call, and does not delay it
}

// kindOf names the kind of file that a mode stands for.
func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "regular file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFIFO:
		return "FIFO"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// flock locks a file for this process, which a daemon that is being killed may have for a moment.
func flock(f *os.File, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if time.Now().After(end) {
			return ErrUsed
		}
	}
}

// names lists the namespaces of the directory.
func (s *Store) names() (names []string, err error) {
	entries, err := os.ReadDir(s.opt.Directory)
	if err != nil {
		return nil, err
	}
	var foreign []string
	for _, e := range entries {
		switch name := e.Name(); {
		case name == lockName || name == restName || name == "lost+found" || strings.HasPrefix(name, asideName):
		case e.IsDir() && goodName(name):
			names = append(names, name)
		default:
			foreign = append(foreign, name)
		}
	}
	if len(foreign) > 0 {
		s.note("%d names in %s are no namespaces, and are left alone: %s", len(foreign), s.opt.Directory, strings.Join(foreign[:min(len(foreign), 5)], ", "))
	}
	return names, nil
}

// goodName tells whether a namespace may have a name: of letters, digits and . _ - + = @ : , that does not begin with a dot.
func goodName(name string) bool {
	if name == "" || len(name) > control.MaxKVName || name[0] == '.' {
		return false
	}
	for _, c := range []byte(name) {
		if !strings.ContainsRune("._-+=@:,", rune(c)) && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// setAside renames a file that is in the way of a new namespace. Nothing of it is lost.
func (s *Store) setAside(name string) error {
	to := fmt.Sprintf("%s%s-%x", asideName, name, newID())
	if err := unix.Renameat2(int(s.dir.Fd()), name, int(s.dir.Fd()), to, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("rename %s, which is in the way of a namespace: %w", filepath.Join(s.opt.Directory, name), err)
	}
	s.note("%s was in the way of a new namespace, and is called %s now: remove it if it is not needed", filepath.Join(s.opt.Directory, name), to)
	return nil
}
