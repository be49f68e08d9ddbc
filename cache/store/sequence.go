package store

import (
	"path"
	"runtime"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// An object that comes as a whole comes at the speed of a processor, and none of it can be read before. So the next ones
// begin to come while a reader that goes through them in order is still at it.

const (
	maxTrails = 16      // readers that go from object to object: a loader's workers
	inOrder   = 1 << 20 // bytes that would be fetched ahead of a reader in order: below, it may be one at random

	memorySpeed = 64 // bytes in a nanosecond: no thread reads faster
)

// trail is a reader's way from object to object.
type trail struct {
	at    *layout.Object
	since time.Time
	went  bool // the next ones were begun: the reader goes in order
}

// successors gives, for each object that comes as a whole, the next one of its directory. The objects are ordered.
func successors(objects []*layout.Object) map[*layout.Object]*layout.Object {
	next, last := map[*layout.Object]*layout.Object{}, map[string]*layout.Object{}
	for _, o := range objects {
		if !o.Whole {
			continue
		}
		dir := path.Dir(o.Name)
		if before := last[dir]; before != nil {
			next[before] = o
		}
		last[dir] = o
	}
	return next
}

// reached is told that a reader is at o: by a read, which may go on in order, or by opening it. It reports whether the
// reader goes from object to object; the next ones begin to come then.
func (x *Cached) reached(o *layout.Object, read, inOrder bool) bool {
	if !o.Whole {
		return false
	}
	x.mu.Lock()
	i := slices.IndexFunc(x.trails, func(t trail) bool { return t.at == o })
	if i < 0 {
		if i = slices.IndexFunc(x.trails, func(t trail) bool { return x.next[t.at] == o }); i >= 0 {
			inOrder = read || x.trails[i].canHaveRead()
		} else {
			if len(x.trails) < maxTrails {
				x.trails = append(x.trails, trail{})
			}
			i = len(x.trails) - 1
		}
		x.trails[i] = trail{at: o, since: time.Now()}
	}
	t := x.trails[i]
	begin := inOrder && !t.went
	t.went = t.went || inOrder
	copy(x.trails[1:i+1], x.trails[:i])
	x.trails[0] = t
	x.mu.Unlock()
	if begin {
		x.beginNext(o)
	}
	return t.went
}

// canHaveRead reports whether there was time to read all of an object. A process that opens one after the other faster
// than that wants none of them now.
func (t *trail) canHaveRead() bool {
	return time.Since(t.since) >= max(time.Millisecond, time.Duration(t.at.Size/memorySpeed))
}

// waited is told that the reader at o can read it only now.
func (x *Cached) waited(o *layout.Object) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.trails {
		if x.trails[i].at == o {
			x.trails[i].since = time.Now()
		}
	}
}

// beginNext begins the passes of the objects after o, as far as a reader is fetched ahead, and waits for nothing.
func (x *Cached) beginNext(o *layout.Object) {
	s := x.store
	share := s.opt.Size / heldShare
	room := min(s.opt.Ahead, share)
	for o = x.next[o]; o != nil && room > 0 && o.Size <= share && !s.health.sick(); o = x.next[o] {
		room -= o.Size
		f := x.file(o)
		f.mu.Lock()
		if f.pass == nil && !x.isHere(f, o) {
			x.startPass(f, o, &planned{plan: &plan{}}) // of no plan: it takes no room of plans
		}
		f.mu.Unlock()
	}
}

// isHere reports whether all of an object is.
func (x *Cached) isHere(f *file, o *layout.Object) bool {
	for at := int64(0); at < o.Size; at = x.segment(o, at).end() {
		if x.store.ledger.find(keyOf(f.identity, x.segment(o, at).index)) == nil {
			return false
		}
	}
	return true
}

// turn returns when a pass may begin: when there is a processor for it, or when somebody waits for it. release is
// called when it is over.
func (s *Store) turn(hurried <-chan struct{}) (release func()) {
	release = func() { <-s.turns }
	select {
	case s.turns <- struct{}{}:
		return release
	case <-hurried:
	case <-s.ctx.Done(): // which ends the pass
	}
	return func() {}
}

// passesAtOnce is how many passes there are at most, if nobody waits for them.
func passesAtOnce() int { return min(4, runtime.GOMAXPROCS(0)) }
