package fs

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"runtime/debug"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// statusOf is the one place where an error becomes an errno. A file that is gone from the origin is ESTALE and not
// ENOENT. Loaders take ENOENT for "not made yet" and go on without the file.
func statusOf(err error) fuse.Status {
	var absent *layout.AbsentError
	var errno syscall.Errno
	switch {
	case err == nil:
		return fuse.OK
	case errors.As(err, &absent):
		return fuse.ENOENT
	case errors.Is(err, context.Canceled): // not a deadline: a request has none, and timeouts of package net are such errors
		return fuse.EINTR
	case errors.Is(err, cache.ErrChanged):
		return fuse.Status(syscall.ESTALE)
	case errors.Is(err, cache.ErrFileLeased): // reads through the mount wait, opens only a moment
		return fuse.EAGAIN
	case errors.Is(err, fs.ErrPermission):
		return fuse.EACCES
	case errors.As(err, &errno) && (errno == syscall.ENOSPC || errno == syscall.EMFILE || errno == syscall.ENFILE || errno == syscall.ENOMEM):
		return fuse.Status(errno)
	}
	return fuse.EIO
}

// failures counts failed requests, and remembers which nodes the log has: a broken file that is read a million times is one
// line.
type failures struct {
	nodes sync.Map

	mu      sync.Mutex
	byErrno map[string]int64 // statusOf knows less than ten
}

func (f *failures) count(status fuse.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byErrno == nil {
		f.byErrno = map[string]int64{}
	}
	f.byErrno[unix.ErrnoName(unix.Errno(status))]++
}

// counted returns the failures by errno. EIO and ESTALE, which tell of a broken dataset, are always there.
func (f *failures) counted() (byErrno map[string]int64, all int64) {
	byErrno = map[string]int64{"EIO": 0, "ESTALE": 0}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(byErrno, f.byErrno)
	for _, n := range byErrno {
		all += n
	}
	return byErrno, all
}

// panicked is told of a handler of a request that panicked: it answers EIO, and the daemon goes on.
func (m *Mount) panicked(why any) fuse.Status {
	m.failed.count(fuse.EIO)
	m.log.Error("a request has EIO: its handler panicked", "panic", why, "stack", string(debug.Stack()))
	return fuse.EIO
}

// fail makes an errno of an error, and logs it once for each file and errno.
func (m *Mount) fail(n *node, verb string, err error) fuse.Status {
	status := statusOf(err)
	if status == fuse.ENOENT || status == fuse.EINTR {
		return status
	}
	m.failed.count(status)
	type report struct {
		ino    uint64
		status fuse.Status
	}
	if _, seen := m.failed.nodes.LoadOrStore(report{n.ino, status}, true); !seen {
		m.log.Error("cannot "+verb, "file", n.name, "errno", status.String(), "error", err)
	}
	return status
}
