package writer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hbmfs/hbmfs/internal/crew"
)

// mostAhead is how many files are made before the first byte is written, so that a full disk is known early. Others are made
// when their turn comes: descriptors are few.
const mostAhead = 256

// run writes all files. When it returns, also with an error, nothing is under way.
func (q *Write) run(ctx context.Context) error {
	if err := q.w.settled(ctx, q); err != nil {
		return err
	}
	choice, err := q.choose(ctx)
	if err != nil {
		return err
	}
	q.result.Choice = choice
	for _, o := range q.outputs {
		o.only = q.w.opt.Require && q.w.opt.Path == Staged
	}
	if q.dir.inMemory() {
		if err := q.dir.room(q.total); err != nil {
			return err
		}
	}
	if choice.Path == Mapped {
		return q.runMapped(ctx)
	}
	if err := q.make(ctx, q.outputs[:min(len(q.outputs), mostAhead)]); err != nil {
		return err
	}
	return q.writeUpTo(ctx, q.chunks)
}

func (q *Write) make(ctx context.Context, files []*output) error {
	for _, o := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := o.make(q.past()); err != nil {
			return err
		}
	}
	return nil
}

// past says whether files are to be written past the page cache.
func (q *Write) past() bool { return q.result.Choice.Path == Staged || q.result.Choice.Path == Direct }

// runMapped maps some files at a time, since descriptors are few. Where mapping does not work, and is not required, the rest goes
// through the page cache.
func (q *Write) runMapped(ctx context.Context) error {
	for first := 0; first < len(q.outputs); first += mostAhead {
		last := min(first+mostAhead, len(q.outputs))
		end := q.chunks
		if last < len(q.outputs) {
			end = q.first[last]
		}
		files := q.outputs[first:last]
		if err := q.make(ctx, files); err != nil {
			return err
		}
		began := time.Now()
		m, err := newMapping(q.w, files)
		if err == nil {
			if err = m.bring(ctx); err != nil {
				err = errors.Join(err, m.close())
			}
		}
		q.result.Prepared += time.Since(began)
		switch {
		case errors.Is(err, errUnmapped) && q.w.opt.Require:
			return fmt.Errorf("write to %s: %w: %w", q.dir.path, ErrUnavailable, err)
		case errors.Is(err, errUnmapped):
			q.result.Choice = Choice{Buffered, err.Error()}
			return q.writeUpTo(ctx, q.chunks)
		case err != nil:
			return err
		}
		err = q.writeUpTo(ctx, end)
		written := time.Now()
		err = errors.Join(err, m.close())
		q.result.Released += time.Since(written)
		if err != nil {
			return err
		}
	}
	return nil
}

// writeUpTo has workers write chunks up to a number. When it returns, also with an error, nothing is under way.
func (q *Write) writeUpTo(ctx context.Context, end int64) error {
	q.end = end
	q.next.Store(min(q.next.Load(), q.started))
	workers := min(int64(q.w.opt.Threads), end-q.started)
	q.started = end
	finished, err := q.w.crew.Run(ctx, int(workers), workers, func(w *crew.Worker, _ int64) error { return q.work(ctx, w) })
	q.w.quiet(finished)
	if errors.Is(err, crew.ErrClosed) {
		err = ErrClosed
	}
	return err
}
