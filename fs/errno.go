package fs

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// statusOf is the one place where an error becomes an errno. A file that is gone from the origin is ESTALE and not
// ENOENT: loaders take ENOENT for "not made yet" and go on without the file.
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
	case errors.Is(err, cache.ErrLeased): // a reader past FUSE: others have waited
		return fuse.EAGAIN
	case errors.Is(err, fs.ErrPermission):
		return fuse.EACCES
	case errors.As(err, &errno) && (errno == syscall.ENOSPC || errno == syscall.EMFILE || errno == syscall.ENFILE || errno == syscall.ENOMEM):
		return fuse.Status(errno)
	}
	return fuse.EIO
}
