package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// mostTouches bounds a record: some 10 MiB, or 64 TiB in segments of 256 MiB. It has the first of more.
const mostTouches = 1 << 18

// Touch is the first read of a segment: the part of an object that a cache brings as one.
type Touch struct {
	Object         *layout.Object
	Offset, Length int64
}

// Record has the segments that were read since it began, each once, in the order of their first reads. Reads for a plan count
// when they are planned. It is safe for concurrent use.
type Record struct {
	Since time.Time

	mu    sync.Mutex // guards the fields below
	seen  map[*file]bits
	order []Touch
	full  bool
}

// Touches gives the touches from one on, and tells whether there were more than it may have.
func (r *Record) Touches(from int) (touches []Touch, full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.order)
	return r.order[min(from, n):n:n], r.full // appended entries never change
}

// note takes a segment down. size is that of all segments but the last.
func (r *Record) note(f *file, g segmentOf, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen, known := r.seen[f]
	if known && seen.get(int(g.index)) {
		return
	}
	if len(r.order) >= mostTouches {
		r.full = true
		return
	}
	if !known {
		seen = newBits(int((g.object.Size + size - 1) / size))
		r.seen[f] = seen
	}
	seen.set(int(g.index))
	r.order = append(r.order, Touch{g.object, g.start, g.size})
}

// records are those of a store: the one that began with it, and those that others began.
type records struct {
	first *Record
	all   atomic.Pointer[[]*Record]
	mu    sync.Mutex // guards changes of all
}

func newRecord() *Record { return &Record{Since: time.Now(), seen: map[*file]bits{}} }

func (s *records) init() {
	s.first = newRecord()
	s.all.Store(&[]*Record{s.first})
}

// touched notes that a segment is read.
func (s *Store) touched(f *file, g segmentOf) {
	for _, r := range *s.records.all.Load() {
		r.note(f, g, s.opt.Segment)
	}
}

// Touched is the record that began with the store.
func (s *Store) Touched() *Record { return s.records.first }

// Record begins a record of its own, until end.
func (s *Store) Record() (r *Record, end func()) {
	r = newRecord()
	change := func(do func([]*Record) []*Record) {
		s.records.mu.Lock()
		defer s.records.mu.Unlock()
		changed := do(*s.records.all.Load())
		s.records.all.Store(&changed)
	}
	change(func(all []*Record) []*Record { return append(all[:len(all):len(all)], r) })
	return r, sync.OnceFunc(func() {
		change(func(all []*Record) (rest []*Record) {
			for _, other := range all {
				if other != r {
					rest = append(rest, other)
				}
			}
			return rest
		})
	})
}

// originSegment is a segment of an object of an origin.
type originSegment struct {
	origin *Cached
	segmentOf
}

// Touched notes that a reader reads [off, off+n) of an object by [Cached.ReadAt], which others call, too: to learn formats, for one.
func (x *Cached) Touched(o *layout.Object, off, n int64) {
	f := x.file(o)
	for end := min(o.Size, off+n); off < end; {
		g := x.segment(o, off)
		x.store.touched(f, g)
		off = g.end()
	}
}

// Here gives how many bytes of [off, off+n) of an object are on this machine, and of how many of these the segment is complete, but not
// published yet.
func (x *Cached) Here(o *layout.Object, off, n int64) (here, settling int64) {
	f := x.file(o)
	for end := min(o.Size, off+n); off < end; {
		g := x.segment(o, off)
		to := min(end, g.end())
		if e := x.store.ledger.find(keyOf(f.identity, g.index)); e != nil {
			if _, fill := x.store.ledger.look(e); fill == nil {
				here += to - off
			} else if !o.Whole {
				arrived, complete := fill.here(off-g.start, to-g.start)
				if here += arrived; complete {
					settling += arrived
				}
			}
		}
		off = to
	}
	return here, settling
}

// here counts the bytes of [from, to) that have arrived, and tells whether all of the segment have.
func (f *fill) here(from, to int64) (n int64, complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over { // given up, or it is being published just now
		return 0, false
	}
	for b := from / block; b*block < to; b++ {
		if f.have.get(int(b)) {
			n += min(to, (b+1)*block) - max(from, b*block)
		}
	}
	return n, f.left == 0
}
