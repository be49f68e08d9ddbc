package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
)

// stream is a cufile.Stream whose next view can be waited for with a timeout, which ends nothing.
type stream struct {
	file   *file
	ctx    context.Context // until the stream is closed; it stands for the C handle's life, which no call spans
	cancel context.CancelFunc
	s      *cufile.Stream
	turn   chan struct{} // one at a time asks
	wg     sync.WaitGroup

	coming chan coming // the answer that is awaited; nil for none. Of who has the turn
	ended  error       // what the stream ended with. Of who has the turn
}

type coming struct {
	v   *cufile.View
	err error
}

// view is a part of a stream in the reader's memory.
type view struct {
	reader *reader
	v      *cufile.View
}

func (l *library) openStream(handle uint64, plan []cufile.Span, depth int) (uint64, error) {
	f, err := find[*file](l, handle)
	if err != nil {
		return 0, err
	}
	leave, err := f.enter("file")
	if err != nil {
		return 0, err
	}
	defer leave()
	if err := inside(plan, f.f.Size()); err != nil {
		return 0, err
	}
	if depth < 1 || depth > 1<<16 {
		return 0, failf(codeInvalid, "the depth must be 1 to 65536, not %d", depth)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &stream{file: f, ctx: ctx, cancel: cancel, s: f.f.Stream(ctx, plan, depth), turn: make(chan struct{}, 1)}
	return f.join(l, s), nil
}

// next gives the next view and its handle.
func (l *library) next(handle uint64, timeout time.Duration) (uint64, *cufile.View, error) {
	s, err := find[*stream](l, handle)
	if err != nil {
		return 0, nil, err
	}
	v, err := s.next(timeout)
	if err != nil {
		return 0, nil, err
	}
	leave, err := s.file.reader.enter("reader") // not before: closing it waits for those inside
	if err != nil {
		v.Release()
		return 0, nil, err
	}
	defer leave()
	s.file.reader.count(v.Choice())
	return s.file.reader.join(l, &view{s.file.reader, v}), v, nil
}

func (s *stream) next(timeout time.Duration) (*cufile.View, error) {
	over := make(<-chan time.Time) // never
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		over = timer.C
	}
	if err := s.take(over); err != nil {
		return nil, err
	}
	defer func() { <-s.turn }()
	if s.ended != nil {
		return nil, s.ended
	}
	if s.coming == nil {
		s.ask()
	}
	var c coming
	select {
	case c = <-s.coming: // what is there comes before a timeout of 0
	default:
		select {
		case c = <-s.coming:
		case <-over:
			return nil, failf(codeTimeout, "the next range is not there yet")
		case <-s.ctx.Done():
			return nil, failf(codeClosed, "the stream is closed")
		}
	}
	s.coming = nil
	s.ended = endOf(c.err)
	return c.v, s.ended
}

// take waits for the turn.
func (s *stream) take(over <-chan time.Time) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-over:
		return failf(codeTimeout, "another thread waits for the next range")
	case <-s.ctx.Done():
		return failf(codeClosed, "the stream is closed")
	}
}

// ask waits for the next view on a goroutine of its own.
func (s *stream) ask() {
	answer := make(chan coming, 1)
	s.coming = answer
	s.wg.Go(func() {
		v, err := s.s.Next(s.ctx)
		answer <- coming{v, err}
	})
}

func endOf(err error) error {
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return failf(codeEnd, "the plan is done")
	}
	return err
}

// close ends the stream. Views that were given out stay.
func (s *stream) close() {
	s.cancel()
	s.turn <- struct{}{} // whoever had it has seen the end
	s.wg.Wait()
	if s.coming != nil {
		if c := <-s.coming; c.v != nil {
			c.v.Release()
		}
		s.coming = nil
	}
	s.ended = failf(codeClosed, "the stream is closed")
	<-s.turn
	s.s.Close()
}

func (l *library) closeStream(handle uint64) error {
	s, err := find[*stream](l, handle)
	if err != nil {
		return err
	}
	if !s.file.part(l, handle) {
		return failf(codeClosed, "handle %d is closed", handle)
	}
	s.close()
	return nil
}

func (l *library) releaseView(handle uint64) error {
	v, err := find[*view](l, handle)
	if err != nil {
		return err
	}
	if !v.reader.part(l, handle) {
		return failf(codeClosed, "handle %d is closed", handle)
	}
	v.v.Release()
	return nil
}

// inside refuses a plan of ranges that are not inside a file.
func inside(plan []cufile.Span, size int64) error {
	for i, span := range plan {
		if span.Offset < 0 || span.Length < 0 || span.Offset > size || span.Length > size-span.Offset {
			return failf(codeOutOfRange, "range %d of the plan, %d bytes at %d, is not inside the file's %d", i, span.Length, span.Offset, size)
		}
	}
	return nil
}
