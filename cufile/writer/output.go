package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/direct"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// output is a file that is being written. Several workers do; the one that writes the last chunk finishes it.
type output struct {
	dir    *directory
	name   string
	size   int64
	parts  []Part
	sums   []uint32
	left   atomic.Int64 // chunks that are not written
	only   bool         // O_DIRECT is required
	given  func() (*os.File, error)
	sealed func(sums []uint32) error
	mapped []byte // its pages; nil on other paths than Mapped

	mu     sync.Mutex // guards the fields below
	state  outputState
	fd     int            // of a given file also before it is made
	err    error          // why it could not be made
	direct bool           // O_DIRECT is set
	cuFile *direct.Output // nil unless cuFile writes
	why    string         // why not, if it should be
}

type outputState int

const (
	unmade outputState = iota
	opened
	over
)

func newOutput(d *directory, f *File) *output {
	o := &output{dir: d, name: f.Name, size: f.Size, parts: join(f.Parts), sums: make([]uint32, chunks(f.Size)), fd: -1}
	o.left.Store(max(int64(len(o.sums)), 1)) // an empty file has a chunk of nothing, by which it is made
	return o
}

func (o *output) path() string { return filepath.Join(o.dir.path, o.name) }

func (o *output) failed(call string, err error) error { return &Error{o.path(), call, err} }

// make makes the file once, and has its blocks allocated.
func (o *output) make(direct bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state != unmade {
		return o.err
	}
	o.state = over
	if o.err = o.open(); o.err != nil {
		return o.err
	}
	o.state = opened
	if o.given == nil { // a given one has its blocks
		o.err = o.allocate()
	}
	if o.err == nil && direct {
		var err error
		if o.direct, err = setDirect(o.fd, true); err != nil {
			o.err = o.refuse("the filesystem refuses O_DIRECT")
		}
	}
	return o.err
}

// open opens the file. mu is held.
func (o *output) open() error {
	if o.given == nil {
		fd, err := retried(func() (int, error) {
			return unix.Openat(o.dir.fd, o.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		})
		if err != nil {
			return o.failed("open", err)
		}
		o.fd = fd
		return nil
	}
	if o.fd >= 0 { // it was looked at
		return nil
	}
	f, err := o.given()
	if err != nil {
		return fmt.Errorf("write %s: %w", o.path(), err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) // f would close it when it is forgotten
	if err = errors.Join(err, f.Close()); err != nil {
		return o.failed("fcntl", err)
	}
	o.fd = fd
	return nil
}

// allocate has the filesystem find all blocks now. So a full disk is known before anything is written, and writes do not make
// the file longer one after the other. Whole pages are, since O_DIRECT writes them.
func (o *output) allocate() error {
	if o.size == 0 || o.dir.inMemory() { // there it would fill pages with zeros that are overwritten
		return nil
	}
	_, err := retried(func() (int, error) { return 0, unix.Fallocate(o.fd, 0, 0, driver.RoundUp(o.size, driver.PageSize)) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || err == nil {
		return nil
	}
	return o.failed("fallocate", err)
}

// setDirect sets or clears O_DIRECT, and gives whether it is set now.
func setDirect(fd int, on bool) (bool, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return false, err
	}
	if flags &^= unix.O_DIRECT; on {
		flags |= unix.O_DIRECT
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags); err != nil {
		return !on, err
	}
	return on, nil
}

// register has cuFile know the file, once, and gives it.
func (o *output) register(m *direct.Mover) (*direct.Output, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cuFile == nil {
		var err error
		if o.cuFile, err = m.Output(o.fd, o.path()); err != nil {
			return nil, o.failed("cuFileHandleRegister", err)
		}
	}
	return o.cuFile, nil
}

// isDirect says whether O_DIRECT is set, and why not.
func (o *output) isDirect() (bool, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.direct, o.why
}

// write writes bytes at an offset, and says by which path. Some filesystems refuse O_DIRECT only here: then the rest of the file
// goes through the page cache.
func (o *output) write(ctx context.Context, p []byte, offset int64) (Path, error) {
	for {
		direct, _ := o.isDirect()
		err := o.writeAll(ctx, p, offset)
		switch {
		case err == nil && direct:
			return Staged, nil
		case err == nil:
			if !o.dir.inMemory() { // or else all of it would wait for the sync at the end
				if err := unix.SyncFileRange(o.fd, offset, int64(len(p)), unix.SYNC_FILE_RANGE_WRITE); err != nil && !errors.Is(err, unix.ENOSYS) {
					return "", o.failed("sync_file_range", err)
				}
			}
			return Buffered, nil
		case direct && errors.Is(err, unix.EINVAL):
			if err := o.refused(); err != nil {
				return "", err
			}
		default:
			return "", err
		}
	}
}

func (o *output) refused() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.direct { // another worker met it before
		return nil
	}
	var err error
	if o.direct, err = setDirect(o.fd, false); err != nil {
		return o.failed("fcntl", err)
	}
	return o.refuse("the filesystem refuses to write with O_DIRECT")
}

// refuse notes why the file goes through the page cache. It needs mu.
func (o *output) refuse(why string) error {
	if o.why = why; o.only {
		return fmt.Errorf("write %s: %w: %s", o.path(), ErrUnavailable, why)
	}
	return nil
}

func (o *output) writeAll(ctx context.Context, p []byte, offset int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(o.fd, p, offset)
		switch {
		case errors.Is(err, unix.EINTR):
			if err := ctx.Err(); err != nil {
				return err
			}
		case err != nil:
			return o.failed("pwrite", err)
		case n == 0:
			return o.failed("pwrite", unix.EIO) // which POSIX does not allow
		default:
			p, offset = p[n:], offset+int64(n)
		}
	}
	return nil
}

// wrote counts a chunk. With the last one the file gets its size, is synced and closed.
func (o *output) wrote() error {
	if o.left.Add(-1) > 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	fd := o.fd
	if err := unix.Ftruncate(fd, o.size); err != nil {
		return o.failed("ftruncate", err)
	}
	if _, err := retried(func() (int, error) { return 0, unix.Fsync(fd) }); err != nil {
		return o.failed("fsync", err)
	}
	if o.cuFile != nil {
		if err := o.cuFile.Close(); err != nil {
			return o.failed("close", err)
		}
		o.cuFile = nil
	}
	o.state, o.fd = over, -1
	if err := unix.Close(fd); err != nil && !errors.Is(err, unix.EINTR) { // NFS tells there that bytes were lost
		return o.failed("close", err)
	}
	if o.sealed != nil {
		if err := o.sealed(o.sums); err != nil {
			return fmt.Errorf("write %s: %w", o.path(), err)
		}
	}
	return nil
}

// abandon closes a file that was not finished.
func (o *output) abandon() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cuFile != nil {
		_ = o.cuFile.Close()
		o.cuFile = nil
	}
	if o.fd >= 0 {
		_ = unix.Close(o.fd) // the write has failed, and says why
	}
	o.state, o.fd = over, -1
}
