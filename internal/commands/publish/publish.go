// Package publish publishes drafts of checkpoint volumes that plain programs wrote, by an ioctl on their directories.
package publish

import (
	"context"
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// Draft publishes the draft at a path, and tells how far it is. Where ctx ends, the draft stays as it was. It gives the bytes of its files.
func Draft(ctx context.Context, path string, progress func(done, total int64)) (bytes int64, err error) {
	dir, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = dir.Close() }() // opened for reading
	r, err := ask(dir, control.DraftStart)
	if err != nil {
		return 0, err
	}
	cancelled := false
	for r.State == control.DraftSealing {
		progress(r.Done, r.Total)
		verb := control.DraftPoll
		select {
		case <-time.After(pause.Look):
		case <-ctx.Done():
			verb, cancelled = control.DraftCancel, true
			time.Sleep(pause.Look)
		}
		if r, err = ask(dir, verb); err != nil {
			return 0, err
		}
	}
	switch {
	case r.State == control.DraftPublished:
		return r.Total, nil
	case cancelled:
		return 0, ctx.Err()
	case r.Text != "":
		return 0, errors.New(r.Text)
	}
	return 0, errors.New("the daemon was replaced meanwhile: publish it again")
}

// ask makes the ioctl.
func ask(dir *os.File, verb control.DraftVerb) (control.DraftReply, error) {
	b := control.AppendDraftRequest(make([]byte, 0, control.DraftSize), verb)
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), uintptr(control.DraftCommand), uintptr(unsafe.Pointer(&b[0])))
		switch errno {
		case 0:
			return control.ParseDraftReply(b)
		case unix.EINTR:
		case unix.ENOTTY, unix.EINVAL:
			return control.DraftReply{}, errors.New("it is no draft: drafts are the directories in the root of a mount of hbmfs checkpoint mount that are not published yet")
		case unix.EPERM:
			return control.DraftReply{}, errors.New("it is another user's draft")
		default:
			return control.DraftReply{}, os.NewSyscallError("ioctl DRAFT", errno)
		}
	}
}
