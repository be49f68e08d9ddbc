package cufile

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
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
// other. Spans or memory that cannot be are refused at once, with ErrOutOfRange or ErrMemory. The memory and offsets must
// stay until Done is closed. A request that is cancelled, or whose ctx has ended, lasts until nothing writes there any
// more: some calls into the system or the GPU's library cannot be interrupted.
func (f *File) BeginGather(ctx context.Context, to Target, offsets []int64, length int64) (*Request, error) {
	check := func() error { return f.check(&to, offsets, length) }
	return begin(ctx, []*File{f}, &to, check, func(s *scattering) (err error) {
		s.to = f.r.destination(to.Pointer, to.Length, s.after)
		s.parts = []part{{f, source.Rows(offsets, length)}}
		s.to.Form, err = to.Widen.Form()
		return err
	})
}

// begin starts moving what locate finds in files, once check, which has the device's context, finds that it can be.
func begin(ctx context.Context, files []*File, to *Target, check func() error, locate func(s *scattering) error) (*Request, error) {
	if to.Length < 0 {
		return nil, fmt.Errorf("%w: it cannot have %d bytes", ErrMemory, to.Length)
	}
	for i, f := range files {
		if err := f.enter(); err != nil {
			leave(files[:i])
			return nil, err
		}
	}
	r := files[0].r
	var after driver.Handle
	err := r.device.Within(check)
	if err == nil {
		after, err = r.device.Mark(to.Stream)
	}
	if err != nil {
		leave(files)
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	q := &Request{cancel: cancel, done: make(chan struct{})}
	for _, f := range files {
		f.mu.Lock()
		f.requests[q] = true
		f.mu.Unlock()
		if f.gate.IsShut() { // meanwhile, by a Close that did not see q
			cancel()
		}
	}
	s := &scattering{r: r, after: after, locate: locate}
	done := func(result Result, err error) {
		q.result, q.err = result, err
		r.device.Unmark(after)
		if q.err != nil && ctx.Err() != nil { // it may be that its file was shut
			q.err = ctx.Err()
		}
		cancel()
		close(q.done)
		for _, f := range files {
			f.mu.Lock()
			delete(f.requests, q)
			f.mu.Unlock()
		}
		leave(files)
		q.rung()
	}
	switch {
	case s.start(ctx, done):
	case copiedAtOnce(files, to):
		s.copyAtOnce(ctx, done)
	default:
		go func() { done(s.run(ctx)) }() // ended by ctx
	}
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

// ReadInto brings the file's [offset, offset+n) to memory of the caller.
func (f *File) ReadInto(ctx context.Context, to Target, offset, n int64) (Result, error) {
	return f.GatherInto(ctx, to, []int64{offset}, n)
}

// moveTo brings spans straight to memory of the caller. When it returns, also with an error, nothing is under way.
func (f *File) moveTo(ctx context.Context, to crew.Destination, spans []source.Span) (Result, error) {
	room, _ := f.r.pieces.Get().(*[]source.Piece)
	if room == nil {
		room = new([]source.Piece)
	}
	t := &transfer{f: f, spans: spans, to: to, callers: true, room: *room}
	finished, err := t.run(ctx)
	if err != nil {
		f.r.quiet(finished)
		return Result{}, err
	}
	*room = t.room
	f.r.pieces.Put(room) // nothing of the request is under way
	return Result{t.moved, t.choice}, nil
}
