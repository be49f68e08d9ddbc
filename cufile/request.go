package cufile

import (
	"context"
	"fmt"
	"sync/atomic"
)

// Result says how a request's bytes came: before any widening, by path.
type Result struct {
	Moved  Moved
	Choice Choice // of the first part, where the request was moved in parts
}

// add adds the next part.
func (s *Result) add(next Result) {
	if s.Moved.Total() == 0 {
		s.Choice = next.Choice
	}
	s.Moved.Add(next.Moved)
}

// Request is a read into memory of the caller that is under way.
type Request struct {
	cancel context.CancelFunc
	done   chan struct{}
	result Result // set before done is closed
	err    error  // likewise
	ring   atomic.Pointer[func()]
}

// BeginGather starts bringing the spans of length bytes that begin at offsets to memory of the caller, one after the
// other. Spans or memory that cannot be are refused at once, with ErrOutOfRange or ErrMemory. The memory must stay
// until Done is closed. A request that is cancelled, or whose ctx has ended, lasts until nothing writes there any
// more. Some calls into the system or the GPU's library cannot be interrupted.
func (f *File) BeginGather(ctx context.Context, to Target, offsets []int64, length int64) (*Request, error) {
	s := &scattering{r: f.r, files: []*File{f}}
	return s.begin(ctx, to.Stream, func() error {
		spans, err := f.rows(s.memory(len(offsets)), offsets, length)
		if err == nil {
			err = f.insideAll(spans)
		}
		if err != nil {
			return err
		}
		s.parts = []part{{file: f, spans: spans}}
		if s.to, err = f.aim(&to, int64(len(offsets)), length); err != nil {
			err = fmt.Errorf("read %s: %w", f.name, err)
		}
		return err
	})
}

// begin starts a request, once check, which has the device's context, finds that it can be. A nil check is none.
func (s *scattering) begin(ctx context.Context, stream *uintptr, check func() error) (*Request, error) {
	for i, f := range s.files {
		if err := f.enter(); err != nil {
			leave(s.files[:i])
			return nil, err
		}
	}
	d := s.r.device
	after, err := d.Mark(stream, check)
	if err != nil {
		leave(s.files)
		return nil, err
	}
	s.to.After = after
	ctx, cancel := context.WithCancel(ctx)
	q := &Request{cancel: cancel, done: make(chan struct{})}
	for _, f := range s.files {
		f.mu.Lock()
		f.requests[q] = true
		f.mu.Unlock()
		if f.gate.IsShut() { // meanwhile, by a Close that did not see q
			cancel()
		}
	}
	s.start(ctx, func(result Result, err error) {
		if err != nil && ctx.Err() != nil { // it may be that its file was shut
			err = ctx.Err()
		}
		q.result, q.err = result, err
		d.Unmark(after)
		if s.room != nil {
			s.r.spans.Put(s.room)
		}
		cancel()
		close(q.done)
		for _, f := range s.files {
			f.mu.Lock()
			delete(f.requests, q)
			f.mu.Unlock()
		}
		leave(s.files)
		q.rung()
	})
	return q, nil
}

func leave(files []*File) {
	for _, f := range files {
		f.gate.Leave()
	}
}

// Done is closed when the request has ended and nothing writes to its memory any more.
func (q *Request) Done() <-chan struct{} { return q.done }

// Ring calls a function once Done is closed, on any goroutine, or at once: it must be quick. Ring is called once.
func (q *Request) Ring(f func()) {
	q.ring.Store(&f)
	select {
	case <-q.done:
		q.rung()
	default:
	}
}

func (q *Request) rung() {
	if f := q.ring.Swap(nil); f != nil {
		(*f)()
	}
}

// Cancel asks the request to end. It may have been done by then.
func (q *Request) Cancel() { q.cancel() }

// Result waits for the request. Without an error the bytes are in the memory, for the CPU and for any stream.
func (q *Request) Result() (Result, error) {
	<-q.done
	return q.result, q.err
}

// GatherInto is BeginGather and Result in one.
func (f *File) GatherInto(ctx context.Context, to Target, offsets []int64, length int64) (Result, error) {
	q, err := f.BeginGather(ctx, to, offsets, length)
	if err != nil {
		return Result{}, err
	}
	return q.Result()
}
