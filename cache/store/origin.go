package store

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// Cached is an origin as seen through the store. It implements [layout.Origin].
type Cached struct {
	store  *Store
	up     Upstream
	source string
	next   map[*layout.Object]*layout.Object // of those that come as a whole

	mu     sync.Mutex // guards the fields below
	files  map[*layout.Object]*file
	trails []trail // the one that was seen last comes first
}

// file is the state of an object that was read.
type file struct {
	identity [32]byte
	wrong    atomic.Pointer[error] // why it is given out no more
	doubted  atomic.Bool           // it was fetched with another hash once
	stale    atomic.Bool           // the kernel may have pages of that, and was not told yet

	mu      sync.Mutex // guards the fields below
	streams []stream   // the one that was seen last comes first
	pass    *pass      // of an object that comes as a whole, while it comes

	last, stride int64 // the read before: where it was, -1 for none, and how far from the one before that
	strides      int   // how often in a row it was as far
}

func (x *Cached) file(o *layout.Object) *file {
	x.mu.Lock()
	f := x.files[o]
	fresh := f == nil
	if fresh {
		f = &file{identity: identity(x.source, o, x.store.opt.Segment), last: -1}
		x.files[o] = f
	}
	x.mu.Unlock()
	if fresh { // an earlier process may have filled it, and ended before it was compared
		x.compareSoon(f, o)
	}
	return f
}

// mostAhead bounds the bytes that are fetched ahead of one reader. Several would evict each other's if it were not a
// small part of the budget.
func (s *Store) mostAhead() int64 {
	const share = 16
	return min(s.opt.Ahead, s.opt.Size/share)
}

// ReadAt implements [layout.Origin]. Missing bytes are fetched; where the disk fails or is full, the origin is read.
func (x *Cached) ReadAt(ctx context.Context, o *layout.Object, p []byte, off int64) (int, error) {
	if off < 0 || off >= o.Size {
		return 0, io.EOF
	}
	f := x.file(o)
	if err := f.refusal(o); err != nil {
		return 0, err
	}
	want := p[:min(int64(len(p)), o.Size-off)]
	ahead := f.ahead(off, off+int64(len(want)), x.store.mostAhead())
	x.reached(o, true, ahead >= inOrder)
	for n := 0; n < len(want); {
		g := x.segment(o, off+int64(n))
		m := int(min(int64(len(want)-n), g.end()-off-int64(n)))
		if err := x.read(ctx, f, g, want[n:n+m], off+int64(n), ahead); err != nil {
			return n, err
		}
		x.store.ledger.wasRead(keyOf(f.identity, g.index), off+int64(n), off+int64(n+m))
		n += m
	}
	if x.aheadOf(f, o, off+int64(len(want)), ahead); ahead == 0 && !o.Whole {
		x.stridesAhead(f, o, off, int64(len(want)))
	}
	if len(want) < len(p) {
		return len(want), io.EOF
	}
	return len(want), nil
}

// segmentOf says which segment of an object holds a byte.
type segmentOf struct {
	object      *layout.Object
	index       int64
	start, size int64 // in the object
}

func (g segmentOf) end() int64 { return g.start + g.size }

func (x *Cached) segment(o *layout.Object, off int64) segmentOf {
	size := x.store.opt.Segment
	index := off / size
	return segmentOf{o, index, index * size, min(size, o.Size-index*size)}
}

// read fills p with bytes of one segment.
func (x *Cached) read(ctx context.Context, f *file, g segmentOf, p []byte, off, ahead int64) error {
	s := x.store
	k := keyOf(f.identity, g.index)
	for range 3 { // a segment can be published, and evicted, while it is read
		if s.health.sick() {
			break
		}
		err := x.readHere(ctx, f, k, g, p, off-g.start, ahead)
		var local *localError
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errMoved):
			continue
		case errors.As(err, &local):
			s.health.fail(err)
		case !errors.Is(err, errNoRoom):
			return err
		}
		break
	}
	s.stats.uncached.Add(int64(len(p)))
	n, err := x.up.ReadAt(ctx, g.object, p, off)
	if n == len(p) {
		return nil
	}
	return err
}

