package main

import (
	"context"
	"errors"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
)

// request is a read into memory of the caller.
type request struct {
	reader *reader
	*cufile.Request
}

// requests are reads of several files, which end together.
type requests struct {
	parts []*request
	done  chan struct{}
}

// together makes one request of several. One that fails ends the others.
func together(parts []*request) *requests {
	q := &requests{parts, make(chan struct{})}
	go func() {
		for _, part := range parts {
			if _, err := part.Result(); err != nil {
				q.Cancel()
			}
		}
		close(q.done)
	}()
	return q
}

// Cancel asks all of them to end.
func (q *requests) Cancel() {
	for _, part := range q.parts {
		part.Request.Cancel()
	}
}

// Done is closed when all of them have ended.
func (q *requests) Done() <-chan struct{} { return q.done }

// Result waits for all of them. The choice is the first one's.
func (q *requests) Result() (total cufile.Result, err error) {
	<-q.done
	for i, part := range q.parts {
		result, partErr := part.Result()
		if err == nil || errors.Is(err, context.Canceled) && partErr != nil { // the reason before those that ended with it
			err = partErr
		}
		if i == 0 {
			total.Choice = result.Choice
		}
		total.Moved.Add(result.Moved)
	}
	return total, err
}

func (q *request) count(result cufile.Result) { q.reader.count(result.Choice) }

func (q *requests) count(cufile.Result) {
	for _, part := range q.parts {
		result, _ := part.Result() // nil: count follows a success
		part.count(result)
	}
}

// read is one that somebody waits for.
type read interface {
	underWay
	Result() (cufile.Result, error)
	count(result cufile.Result)
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
	return l.add(handle, &request{f.reader, q})
}

// scatter begins spans of several files: counts[i] of files[i]. No file owns the request, since it outlives each.
func (l *library) scatter(files []uint64, counts []int64, to cufile.Target, spans []cufile.Placed) (uint64, error) {
	parts := make([]*request, 0, len(files))
	for i, handle := range files {
		if counts[i] == 0 {
			continue
		}
		f, err := find[*file](l, handle)
		if err == nil {
			var q *cufile.Request
			if q, err = f.f.BeginScatter(context.Background(), to, spans[:counts[i]]); err == nil {
				parts = append(parts, &request{f.reader, q})
			}
		}
		if err != nil {
			begun := together(parts)
			begun.Cancel()
			<-begun.Done()
			return 0, err
		}
		spans = spans[counts[i]:]
	}
	return l.add(0, together(parts))
}

// waitFor ends the request and its handle, unless it takes longer than timeout.
func (l *library) waitFor(handle uint64, timeout time.Duration) (cufile.Result, error) {
	q, err := find[read](l, handle)
	if err != nil {
		return cufile.Result{}, err
	}
	if !wait(q.Done(), timeout) {
		return cufile.Result{}, failf(codeTimeout, "the request is not done yet")
	}
	result, err := q.Result()
	if l.remove(handle) && err == nil {
		q.count(result)
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
