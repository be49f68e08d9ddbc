package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
)

// request is a read into memory of the caller.
type request struct {
	readers []*reader // that it is counted for
	*cufile.Request
}

// underWay is a read or a write.
type underWay interface {
	Cancel()
	Done() <-chan struct{}
}

func (l *library) begin(handle uint64, to cufile.Target, offsets []int64, length int64) (uint64, error) {
	f, err := find[*file](l, handle)
	if err != nil {
		return 0, err
	}
	q, err := f.f.BeginGather(context.Background(), to, offsets, length)
	if err != nil {
		return 0, err
	}
	return l.addRequest(handle, &request{[]*reader{f.reader}, q})
}

// addRequest gives a handle to a request, which a thread can wait for in the kernel.
func (l *library) addRequest(of uint64, q *request) (uint64, error) {
	handle, err := l.add(of, q)
	if err == nil {
		if ring := hang(handle); ring != nil {
			q.Ring(ring)
		}
	}
	return handle, err
}

// batch begins a batch of files, and writes the metadata of sequences, if they are not nil. No file owns the request, since it
// outlives each.
func (l *library) batch(files []uint64, to cufile.Target, b *cufile.Batch, sequences *cufile.Sequences) (uint64, error) {
	var readers []*reader // that something may be read by
	for i, handle := range files {
		f, err := find[*file](l, handle)
		if err != nil {
			return 0, err
		}
		b.Files = append(b.Files, f.f)
		if !slices.Contains(readers, f.reader) && (b.Sources == nil && i == 0 && len(b.Starts) > 0 || slices.Contains(b.Sources, int32(i))) {
			readers = append(readers, f.reader)
		}
	}
	q, err := cufile.BeginBatch(context.Background(), to, b, sequences)
	if err != nil {
		return 0, err
	}
	return l.addRequest(0, &request{readers, q})
}

// waitFor ends the request and its handle, unless it takes longer than timeout.
func (l *library) waitFor(handle uint64, timeout time.Duration) (cufile.Result, error) {
	q, err := find[*request](l, handle)
	if err != nil {
		return cufile.Result{}, err
	}
	if !wait(q.Done(), timeout) {
		return cufile.Result{}, failf(codeTimeout, "the request is not done yet")
	}
	result, err := q.Result()
	if l.remove(handle) && err == nil {
		for _, r := range q.readers {
			r.count(result.Choice)
		}
	}
	if errors.Is(err, context.Canceled) {
		err = failf(codeCancelled, "the request was cancelled, or its file closed, before it was done")
	}
	return result, err
}

func (l *library) cancel(handle uint64, timeout time.Duration) error {
	q, err := find[underWay](l, handle)
	if err != nil {
		return err
	}
	q.Cancel()
	if !wait(q.Done(), timeout) {
		return failf(codeTimeout, "a call or the caller's stream still uses the request's memory, which must stay; cancel again")
	}
	l.remove(handle)
	return nil
}

// memory is memory of a GPU.
func (l *library) alloc(handle uint64, n int64) (memory uint64, pointer uintptr, err error) {
	r, err := find[*reader](l, handle)
	if err != nil {
		return 0, 0, err
	}
	a, err := r.r.Alloc(n)
	if err != nil {
		return 0, 0, err
	}
	memory, err = l.add(0, a)
	return memory, a.Memory().Pointer, err
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
