package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/kv"
)

// kvCode gives the errors of a KV store their codes.
func kvCode(err error) error {
	var code code
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kv.ErrBlock), errors.Is(err, kv.ErrMemory), errors.Is(err, syscall.EINVAL):
		code = codeInvalid
	case errors.Is(err, kv.ErrReadOnly):
		code = codePermission
	case errors.Is(err, control.ErrNoSocket), errors.Is(err, control.ErrNoKV):
		code = codeUnavailable
	case errors.Is(err, context.Canceled):
		return failf(codeCancelled, "the request was cancelled, or its store closed, before it was done")
	default:
		return err
	}
	return &failure{code, err.Error()}
}

func (l *library) openKV(path, namespace string, o kv.Options) (uint64, error) {
	s, err := kv.Open(context.Background(), path, namespace, o)
	if errors.Is(err, control.ErrNoKV) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	if err != nil {
		return 0, &otherwise{codeInvalid, kvCode(err)}
	}
	return l.add(0, s)
}

// closeKV closes a store with its requests. Where a call hangs, the handles stay.
func (l *library) closeKV(handle uint64) error {
	return internally(closeThing(l, handle, "store", (*kv.Store).Close))
}

// beginKV begins a request of a store. An eventfd above 0 gets 1 added when it has ended.
func (l *library) beginKV(handle uint64, eventfd int, begin func(s *kv.Store, ended func()) (*kv.Request, error)) (uint64, error) {
	s, err := find[*kv.Store](l, handle)
	if err != nil {
		return 0, err
	}
	ended, unused, err := notify(eventfd)
	if err != nil {
		return 0, err
	}
	q, err := begin(s, ended)
	if err != nil {
		unused()
		return 0, kvCode(err)
	}
	return l.add(handle, q)
}

// notify gives the function that tells an eventfd, and one to call instead where no request has begun. The descriptor is one of its own, so that
// the caller may close the given one at any time.
func notify(eventfd int) (ended, unused func(), err error) {
	if eventfd <= 0 {
		return nil, func() {}, nil
	}
	fd, err := unix.FcntlInt(uintptr(eventfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, failf(codeInvalid, "descriptor %d is none that can be told: %v", eventfd, err)
	}
	unused = func() { _ = unix.Close(fd) }
	return func() {
		one := [8]byte{1} // little-endian, as all machines of this library are
		_, _ = unix.Write(fd, one[:])
		unused()
	}, unused, nil
}

// waitKV ends the request and its handle, unless it takes longer than timeout.
func (l *library) waitKV(handle uint64, timeout time.Duration) (kv.Result, error) {
	q, err := find[*kv.Request](l, handle)
	if err != nil {
		return kv.Result{}, err
	}
	if !wait(q.Done(), timeout) {
		return kv.Result{}, failf(codeTimeout, "the request is not done yet")
	}
	result, err := q.Result()
	l.remove(handle)
	return result, kvCode(err)
}
