package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// Plan adds to the plan of a reader, any comparable value, the runs that it will read next. Their objects were added
// here, by any origin. They are fetched in that order, each from its own origin. Plan reports whether there was room to
// remember them. They count as read in records.
func (s *Store) Plan(reader any, runs []layout.Run) bool {
	reads := s.readsOf(runs)
	taken := s.plan(reader, reads)
	if taken {
		for _, u := range reads {
			s.touched(u.origin.file(u.object), u.origin.segment(u.object, u.start))
		}
	}
	return taken
}

// Bring is [Store.Plan] for segments that others have read: they count as read by nobody.
func (s *Store) Bring(reader any, runs []layout.Run) bool { return s.plan(reader, s.readsOf(runs)) }

// readsOf cuts runs where segments end, as far as a plan has room for the reads.
func (s *Store) readsOf(runs []layout.Run) (reads []*planned) {
	for _, r := range runs {
		x, ok := r.Object.Origin.(*Cached)
		if !ok || x.store != s {
			continue // it is kept elsewhere, or nowhere
		}
		f := x.file(r.Object)
		for i := range r.Count {
			from := r.Offset + i*r.Stride
			for end := min(r.Object.Size, from+r.Length); from < end && len(reads) <= readsOfPlan; {
				g := x.segment(r.Object, from)
				to := min(end, g.end())
				reads = append(reads, &planned{origin: x, object: r.Object, key: keyOf(f.identity, g.index), start: g.start, from: from, to: to})
				from = to
			}
			if len(reads) > readsOfPlan {
				break
			}
		}
	}
	return reads
}

func (s *Store) plan(reader any, reads []*planned) bool {
	taken, start := s.ledger.plan(reader, reads, time.Now())
	if start {
		s.wg.Go(s.fillPlanned)
	}
	return taken
}

// Planned gives each reader's plan: the runs that are still to be read, in order.
func (s *Store) Planned(each func(reader any, runs []layout.Run)) {
	l := &s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for reader, p := range l.plans.of {
		runs := make([]layout.Run, 0, len(p.reads))
		for _, u := range p.reads {
			if u != nil {
				runs = append(runs, layout.Run{Object: u.object, Offset: u.from, Length: u.to - u.from, Stride: u.to - u.from, Count: 1})
			}
		}
		each(reader, runs)
	}
}

// EndPlan forgets a reader's plan.
func (s *Store) EndPlan(reader any) { s.ledger.endPlan(reader) }

// WasRead is told of reads that do not come by [Cached.ReadAt].
func (x *Cached) WasRead(o *layout.Object, off, n int64) {
	x.reached(o, true, false)
	f := x.file(o)
	f.ahead(off, min(o.Size, off+n), x.store.mostAhead()) // so that it goes on in order where the local bytes end
	for end := min(o.Size, off+n); off < end; {
		g := x.segment(o, off)
		x.store.touched(f, g)
		x.store.ledger.wasRead(keyOf(f.identity, g.index), off, min(end, g.end()))
		off = g.end()
	}
}

// fillPlanned, the filler, fetches planned reads until there are no plans left, or the store is closed.
func (s *Store) fillPlanned() {
	var wg sync.WaitGroup
	defer wg.Wait()
	retry := time.NewTicker(planRetry)
	defer retry.Stop()
	for {
		u, more := s.ledger.nextPlanned(time.Now())
		if !more {
			return
		}
		if u != nil {
			reserved, err := s.reserve(u)
			if err != nil {
				s.ledger.fetched(u, true, time.Now())
				continue
			}
			wg.Go(func() {
				err := s.bringPlanned(s.ctx, u)
				reserved()
				s.ledger.fetched(u, errors.Is(err, errNoRoom), time.Now())
			})
			continue
		}
		select {
		case <-s.ledger.plans.wake:
		case <-retry.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// reserve takes the room of a planned read, as much as is under way at a time, and pins its segment until release. It
// is called for one after the other, so that none takes the room of another that comes sooner.
func (s *Store) reserve(u *planned) (release func(), err error) {
	if u.object.Whole { // all of it is reserved, if it is to be fetched
		return func() {}, nil
	}
	off, end := s.ledger.span(u, u.start)
	e := s.ledger.pin(u.key, u.fill)
	if _, fill := s.ledger.look(e); fill != nil && off < end {
		err = fill.reserve(int((off-u.start)/block), fill.blockEnd(end-u.start), u)
	}
	if err != nil {
		s.ledger.unpin(e)
		return nil, err
	}
	return func() { s.ledger.unpin(e) }, nil
}

// fill makes a fill of its segment.
func (u *planned) fill() *fill {
	g := u.origin.segment(u.object, u.start)
	return newFill(u.origin, u.object, g.start, g.size)
}

// bringPlanned returns when a planned read's bytes are here. It stops with an error where the origin fails, as reads
// will, or the disk has no room.
func (s *Store) bringPlanned(ctx context.Context, u *planned) error {
	x := u.origin
	f, g := x.file(u.object), x.segment(u.object, u.start)
	for at := u.start; ; {
		if err := f.refusal(u.object); err != nil {
			return err
		}
		off, end := s.ledger.span(u, at)
		if off >= end {
			return nil
		}
		if s.health.sick() {
			return errNoRoom
		}
		err := x.bringSpan(ctx, f, g, off, end, u)
		var local *localError
		switch {
		case errors.As(err, &local):
			s.health.fail(err)
			return errNoRoom
		case err == nil:
			at = end
		case !errors.Is(err, errMoved):
			return err
		}
	}
}

// span gives the next bytes of a planned read from off on.
func (l *ledger) span(u *planned, off int64) (from, to int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	off = max(off, u.from)
	return off, min(u.to, off+planStep)
}

func (x *Cached) bringSpan(ctx context.Context, f *file, g segmentOf, from, to int64, u *planned) error {
	s := x.store
	if g.object.Whole {
		return x.bring(ctx, f, g, u)
	}
	e := s.ledger.pin(u.key, u.fill)
	defer s.ledger.unpin(e)
	_, fill := s.ledger.look(e)
	if fill == nil {
		return nil
	}
	if !fill.use() {
		return errMoved
	}
	defer fill.unuse()
	return fill.want(ctx, from-g.start, to-g.start, 0, u)
}
