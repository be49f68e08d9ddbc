package kv

import (
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
		asked := time.Since(t.asked) < askPause
		sp.mu.Unlock()
		if enough || down {
			return enough
		}
		switch grown, err := t.grow(n); {
		case err != nil:
			s.once(err.Error(), "the slab of namespace %q cannot grow: %v", sp.name, err)
			return false
		case grown:
		case none:
			if !s.balance(t) {
				return false
			}
		case asked:
			return false
		default:
			s.ask(t)
			return false
		}
	}
}

// askPause is how often a tier asks for what others have.
const askPause = 200 * time.Millisecond

// ask has the mover look whether another namespace has a region to spare.
func (s *Store) ask(t *tier) {
	t.space.mu.Lock()
	t.asked = time.Now()
	t.space.mu.Unlock()
	select {
	case s.grow <- t:
	default: // it evicts, and asks again
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

// How long a namespace is used by nobody before others may have what it has.
const (
	idleTime       = 10 * time.Minute
	idleMemoryTime = time.Minute // and no connection has it open
)

// balance takes regions from another namespace, and makes a slab longer by one: from one that nobody has used for long, or else from the largest, as long as that
// stays larger.
func (s *Store) balance(t *tier) bool {
	var from *tier
	t.space.mu.Lock()
	mine := int64(len(t.shelves)) * t.cost()
	t.space.mu.Unlock()
	var best int64
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
		score := has
		fits := has-d.cost() >= mine+t.cost()
		if idle > idleTime { // before all others, the one that nobody used for the longest time
			score, fits = has+int64(idle/time.Second)<<40, has > 0
		}
		if t.kind == control.KVMemory && (sp.opened > 0 || idle < idleMemoryTime) { // clients may have registered it
			fits = false
		}
		sp.mu.Unlock()
		if fits && score > best {
			from, best = d, score
		}
	}
	if from == nil {
		return false
	}
	from.space.mu.Lock()
	for from.shrink() && t.budget.booked()+t.cost() > t.budget.limit {
		continue
	}
	from.space.mu.Unlock()
	grown, err := t.grow(1)
	return grown && err == nil
}
