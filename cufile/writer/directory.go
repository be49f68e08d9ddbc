package writer

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// directory is where files are made.
type directory struct {
	fd   int
	path string
	kind int64 // of its filesystem: a magic number of statfs(2)
	dev  uint64
	past bool // its files are given, and fd is -1
}

// directoryOf opens the directory of files, or stands for that of given ones.
func directoryOf(path string, given []Given) (*directory, error) {
	if given != nil {
		return &directory{fd: -1, path: path, past: true}, nil
	}
	return openDirectory(path)
}

// look says where given files lie, by one of them.
func (d *directory) look(o *output) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.open(); err != nil {
		return err
	}
	return d.learn(o.fd, o.path())
}

func (d *directory) learn(fd int, path string) error {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return &Error{path, "fstatfs", err}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return &Error{path, "fstat", err}
	}
	d.kind, d.dev = fs.Type, st.Dev
	return nil
}

func openDirectory(path string) (*directory, error) {
	fd, err := retried(func() (int, error) {
		return unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &Error{path, "open", err}
	}
	d := &directory{fd: fd, path: path}
	if err := d.learn(fd, path); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return d, nil
}

func (d *directory) close() error {
	if d.past {
		return nil
	}
	return unix.Close(d.fd)
}

// inMemory says whether its files have no storage but memory.
func (d *directory) inMemory() bool { return d.kind == unix.TMPFS_MAGIC || d.kind == unix.RAMFS_MAGIC }

// room fails where fewer bytes are free than will be written. It is for filesystems in memory, which tell the truth about that;
// on others allocating tells.
func (d *directory) room(n int64) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(d.fd, &fs); err != nil {
		return &Error{d.path, "fstatfs", err}
	}
	if free := fs.Bfree * uint64(fs.Bsize); fs.Blocks > 0 && uint64(n) > free {
		return &Error{d.path, fmt.Sprintf("%d bytes are to be written and %d are free", n, free), unix.ENOSPC}
	}
	return nil
}

// retried calls a function again while a signal interrupts it.
func retried(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
