package kv

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/control"
)

// roomFor makes the slabs of a namespace longer, where the limits have room for that, before n blocks are reserved: memory's first. It tells whether
// so many slots are free, which others may have taken by the time when the lock is held.
func (s *Store) roomFor(sp *Space, n int64) bool {
	for _, t := range sp.tiers {
		if s.roomFor1(t, n) {
			return true
		}
	}
	return false
}

// roomFor1 makes a slab longer until n slots are free. It tells whether they are.
func (s *Store) roomFor1(t *tier, n int64) bool {
	sp := t.space
	for {
		sp.mu.Lock()
		enough, none, down := t.free.n >= n, len(t.shelves) == 0, t.down()
		rung := t.budget.rings()
		asked := time.Since(t.asked) < askPause && t.rung == rung
		sp.mu.Unlock()
		if enough || down {
			return enough
		}
		switch grown, err := t.grow(n); {
		case err != nil:
			s.once(err.Error(), "the slab of namespace %q cannot grow: %v", sp.name, err)
			return false
		case grown:
		case none || !asked && t.kind == control.KVMemory: // of memory only unused space is taken, which takes milliseconds
			if !s.takeFrom(t, n) {
				t.pause(rung)
				return false
			}
		case asked:
			return false
		default:
			t.pause(rung)
			s.later(t)
			return false
		}
	}
}

// askPause is how often a tier asks for others' space, unless the budget's bell rings.
const askPause = 200 * time.Millisecond

// pause notes that others have nothing to spare, or are asked by now. rung is the budget's, from before they were asked.
func (t *tier) pause(rung uint64) {
	t.space.mu.Lock()
	t.asked, t.rung = time.Now(), rung
	t.space.mu.Unlock()
}

// later has [Store.extend] make a slab longer.
func (s *Store) later(t *tier) {
	select {
	case s.grow <- t:
	default: // it is asked again
	}
}

// short tells whether the next reservation may wait for a region of memory, whose pages the kernel zeroes. The lock is held.
func (t *tier) short() bool {
	return t != nil && t.free.n < t.perRegion/2 && !t.growing && !t.down() && (t.budget.has(t.cost()) || t.budget.idle.Load())
}

// extend makes slabs longer, until ctx ends: of memory ahead of those who need it, of the disk by the spare space of another
// namespace.
func (s *Store) extend(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-s.grow:
			if t.kind == control.KVDisk {
				s.balance(t, t.cost())
			} else {
				s.roomFor1(t, t.perRegion)
			}
		}
	}
}

// grow makes a slab longer by a region, unless n slots are free by now.
func (t *tier) grow(n int64) (bool, error) {
	t.extending.Lock()
	defer t.extending.Unlock()
	t.space.mu.Lock()
	if t.free.n >= n {
		t.space.mu.Unlock()
		return true, nil
	}
	t.growing = true
	t.space.mu.Unlock()
	grown, err := t.extend()
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	t.growing = false
	if err != nil {
		t.failed(err)
	}
	return grown, err
}

// once notes a failure for the status, and not again.
func (s *Store) once(key, format string, args ...any) {
	if _, said := s.noted.LoadOrStore(key, true); !said {
		s.note(format, args...)
	}
}

// How long others wait for a namespace's space.
const (
	idleTime  = 10 * time.Minute // of the disk: nobody uses it
	awaitTime = time.Minute      // of memory: processes come back after their daemon's end
)

// unused tells whether nobody can have the memory of the namespace registered with CUDA. The lock is held.
func (sp *Space) unused() bool { return sp.opened == 0 && !sp.store.awaits() }

// rest gives memory that has no blocks back to the machine, once no connection has the namespace open.
func (sp *Space) rest() {
	for gave := sp.memory() != nil; gave; {
		sp.mu.Lock() // others wait for it no longer than one region takes
		m := sp.memory()
		gave = m.queue.n == 0 && sp.unused() && m.shrink()
		if len(m.shelves) > 0 && sp.unused() && m.unheld() {
			m.budget.idle.Store(true)
		}
		sp.mu.Unlock()
	}
}

