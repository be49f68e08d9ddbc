package cufile

import (
	"context"
	"errors"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/mapped"
	"github.com/hbmfs/hbmfs/cufile/internal/sequences"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// scattering is a request on its way whose spans go to places of their own. Where all of its rows are registered, the thread that launches kernels does
// all of it: each other thread that is woken for a batch costs as much CPU as the batch.
type scattering struct {
	r      *Reader
	after  driver.Handle
	locate func(s *scattering) error // finds to and parts
	also   *sequences.Writing        // nil: nothing is said of tokens
	end    func()                    // what locate took is no longer needed; may be nil

	to    crew.Destination
	parts []part
	rows  []mapped.Rows // of parts
}

// look finds the spans, once, and what else is to be written.
func (s *scattering) look() error {
	if s.parts != nil {
		return nil
	}
	if err := s.locate(s); err != nil {
		return err
	}
	if s.also == nil {
		return nil
	}
	s.to.Also = s.also.Also
	return s.also.Check()
}

// launch starts moving the rows that the GPU sees.
func (s *scattering) launch(w *crew.Worker) (err error) {
	if err = s.look(); err != nil {
		return err
	}
	if s.rows, err = seenRows(s.parts); err != nil {
		return err
	}
	return s.r.mapped.MoveRows(w, &s.to, s.rows)
}

// start begins the request without a goroutine of its own, if it can. done is called once.
func (s *scattering) start(ctx context.Context, done func(Result, error)) bool {
	if !s.r.seesRows() {
		return false
	}
	return s.r.mapped.Thread.Start(ctx, s.launch, func(err error) {
		if err != nil && !errors.Is(err, mapped.ErrApart) {
			done(Result{}, err)
			return
		}
		total, missing := tookRows(s.parts, s.rows, err)
		if err != nil || len(missing) > 0 || s.also != nil && !s.also.Begun() || s.news() {
			go func() { done(s.rest(ctx, total, missing, err)) }() // ended by ctx
			return
		}
		s.given()
		done(total, nil)
	})
}

// run does all of it, and waits.
func (s *scattering) run(ctx context.Context) (Result, error) {
	if s.r.copied != nil {
		total, missing, err := s.copyMapped(ctx)
		if err != nil {
			return Result{}, err
		}
		return s.rest(ctx, total, missing, nil)
	}
	if err := s.look(); err != nil {
		return Result{}, err
	}
	err := mapped.ErrApart
	if s.r.seesRows() {
		var finished <-chan struct{}
		if finished, err = s.r.mapped.Thread.Run(ctx, 1, 1, func(w *crew.Worker, _ int64) error { return s.launch(w) }); err != nil {
			s.r.quiet(finished)
		}
	}
	if err != nil && !errors.Is(err, mapped.ErrApart) {
		return Result{}, err
	}
	total, missing := tookRows(s.parts, s.rows, err)
	return s.rest(ctx, total, missing, err)
}

// rest moves what launch did not move, which gave err, and writes what was not begun.
func (s *scattering) rest(ctx context.Context, total Result, missing []part, err error) (Result, error) {
	if err != nil {
		total, err = scatterUnseen(ctx, s.to, s.parts)
	} else if len(missing) > 0 {
		to := s.to
		to.Also = nil // it is done
		var more Result
		more, err = scatterUnseen(ctx, to, missing)
		total.add(more)
	}
	if err == nil {
		err = s.changed(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	s.given()
	if s.also != nil {
		err = s.also.Finish(ctx, s.after)
	}
	return total, err
}

// news says whether a daemon has something to tell.
func (s *scattering) news() bool {
	for i, p := range s.parts {
		if i == 0 || p.file.r != s.parts[i-1].file.r {
			if p.file.r.descriptors.Watch().News() {
				return true
			}
		}
	}
	return false
}

// changed says whether a file that the request has read is known to have changed by now.
func (s *scattering) changed(ctx context.Context) error {
	if !s.news() {
		return nil
	}
	for _, p := range s.parts {
		p.file.r.descriptors.Watch().Hear(ctx)
		pieces, err := source.Pieces(ctx, p.file.source, p.spans, nil, false)
		if err == nil {
			err = source.Changed(pieces)
		}
		if err != nil && !errors.Is(err, source.ErrMoved) {
			return err
		}
	}
	return nil
}

// given ends the use of what locate took: nothing of the spans is under way.
func (s *scattering) given() {
	if s.end != nil {
		s.end()
	}
}
