package pack

import (
	"context"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/hbmfs/hbmfs/internal/pack/corpus"
	"github.com/hbmfs/hbmfs/internal/pack/tokenizer"
)

// Bounds of reading ahead of the writer. They do not change the bytes that are written.
const (
	laneBytes   = 64 << 20 // of one lane's batches: a block of one longest line fits
	laneBatches = 16
	maxReaders  = 8
	groupBytes  = 4 << 20 // of small files that one reader reads one after the other
	groupFiles  = 1024
)

// lane is consecutive documents of the sources that one reader reads, in batches. Lanes are read side by side, and
// written one after the other.
type lane struct {
	spans   []corpus.Span
	before  int64 // bytes of the sources before it
	batches chan *batch
	room    *semaphore.Weighted
	err     error // set before batches is closed
}

func newLane() *lane {
	return &lane{batches: make(chan *batch, laneBatches), room: semaphore.NewWeighted(laneBytes)}
}

// pump is the readers, the workers and the writer of a run.
type pump struct {
	plan  *plan
	in    *input
	order chan *lane  // in the order of the sources
	todo  chan *lane  // the same, for readers
	work  chan *batch // for workers
}

// pump runs the sources, the workers and the writer until the sources have ended or one of them fails.
func (p *plan) pump(ctx context.Context, in *input, w *writer) error {
	readers, from := min(p.Workers, maxReaders), w.at // which the writer changes
	u := &pump{p, in, make(chan *lane, readers), make(chan *lane), make(chan *batch)}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(u.order)
		defer close(u.todo)
		return u.dispatch(ctx, from)
	})
	var reading errgroup.Group
	for range readers {
		reading.Go(func() error {
			for l := range u.todo {
				l.err = u.read(ctx, l, from)
				close(l.batches) // their writer finds the error at its place
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(u.work)
		return reading.Wait()
	})
	for range p.Workers {
		group.Go(func() error { u.tokenize(); return nil })
	}
	group.Go(func() error { return u.write(ctx, w) })
	return group.Wait()
}

// dispatch makes the lanes, of the documents behind from.
func (u *pump) dispatch(ctx context.Context, from corpus.Position) error {
	send := func(l *lane) error {
		for _, queue := range []chan<- *lane{u.order, u.todo} {
			select {
			case queue <- l:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	if u.in.corpus == nil {
		return send(newLane())
	}
	l, bytes, before := newLane(), int64(0), int64(0)
	for _, s := range u.in.spans {
		size := s.To - s.From
		if s.File >= from.File {
			if len(l.spans) > 0 && (bytes+size > groupBytes || len(l.spans) >= groupFiles) {
				if err := send(l); err != nil {
					return err
				}
				l, bytes = newLane(), 0
			}
			if len(l.spans) == 0 {
				l.before = before
			}
			l.spans = append(l.spans, s)
			bytes += size
		}
		before += size
	}
	if len(l.spans) == 0 {
		return nil
	}
	return send(l)
}

// read cuts a lane's documents into batches, and queues each for the writer, in order, and for a worker.
func (u *pump) read(ctx context.Context, l *lane, from corpus.Position) error {
	b := newBatch()
	send := func() error {
		weight := min(b.bytes, laneBytes)
		if err := l.room.Acquire(ctx, weight); err != nil {
			return err
		}
		b.bytes = weight
		for _, queue := range []chan<- *batch{l.batches, u.work} {
			select {
			case queue <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		b = newBatch()
		return nil
	}
	if u.in.corpus == nil {
		err := u.in.source.Documents(ctx, func(d Document, read int64) error {
			if b.add(d, read); b.full() {
				return send()
			}
			return nil
		})
		if err == nil && len(b.parts) > 0 {
			err = send()
		}
		return err
	}
	before := l.before
	for _, s := range l.spans {
		at := corpus.Position{}
		if s.File == from.File {
			at = from
		}
		err := u.in.corpus.Read(ctx, s, at, func(block *corpus.Block) error {
			if b.addBlock(block, before); b.full() {
				return send()
			}
			return nil
		})
		if err != nil {
			return err
		}
		before += s.To - s.From
	}
	if len(b.blocks) == 0 {
		return nil
	}
	return send()
}

func (u *pump) tokenize() {
	var encoder *tokenizer.Encoder
	for b := range u.work {
		if encoder == nil && u.plan.tokenizer != nil {
			encoder = u.plan.tokenizer.NewEncoder()
		}
		b.err = b.parse(encoder)
		close(b.done)
	}
}

// write writes the batches of all lanes in order.
func (u *pump) write(ctx context.Context, w *writer) error {
	for l := range u.order {
		for open := true; open; {
			var b *batch
			select {
			case b, open = <-l.batches:
			case <-ctx.Done():
				return ctx.Err()
			}
			if !open {
				break
			}
			select {
			case <-b.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			if b.err != nil {
				return b.err
			}
			if err := w.batch(ctx, b); err != nil {
				return err
			}
			l.room.Release(b.bytes)
			if u.plan.Progress != nil {
				u.plan.Progress(b.read, u.in.total)
			}
		}
		if l.err != nil {
			return l.err
		}
	}
	return ctx.Err()
}