// balance takes regions from other namespaces until so many bytes are free, and makes a slab longer by one. They come from a namespace that nobody has used for long,
// or else from the largest, as long as that stays larger. Memory is taken wholly, from namespaces that no connection has open.
func (s *Store) balance(t *tier, bytes int64) bool {
	for _, from := range s.spare(t) {
		for !t.budget.has(bytes) && from.giveRegion() {
			continue
		}
	}
	if !t.budget.has(t.cost()) {
		return false
	}
	t.space.mu.Lock()
	n := t.free.n + 1
	t.space.mu.Unlock()
	grown, err := t.grow(n)
	return grown && err == nil
}

// giveRegion gives a region that others want.
func (t *tier) giveRegion() bool {
	t.space.mu.Lock() // others wait for it no longer than one region takes
	defer t.space.mu.Unlock()
	return (t.kind == control.KVDisk || t.space.unused()) && t.shrink()
}

// spareTime bounds how long a reservation waits for the mover, whose copies of single blocks take milliseconds.
const spareTime = 250 * time.Millisecond

// takeFrom has other namespaces give the space of n slots, and makes a slab longer by a region of it. Where only the mover holds blocks of memory that nobody uses,
// the mover lets go, and takeFrom waits for that. Otherwise blocks that are in use would go to the disk.
func (s *Store) takeFrom(t *tier, n int64) bool {
	if t.kind == control.KVDisk {
		return s.balance(t, t.cost())
	}
	ctx, cancel := context.WithTimeout(s.stop, spareTime)
	defer cancel()
	for {
		_, bell := t.budget.listen()
		if s.balance(t, t.missing(n)) {
			return true
		}
		spare := slices.DeleteFunc(s.spare(t), func(from *tier) bool { return !from.await(1) })
		if len(spare) == 0 {
			t.budget.idle.Store(false)
			return false
		}
		select {
		case <-bell:
		case <-ctx.Done():
		}
		for _, from := range spare {
			from.await(-1)
		}
		if ctx.Err() != nil {
			return false
		}
	}
}

// missing is the size of the regions that a tier lacks for n slots, and at least one of them.
func (t *tier) missing(n int64) int64 {
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	return min(max((n-t.free.n+t.perRegion-1)/t.perRegion, 1)*t.cost(), t.budget.limit)
}

// await notes that one more waits for the memory of a namespace that nobody uses, or with -1 one less. It does nothing where a process holds a slot, and says so:
// nobody knows for how long.
func (t *tier) await(one int) bool {
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	if one > 0 && !t.unheld() {
		return false
	}
	t.space.waits += one
	return true
}

// unheld tells whether no process holds a slot of the namespace. The lock is held.
func (t *tier) unheld() bool { return t.space.pins+t.space.reservations == 0 }

// spare finds the tiers that have regions for another one, those first that shall give them.
func (s *Store) spare(t *tier) (from []*tier) {
	t.space.mu.Lock()
	mine := int64(len(t.shelves)) * t.cost()
	t.space.mu.Unlock()
	score := map[*tier]int64{}
	for _, sp := range s.all() {
		if sp == t.space {
			continue
		}
		sp.mu.Lock()
		d := sp.disk()
		if t.kind == control.KVMemory {
			d = sp.memory()
		}
		idle := time.Since(sp.used)
		has := int64(len(d.shelves)) * d.cost()
		score[d] = has
		fits := has-d.cost() >= mine+t.cost()
		if idle > idleTime || t.kind == control.KVMemory { // before all others, the one that nobody used for the longest time
			score[d], fits = has+int64(idle/time.Second)<<40, has > 0
		}
		if t.kind == control.KVMemory && !sp.unused() {
			fits = false
		}
		sp.mu.Unlock()
		if fits {
			from = append(from, d)
		}
	}
	slices.SortFunc(from, func(a, b *tier) int { return cmp.Compare(score[b], score[a]) })
	return from
}
