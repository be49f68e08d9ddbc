package store

import (
	"container/list"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/layout"
)

// errNoRoom says that the budget, or the disk, has no room that could be made by eviction.
var errNoRoom = errors.New("the cache is full of segments that are in use")

// entry is a segment on the books: one that is being filled, or a published one.
type entry struct {
	key     key
	visited atomic.Bool                   // since the hand passed
	lies    atomic.Pointer[originSegment] // in an object, once somebody has asked where that lies

	// The ledger's lock guards the fields below.
	bytes int64 // on the books
	pins  int   // readers of a fill, fetches, and opens of the kernel or other processes
	fill  *fill // until it is published
	place *list.Element

	object *layout.Object // of the published segment, nil until it was looked into
}

// ledger has the books: the segments that are here, their bytes, and which one goes next. Eviction is SIEVE (Zhang et
// al., NSDI 2024): a queue in order of arrival, and a hand that goes from old to new. It spares segments that were
// visited since it passed, and evicts others. Segments of a plan stay as long as there are others, and go by the furthest
// next use (Belady).
type ledger struct {
	limit int64

	mu      sync.Mutex // guards the fields below
	entries map[key]*entry
	queue   *list.List // of *entry, the newest in front
	hand    *list.Element
	total   int64 // bytes of all entries
	fills   int   // how many of them are being filled
	plans   plans
}

func (l *ledger) init(limit int64) {
	l.limit, l.entries, l.queue = limit, map[key]*entry{}, list.New()
	l.plans.init()
}

// pin finds a segment and keeps it from eviction until unpin. Where there is none, make makes a fill, unless make is
// nil.
func (l *ledger) pin(k key, make func() *fill) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[k]
	if e == nil {
		if make == nil {
			return nil
		}
		e = l.insert(k)
		e.fill = make()
		e.fill.entry = e
		l.fills++
	}
	e.visited.Store(true)
	e.pins++
	return e
}

// find gives a segment without touching it, or nil.
func (l *ledger) find(k key) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entries[k]
}

func (l *ledger) insert(k key) *entry {
	e := &entry{key: k}
	e.place = l.queue.PushFront(e)
	l.entries[k] = e
	return e
}

// pinAgain pins a segment that is pinned.
func (l *ledger) pinAgain(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.pins++
}

func (l *ledger) unpin(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.pins--
}

// published turns a fill into a segment like any other. o is nil where another process has published it.
func (l *ledger) published(e *entry, bytes int64, o *layout.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[e.key] == e {
		l.total += bytes - e.bytes
		l.fills--
	}
	e.bytes, e.fill, e.object = bytes, nil, o
}

// add enters a published segment that was found in the directory.
func (l *ledger) add(k key, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[k] != nil {
		return
	}
	e := l.insert(k)
	e.bytes = bytes
	l.total += bytes
}

// drop takes a segment off the books, if it is still the one that has the key.
func (l *ledger) drop(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(e)
}

// dropPublished takes a segment off the books unless it is being filled.
func (l *ledger) dropPublished(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.fill == nil {
		l.remove(e)
	}
}

// look gives the object of a published segment, once it is known, or the fill.
func (l *ledger) look(e *entry) (*layout.Object, *fill) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.object, e.fill
}

// know sets the object of a published segment.
func (l *ledger) know(e *entry, o *layout.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.object = o
}

func (l *ledger) remove(e *entry) {
	if l.entries[e.key] != e {
		return
	}
	if l.hand == e.place {
		l.hand = e.place.Prev()
	}
	if e.fill != nil {
		l.fills--
	}
	delete(l.entries, e.key)
	l.queue.Remove(e.place)
	l.total -= e.bytes
	e.bytes = 0
	l.plans.gone(e.key)
}

// reserve takes n more bytes for a pinned entry. Where that is over the budget, segments go: victims, which the caller
// discards after the call. u is the planned read behind it, nil for one that comes now.
func (l *ledger) reserve(e *entry, n int64, u *planned) (victims []*entry, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[e.key] != e {
		return nil, errMoved
	}
	for l.total+n > l.limit {
		v := l.victim(u)
		if v == nil {
			return victims, errNoRoom
		}
		victims = append(victims, v)
	}
	e.bytes += n
	l.total += n
	return victims, nil
}

// book counts n more bytes of an entry, or fewer, if it is still on the books.
func (l *ledger) book(e *entry, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[e.key] == e {
		e.bytes += n
		l.total += n
	}
}

// evict takes the next victim off the books, nil where all is in use. bytes are those that it had there.
func (l *ledger) evict(u *planned) (e *entry, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.total
	e = l.victim(u)
	return e, before - l.total
}

// victim takes the next segment to go off the books: first by SIEVE one that no plan needs, then the one that plans need
// last.
func (l *ledger) victim(u *planned) *entry {
	for range 2 * l.queue.Len() { // once to forget visits, once to find one without
		if l.hand == nil {
			l.hand = l.queue.Back()
		}
		e := l.hand.Value.(*entry)
		switch {
		case e.pins > 0 || len(l.plans.uses[e.key]) > 0:
		case e.visited.Swap(false):
		default:
			l.remove(e)
			return e
		}
		l.hand = l.hand.Prev()
	}
	e := l.furthest(u)
	if e != nil {
		l.remove(e)
	}
	return e
}

// excess takes the oldest fill that nobody uses off the books, where there are more than most: each has a file open.
// Fills of a plan go last.
func (l *ledger) excess(most int) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fills <= most {
		return nil
	}
	var out *entry
	for at := l.queue.Back(); at != nil; at = at.Prev() {
		e := at.Value.(*entry)
		if e.fill == nil || e.pins > 0 {
			continue
		}
		if planned := len(l.plans.uses[e.key]) > 0; out == nil || !planned {
			out = e
			if !planned {
				break
			}
		}
	}
	if out != nil {
		l.remove(out)
	}
	return out
}

// segments gives the published ones.
func (l *ledger) segments() (out []*entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.fill == nil {
			out = append(out, e)
		}
	}
	return out
}

// all gives the entries, the oldest first.
func (l *ledger) all() []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*entry, 0, l.queue.Len())
	for at := l.queue.Back(); at != nil; at = at.Prev() {
		out = append(out, at.Value.(*entry))
	}
	return out
}

// sums counts segments, fills, all bytes and the pinned ones.
func (l *ledger) sums() (segments, filling int, bytes, pinned int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.fill != nil {
			filling++
		}
		if e.pins > 0 {
			pinned += e.bytes
		}
	}
	return len(l.entries) - filling, filling, l.total, pinned
}