func (x *Cached) readHere(ctx context.Context, f *file, k key, g segmentOf, p []byte, at, ahead int64) error {
	s := x.store
	make := func() *fill { return newFill(x, g.object, g.start, g.size) }
	if g.object.Whole {
		if err := x.bring(ctx, f, g, nil); err != nil {
			return err
		}
		make = nil
	}
	e := s.ledger.pin(k, make)
	if e == nil {
		return errMoved
	}
	defer s.ledger.unpin(e)
	_, fill := s.ledger.look(e)
	if fill != nil {
		err := fill.read(ctx, p, at, ahead)
		if errors.Is(err, errLost) {
			s.ledger.drop(e)
			fill.close()
		}
		return err
	}
	o, err := s.published(e)
	if err != nil {
		return err
	}
	n, err := o.ReadAt(ctx, p, at)
	if n == len(p) {
		s.stats.hits.Add(int64(n))
		return nil
	}
	return s.lost(e, err)
}

// published gives the object of a segment that has a name. The first time it looks into it.
func (s *Store) published(e *entry) (*layout.Object, error) {
	if o, _ := s.ledger.look(e); o != nil {
		return o, nil
	}
	o, err := s.dir.Object(e.key.name())
	if err != nil {
		return nil, s.lost(e, err)
	}
	fd, done, err := s.dir.Borrow(s.ctx, o)
	if err != nil {
		return nil, s.lost(e, err)
	}
	defer done()
	if _, err := readHeader(fd, e.key); err != nil {
		s.stats.corrupt.Add(1)
		s.opt.Log.Warn("a segment is damaged and is fetched again", "segment", o.Name, "error", err)
		return nil, s.lost(e, err)
	}
	s.ledger.know(e, s.own(o))
	return o, nil
}

// lost takes a published segment that cannot be read off the books and out of the directory. It is fetched again, if
// the disk is well.
func (s *Store) lost(e *entry, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	s.ledger.drop(e)
	s.unlink(e)
	if errors.Is(err, cache.ErrChanged) || errors.Is(err, errHeader) || errors.Is(err, errForged) || errors.Is(err, errPlace) || errors.Is(err, fs.ErrNotExist) {
		return errMoved // another process evicted it, or it was damaged, or is not to be believed
	}
	return &localError{"read a segment", err}
}

// aheadOf fetches the part of the n bytes from off on that lies in later segments than off, without waiting.
func (x *Cached) aheadOf(f *file, o *layout.Object, off, n int64) {
	s := x.store
	if o.Whole {
		return
	}
	end := min(o.Size, off+n)
	for at := x.segment(o, max(0, off-1)).end(); at < end && !s.health.sick(); {
		g := x.segment(o, at)
		x.begin(f, g, func(fill *fill) { fill.begin(0, fill.beyond(0, end-at)) })
		at = g.end()
	}
}

// begin calls start with a segment's fill, unless it is published already.
func (x *Cached) begin(f *file, g segmentOf, start func(*fill)) {
	s := x.store
	e := s.ledger.pin(keyOf(f.identity, g.index), func() *fill { return newFill(x, g.object, g.start, g.size) })
	defer s.ledger.unpin(e)
	if _, fill := s.ledger.look(e); fill != nil {
		start(fill)
	}
}

// strides is how many of them are fetched ahead of a reader that comes at equal distances.
const strides = 8

// stridesAhead fetches the next reads of n bytes of a strided reader, without waiting.
func (x *Cached) stridesAhead(f *file, o *layout.Object, off, n int64) {
	s, d := x.store, f.strided()
	for i := int64(1); d != 0 && i <= strides && !s.health.sick(); i++ {
		at := off + i*d
		if at < 0 || at >= o.Size {
			return
		}
		g := x.segment(o, at)
		x.begin(f, g, func(fill *fill) { fill.begin(int((at-g.start)/block), fill.blockEnd(at-g.start+n)) })
	}
}

// Lies gives the place of the byte at off of o on this machine: the published segment, the offset there, and how many
// bytes follow. A nil object means that it lies nowhere yet.
func (x *Cached) Lies(o *layout.Object, off int64) (segment *layout.Object, at, n int64) {
	g, f := x.segment(o, off), x.file(o)
	if f.refusal(o) != nil { // reads hear why
		return nil, 0, g.end() - off
	}
	if e := x.store.ledger.pin(keyOf(f.identity, g.index), nil); e != nil {
		defer x.store.ledger.unpin(e)
		if _, fill := x.store.ledger.look(e); fill == nil {
			if seg, err := x.store.published(e); err == nil {
				if e.lies.Load() == nil {
					e.lies.Store(&originSegment{x, g})
				}
				return seg, off - g.start, g.end() - off
			}
		}
	}
	return nil, 0, g.end() - off
}
