package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// checkpointCode gives the errors of a checkpoint their codes.
func checkpointCode(err error) error {
	for _, k := range []struct {
		is   error
		code code
	}{
		{checkpoint.ErrInvalid, codeInvalid}, {checkpoint.ErrExists, codeExists}, {checkpoint.ErrBusy, codeBusy},
		{checkpoint.ErrForeign, codePermission}, {checkpoint.ErrNone, codeNotFound}, {checkpoint.ErrDamaged, codeFormat},
	} {
		if errors.Is(err, k.is) {
			return &failure{k.code, err.Error()}
		}
	}
	return err
}

// complete lists the complete checkpoints in a directory.
func complete(dir string) (found []checkpoint.Entry, err error) {
	all, err := checkpoint.List(dir)
	for _, e := range all {
		if e.State == checkpoint.Complete {
			found = append(found, e)
		}
	}
	return found, checkpointCode(err)
}

// clean gives the names that it removed, each with a zero byte behind it.
func clean(dir string) (string, error) {
	removed, err := checkpoint.Clean(context.Background(), dir)
	if len(removed) == 0 {
		return "", checkpointCode(err)
	}
	return strings.Join(removed, "\x00") + "\x00", checkpointCode(err)
}

// verification compares a checkpoint with its sums.
type verification struct {
	cancel      context.CancelFunc
	bytes, size atomic.Int64  // compared, and in all
	done        chan struct{} // closed when report and err are there
	report      *checkpoint.Report
	err         error
}

func (l *library) beginVerify(path string, threads int) (uint64, error) {
	ctx, cancel := context.WithCancel(context.Background())
	v := &verification{cancel: cancel, done: make(chan struct{})}
	go func() { // ends when all is read, or with cancel
		defer close(v.done)
		v.report, v.err = checkpoint.Verify(ctx, path, checkpoint.VerifyOptions{Threads: threads, Progress: v.progress})
	}()
	return l.add(0, v)
}

// progress comes from several threads in any order.
func (v *verification) progress(done, size int64) {
	v.size.Store(size)
	for before := v.bytes.Load(); done > before && !v.bytes.CompareAndSwap(before, done); before = v.bytes.Load() {
	}
}

// awaitVerify ends the verification and its handle, unless it takes longer than timeout.
func (l *library) awaitVerify(handle uint64, timeout time.Duration) (*verification, error) {
	v, err := find[*verification](l, handle)
	if err != nil {
		return nil, err
	}
	if !wait(v.done, timeout) {
		return v, failf(codeTimeout, "the checkpoint is not compared yet")
	}
	l.remove(handle)
	v.cancel()
	if v.err == nil && v.report.Damaged > 0 {
		return v, checkpointCode(&damage{&v.report.Damage[0]})
	}
	return v, checkpointCode(v.err)
}

// damage is the first damage of a checkpoint as an error.
type damage struct{ *checkpoint.Damage }

func (d *damage) Error() string { return d.String() }
func (d *damage) Unwrap() error { return d.Err }

func (l *library) cancelVerify(handle uint64, timeout time.Duration) error {
	v, err := find[*verification](l, handle)
	if err != nil {
		return err
	}
	v.cancel()
	if !wait(v.done, timeout) {
		return failf(codeTimeout, "a read of the checkpoint still hangs; cancel again")
	}
	l.remove(handle)
	return nil
}

func removeCheckpoint(path string) error {
	switch in, err := inVolume(path); {
	case err != nil:
		return err
	case in: // where rmdir takes all of it, at once
		return os.NewSyscallError("rmdir "+path, unix.Rmdir(path))
	}
	return checkpointCode(checkpoint.Remove(context.Background(), path))
}
