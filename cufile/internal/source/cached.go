package source

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// The backing files of a mount can be a cache's. Bytes that are not on this machine yet lie in none. The cache may remove a
// file that no process has open. An open file stays as it is: no byte of it ever changes.

// ErrMoved says that a cache has removed a file after a request was told that its bytes lie there.
var ErrMoved = errors.New("it is no longer in the cache")

// Movable is a File whose bytes may come to lie elsewhere.
type Movable interface {
	// Relocate forgets where the bytes lay.
	Relocate(ctx context.Context) error
}

// pendingObject is the object of bytes that are not on this machine yet. They are read through the mount, which fetches
// them, and lie somewhere else after that.
const pendingObject = 1<<64 - 1

// How long runs count as pending before the mount is asked again: for so long, or for so many times as long as asking took.
const (
	askAgain      = 100 * time.Millisecond
	askAgainTimes = 10
)

// known is where the bytes of a whole file lie, as far as that is remembered.
type known struct {
	runs    []Run       // nil where nothing is, or packed has them
	packed  *packedRuns // more than mostPlaced runs; nil where there are fewer
	pending bool        // some of them are
	again   time.Time
}

// add appends a run of the file, behind those before.
func (p *known) add(r *Run) {
	p.pending = p.pending || r.Object == pendingObject
	k := len(p.runs) - 1
	switch {
	case p.packed == nil && k >= 0 && p.runs[k].Object == r.Object && (r.Object == InlineObject || r.Object == pendingObject):
		p.runs[k].Length += r.Length
	case p.packed == nil && k+1 < mostPlaced:
		p.runs = append(p.runs, *r)
	default:
		if p.packed == nil {
			p.packed = &packedRuns{}
			for i := range p.runs {
				p.packed.add(&p.runs[max(0, i-1)], &p.runs[i])
			}
			p.runs = []Run{p.runs[k]}
		}
		p.packed.add(&p.runs[0], r)
		p.runs[0] = *r // the last one
	}
}

// done says that all runs are there, and how long it took to ask for them.
func (p *known) done(took time.Duration) {
	p.again = time.Now().Add(max(askAgain, askAgainTimes*took))
	if p.packed != nil {
		p.runs = nil
		p.packed.bytes, p.packed.marks = slices.Clone(p.packed.bytes), slices.Clone(p.packed.marks)
	}
}

// of gives the runs of spans; nil where nothing is known.
func (p *known) of(spans []Span) []Run {
	if p.packed != nil {
		return p.packed.of(spans)
	}
	return p.runs
}

// covers says whether they can be relied on for [offset, offset+n). Bytes that are not where they were are noticed when
// they are opened.
func (p *known) covers(offset, n int64) bool {
	known := p.runs != nil || p.packed != nil
	if !known || !p.pending || time.Now().Before(p.again) {
		return known
	}
	if p.packed != nil {
		return false // all are asked for again, which has taken less than a tenth of the time since
	}
	for i := findRun(p.runs, offset); i < len(p.runs) && p.runs[i].Logical < offset+n; i++ {
		if p.runs[i].Object == pendingObject {
			return false
		}
	}
	return true
}

// Announce has the daemon fetch the pieces that a request is about to read through the mount, all at once. It leaves out those
// that the kernel has pages of: they would come over the network for nothing.
//
// A cache that lacks bytes may lack the room for them. So files that no request has used for 10 s are given back.
func Announce(ctx context.Context, s File, h *Descriptors, pieces []Piece) {
	m, _ := s.(*mountedFile)
	if b, ok := s.(*batchFile); ok {
		m = b.instead.Load()
	}
	if m == nil || !m.cached() {
		return
	}
	var soon []Span
	for i := range pieces {
		if p := &pieces[i]; p.File == m.inline {
			soon = append(soon, Span{Offset: p.Offset, N: p.N})
		}
	}
	if len(soon) > 0 {
		h.Shed(ctx, leaseUnused)
		_ = m.Prefetch(ctx, soon) // it is advice: the read meets any error
	}
}

// appendMissing appends those parts of a range of the mount that the kernel has no pages of, as far as it tells this
// user. Those that follow each other become one.
func appendMissing(ranges []control.Range, mount *Backing, offset, n int64) []control.Range {
	pages, cached, known := residentPages(mount, offset, n)
	switch {
	case known && cached >= pages:
		return ranges
	case known && cached > 0: // so there are two pages at least
		half := offset/driver.PageSize*driver.PageSize + pages/2*driver.PageSize - offset
		ranges = appendMissing(ranges, mount, offset, half)
		return appendMissing(ranges, mount, offset+half, n-half)
	}
	if k := len(ranges) - 1; k >= 0 && ranges[k].Offset+ranges[k].Length == offset {
		ranges[k].Length += n
		return ranges
	}
	return append(ranges, control.Range{Offset: offset, Length: n})
}

// leaseUnused is for how long a file of a cache is leased that no request needs, while others may need its room.
const leaseUnused = 10 * time.Second

// leaseLongest is for how long a file of a cache stays leased that no request needs, even where the Reader asks for nothing more.
const leaseLongest = time.Minute

// shedLater sheds once in a while, as long as files of caches are open. The caller holds mu.
func (h *Descriptors) shedLater() {
	if h.shedding {
		return
	}
	h.shedding = true
	time.AfterFunc(leaseLongest, func() {
		ctx, cancel := context.WithTimeout(context.Background(), answerTime)
		defer cancel()
		h.Shed(ctx, leaseLongest)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.shedding = false; h.cached > 0 {
			h.shedLater()
		}
	})
}

// Shed closes files of caches that no request has used for so long, unless others are opened or closed just now.
func (h *Descriptors) Shed(ctx context.Context, unused time.Duration) {
	select {
	case h.turn <- struct{}{}:
	default:
		return
	}
	defer func() { <-h.turn }()
	var victims []*Backing
	before := time.Now().Add(-unused)
	h.mu.Lock()
	for e := h.order.Back(); e != nil; {
		b := e.Value.(*Backing)
		e = e.Prev()
		if b.Cached && b.pins == 0 && b.used.Before(before) {
			h.remove(b)
			victims = append(victims, b)
		}
	}
	h.mu.Unlock()
	_ = h.closeFiles(ctx, victims) // where the device does not let go of one, all stay
}
