package cufile

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
)

// Span is a range of a file, in bytes.
type Span struct{ Offset, Length int64 }

// Stream is an ordered plan of spans that are fetched ahead of their use.
type Stream struct {
	ctx    context.Context // reads ahead end with it
	cancel context.CancelFunc
	ready  chan chan fetched
	wg     sync.WaitGroup

	mu  sync.Mutex
	err error // the first that Next gave; guarded by mu
}

type fetched struct {
	view *View
	err  error
}

// Stream starts fetching plan in its order, at most depth spans ahead of Next. Close must be called.
func (f *File) Stream(ctx context.Context, plan []Span, depth int) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{ctx: ctx, cancel: cancel, ready: make(chan chan fetched, max(depth, 1))}
	s.wg.Go(func() { s.fetch(ctx, f, plan) })
	return s
}

// fetch allocates memory in the plan's order, so that no later span has the memory that an earlier one waits for. Memory is
// filled concurrently.
func (s *Stream) fetch(ctx context.Context, f *File, plan []Span) {
	defer close(s.ready)
	for _, span := range plan {
		result := make(chan fetched, 1)
		select {
		case s.ready <- result:
		case <-ctx.Done():
			return
		}
		spans := spansOf([]Span{span})
		v, err := f.reserve(ctx, spans)
		if err != nil {
			result <- fetched{err: fmt.Errorf("stream %d bytes at %d: %w", span.Length, span.Offset, err)}
			return
		}
		s.wg.Go(func() {
			v, err := f.fill(ctx, v, spans)
			result <- fetched{v, err}
		})
	}
}

// Next gives the next span's view, in the plan's order; io.EOF after the last. The caller releases it, without
// needing a further view first. After an error the stream has ended, and Next gives that error again: other views
// that were fetched come later in the plan.
func (s *Stream) Next(ctx context.Context) (*View, error) {
	if err := s.failed(nil); err != nil {
		return nil, err
	}
	v, err := s.next(ctx)
	if err == nil {
		return v, nil
	}
	s.cancel()
	return nil, s.failed(err)
}

// failed keeps the first error, and returns it.
func (s *Stream) failed(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = cmp.Or(s.err, err)
	return s.err
}

func (s *Stream) next(ctx context.Context) (*View, error) {
	var result chan fetched
	select {
	case next, ok := <-s.ready:
		if !ok {
			return nil, cmp.Or(s.ctx.Err(), io.EOF)
		}
		result = next
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case r := <-result:
		return r.view, r.err
	case <-ctx.Done():
		// The view is on its way and has no other taker.
		s.wg.Go(func() {
			if r := <-result; r.view != nil {
				r.view.Release()
			}
		})
		return nil, ctx.Err()
	}
}

// Close stops fetching and releases the views that Next has not given.
func (s *Stream) Close() {
	s.cancel()
	for result := range s.ready {
		if r := <-result; r.view != nil {
			r.view.Release()
		}
	}
	s.wg.Wait()
}
