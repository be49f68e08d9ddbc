package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
)

// mostAhead is how many files are made before the first byte is written, so that a full disk is known early. Others are made
// when their turn comes: descriptors are few.
const mostAhead = 256

// run writes all files. When it returns, also with an error, nothing is under way.
func (q *Write) run(ctx context.Context) error {
	if err := q.w.settled(ctx, q); err != nil {
		return err
	}
	if q.dir.past && len(q.outputs) > 0 {
		if err := q.dir.look(q.outputs[0]); err != nil {
			return err
		}
	}
	choice, err := q.choose(ctx)
	if err != nil {
		return err
	}
	q.result.Choice = choice
	for _, o := range q.outputs {
		o.only = q.w.opt.Require && q.w.opt.Path == Staged
	}
	if q.dir.inMemory() && !q.dir.past {
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
			q.result.Choice = Choice{Path: Buffered, Why: err.Error()}
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

// turn is how long a worker stays with one write while others wait for it.
const turn = 100 * time.Millisecond

// writeUpTo has workers write chunks up to a number. When it returns, also with an error, nothing is under way. Workers come for a
// turn at a time, so that writes share them; a write that is cancelled before its turn waits for none.
func (q *Write) writeUpTo(ctx context.Context, end int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	q.end = end
	q.next.Store(min(q.next.Load(), q.started))
	workers := min(int64(q.w.opt.Threads), end-q.started)
	q.started = end
	var inside crew.Gate // of workers that use the write's memory
	step := func(w *crew.Worker) error {
		if !inside.Enter() {
			return context.Canceled // it came after all others had left
		}
		defer inside.Leave()
		return q.work(ctx, w)
	}
	var turns sync.WaitGroup
	for range workers {
		turns.Go(func() {
			for q.next.Load() < end && ctx.Err() == nil {
				if err := q.w.crew.Do(ctx, step); err != nil {
					cancel(err)
				}
			}
		})
	}
	turns.Wait()
	crew.Quiet(inside.Shut(), q.w.crew)
	err := context.Cause(ctx)
	if errors.Is(err, crew.ErrClosed) {
		err = ErrClosed
	}
	return err
}
