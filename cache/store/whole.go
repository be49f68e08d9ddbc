package store

import (
	"context"
	"errors"
	"sync"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// pass gets an object that comes as a whole: [layout.Object.Whole]. One pass fills all of its segments, and none of its
// bytes counts before the origin has said that all are right. While a pass is under way the object's fills are its alone.
type pass struct {
	done chan struct{} // all bytes are here
	err  error         // valid once done is closed
	over chan struct{} // and the segments are published, or given up

	planned *planned // that it is for, nil for a read that waits
	hurry   func()   // has it wait for no other: somebody waits for it
}

// bring returns when a segment of an object that comes as a whole is here. The first caller has it come; it comes even if
// nobody waits any more.
func (x *Cached) bring(ctx context.Context, f *file, g segmentOf, u *planned) error {
	s := x.store
	f.mu.Lock()
	p := f.pass
	if p == nil {
		if s.ledger.find(keyOf(f.identity, g.index)) != nil {
			f.mu.Unlock()
			return nil
		}
		p = x.startPass(f, g.object, u)
	}
	f.mu.Unlock()
	p.hurry()
	select {
	case <-p.done:
		if u == nil && p.planned != nil && errors.Is(p.err, errNoRoom) {
			return x.bring(ctx, f, g, nil) // the room that a plan did not get is there for this read
		}
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// startPass has an object come, when it is its turn. f.mu is held.
func (x *Cached) startPass(f *file, o *layout.Object, u *planned) *pass {
	hurried := make(chan struct{})
	p := &pass{done: make(chan struct{}), over: make(chan struct{}), planned: u, hurry: sync.OnceFunc(func() { close(hurried) })}
	f.pass = p
	x.store.wg.Go(func() { x.pass(f, o, p, hurried) })
	return p
}

// pass gets an object, lets its readers in, and publishes its segments.
func (x *Cached) pass(f *file, o *layout.Object, p *pass, hurried <-chan struct{}) {
	s := x.store
	release := s.turn(hurried)
	fits := o.Size <= s.opt.Size // otherwise its fills alone may take all memory
	var fills []*fill
	if fits {
		fills = x.fills(f, o)
	}
	ctx, span := s.opt.Trace.Start(s.ctx, "fill")
	span.Text("object", o.Name).Int("bytes", o.Size).Int("segments", int64(len(fills))).Bool("planned", p.planned != nil)
	switch {
	case fits:
		p.err = x.pour(ctx, o, fills, p.planned)
	case p.planned == nil:
		s.stats.refused.Add(1)
		fallthrough
	default:
		p.err = errNoRoom
	}
	span.End(class(p.err))
	release() // before the bytes are on the disk, which may be slower
	if p.err != nil {
		for _, fill := range fills {
			if fill != nil {
				s.ledger.drop(fill.entry)
				fill.close()
			}
		}
		f.passed() // who reads now has it come again
	}
	close(p.done)
	for _, fill := range fills {
		if fill == nil {
			continue
		}
		if p.err == nil {
			fill.publish(ctx)
		}
		s.ledger.unpin(fill.entry)
	}
	if p.err == nil {
		f.passed()
	}
	close(p.over)
}

// passed says that no pass is under way.
func (f *file) passed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pass = nil
}

// fills makes a pinned fill for each segment of an object, nil for those that are here.
func (x *Cached) fills(f *file, o *layout.Object) (fills []*fill) {
	s := x.store
	for at := int64(0); at < o.Size; {
		g := x.segment(o, at)
		var fresh *fill
		e := s.ledger.pin(keyOf(f.identity, g.index), func() *fill {
			fresh = newFill(x, o, g.start, g.size)
			return fresh
		})
		if fresh == nil {
			s.ledger.unpin(e)
		}
		fills = append(fills, fresh)
		at = g.end()
	}
	return fills
}

// pour makes room for the fills and gets their bytes. Damaged bytes are fetched once again.
func (x *Cached) pour(ctx context.Context, o *layout.Object, fills []*fill, u *planned) error {
	for _, fill := range fills {
		if fill == nil {
			continue
		}
		if _, err := fill.room(&flight{first: 0, last: fill.have.n, planned: u}, 0, fill.size); err != nil {
			return err
		}
	}
	err := x.pourOnce(ctx, o, fills)
	if errors.Is(err, cache.ErrDamaged) && ctx.Err() == nil {
		x.store.opt.Log.Warn("an object came damaged and is fetched again", "object", o.Name, "error", err)
		err = x.pourOnce(ctx, o, fills)
	}
	return err
}

func (x *Cached) pourOnce(ctx context.Context, o *layout.Object, fills []*fill) error {
	s := x.store
	writers := make([]*writer, len(fills))
	for i, fill := range fills {
		if fill != nil {
			writers[i] = &writer{fill: fill, fd: fill.fd, sumBlock: sumBlock(fill.size), summing: true}
		}
	}
	at := int64(0)
	return x.up.Fetch(ctx, o, 0, o.Size, func(p []byte) error {
		for len(p) > 0 {
			g := x.segment(o, at)
			q := p[:min(int64(len(p)), g.end()-at)]
			if w := writers[g.index]; w != nil {
				if err := w.write(q); err != nil {
					return err
				}
				s.stats.fetched.Add(int64(len(q)))
			}
			at, p = at+int64(len(q)), p[len(q):]
		}
		return nil
	})
}
