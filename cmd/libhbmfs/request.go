package main

import (
	"context"
	"errors"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
)

// request is a read into memory of the caller.
type request struct {
	file *file
	q    *cufile.Request
}

func (l *library) begin(handle uint64, to cufile.Target, offsets []int64, length int64) (uint64, error) {
	f, err := find[*file](l, handle)
	if err != nil {
		return 0, err
	}
	leave, err := f.enter("file")
	if err != nil {
		return 0, err
	}
	defer leave()
	q, err := f.f.BeginGather(context.Background(), to, offsets, length)
	if err != nil {
		return 0, err
	}
	return f.join(l, &request{f, q}), nil
}

// waitFor ends the request and its handle, unless it takes longer than timeout.
func (l *library) waitFor(handle uint64, timeout time.Duration) (cufile.Result, error) {
	q, err := find[*request](l, handle)
	if err != nil {
		return cufile.Result{}, err
	}
	if !wait(q.q.Done(), timeout) {
		return cufile.Result{}, failf(codeTimeout, "the request is not done yet")
	}
	result, err := q.q.Result()
	if q.file.part(l, handle) && err == nil {
		q.file.reader.count(result.Choice)
	}
	if errors.Is(err, context.Canceled) {
		err = failf(codeCancelled, "the request was cancelled, or its file closed, before it was done")
	}
	return result, err
}

func (l *library) cancel(handle uint64, timeout time.Duration) error {
	q, err := find[*request](l, handle)
	if err != nil {
		return err
	}
	q.q.Cancel()
	if !wait(q.q.Done(), timeout) {
		return failf(codeTimeout, "a read or the caller's stream still holds the request: its memory must stay; cancel again")
	}
	q.file.part(l, handle)
	return nil
}

// memory is memory of a GPU.
func (l *library) alloc(handle uint64, n int64) (memory uint64, pointer uintptr, err error) {
	r, err := find[*reader](l, handle)
	if err != nil {
		return 0, 0, err
	}
	leave, err := r.enter("reader")
	if err != nil {
		return 0, 0, err
	}
	defer leave()
	a, err := r.r.Alloc(n)
	if err != nil {
		return 0, 0, err
	}
	return l.add(a), a.Memory().Pointer, nil
}

func (l *library) copyOut(memory uint64, to []byte, offset int64) error {
	a, err := find[*cufile.Allocation](l, memory)
	if err != nil {
		return err
	}
	return a.CopyTo(to, offset)
}

func (l *library) free(memory uint64) error {
	a, err := find[*cufile.Allocation](l, memory)
	if err != nil {
		return err
	}
	if !l.remove(memory) {
		return failf(codeClosed, "handle %d is closed", memory)
	}
	return a.Free()
}
