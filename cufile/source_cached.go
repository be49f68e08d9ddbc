package cufile

import (
	"context"
	"errors"
	"time"

	"github.com/hbmfs/hbmfs/control"

	"github.com/hbmfs/hbmfs/internal/driver"
)

// The backing files of a mount can be a cache's. What is not on this machine yet lies in none, and what nobody has open
// may be taken away at any time. What is open stays as it is: no byte of it ever changes.

// errMoved says that a cache has taken a file away after a request was told that its bytes lie there.
var errMoved = errors.New("it is no longer in the cache")

// movable is a source whose bytes may come to lie elsewhere.
type movable interface {
	// relocate forgets where the bytes lay.
	relocate(ctx context.Context) error
}

// follow does what needs to know where bytes lie, and does it again where they moved meanwhile. Where that goes on, it
// says inMount: then they are read through the mount, which finds them wherever they are. Whatever do has under way has
// ended when it returns errMoved.
func (f *File) follow(ctx context.Context, do func(inMount bool) error) error {
	const times = 3
	for range times {
		err := do(false)
		m, ok := f.source.(movable)
		if !ok || !errors.Is(err, errMoved) {
			return err
		}
		if err := m.relocate(ctx); err != nil {
			return err
		}
	}
	return do(true)
}

// pendingObject is the object of bytes that are not on this machine yet. They are read through the mount, which fetches
// them, and lie somewhere else after that.
const pendingObject = 1<<64 - 1

// How long bytes may be taken for pending that are not any more: for so long, or for so many times what asking takes.
const (
	askAgain      = 100 * time.Millisecond
	askAgainTimes = 10
)

// places is where the bytes of a whole file lie, as far as that is remembered.
type places struct {
	runs    []run // nil where nothing is
	pending bool  // some of them are
	again   time.Time
}

func newPlaces(runs []run, took time.Duration) places {
	p := places{runs: runs, again: time.Now().Add(max(askAgain, askAgainTimes*took))}
	for i := range runs {
		p.pending = p.pending || runs[i].object == pendingObject
	}
	return p
}

// hold says whether they can be relied on for [offset, offset+n). Bytes that are not where they were are noticed when
// they are opened.
func (p *places) hold(offset, n int64) bool {
	if p.runs == nil || !p.pending {
		return p.runs != nil
	}
	if time.Now().Before(p.again) {
		return true
	}
	q := request{runs: p.runs}
	for i := q.find(offset); i < len(p.runs) && p.runs[i].logical < offset+n; i++ {
		if p.runs[i].object == pendingObject {
			return false
		}
	}
	return true
}

// announce has the daemon fetch what a request is about to read through the mount, all of it at once, but not what the
// kernel has pages of from before the cache let it go: that would come over the network for nothing.
//
// A cache that lacks bytes may lack the room for them: what was not used for a while is given back.
func (f *File) announce(ctx context.Context, pieces []piece) {
	m, _ := f.source.(*mountedFile)
	if b, ok := f.source.(*batchFile); ok {
		m = b.opened()
	}
	if m == nil || !m.cached() {
		return
	}
	var ranges []control.Range
	for i := range pieces {
		if p := &pieces[i]; p.file == m.inline {
			ranges = appendMissing(ranges, m.inline, p.offset, p.n)
		}
		if len(ranges) >= control.MaxRanges {
			ranges = ranges[:control.MaxRanges]
			break
		}
	}
	if len(ranges) > 0 {
		f.r.handles.shed(ctx, leaseUnused)
		_ = control.Prefetch(m.file, ranges...) // it is advice, and whoever reads the bytes meets what is wrong
	}
}

// appendMissing appends those parts of a range of the mount that the kernel has no pages of, as far as it tells this
// user. Those that follow each other become one.
func appendMissing(ranges []control.Range, mount *backing, offset, n int64) []control.Range {
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

// shed closes files of caches that no request has used for so long, unless others are opened or closed just now.
func (h *handles) shed(ctx context.Context, unused time.Duration) {
	select {
	case h.turn <- struct{}{}:
	default:
		return
	}
	defer func() { <-h.turn }()
	var victims []*backing
	before := time.Now().Add(-unused)
	h.mu.Lock()
	for e := h.order.Back(); e != nil; {
		b := e.Value.(*backing)
		e = e.Prev()
		if b.cached && b.pins == 0 && !b.used.IsZero() && b.used.Before(before) {
			h.order.Remove(b.element)
			b.element = nil
			victims = append(victims, b)
		}
	}
	h.mu.Unlock()
	_ = h.closeFiles(ctx, victims) // where the device does not let go of one, all stay
}
