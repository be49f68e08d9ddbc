package store

import (
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

const (
	readsOfPlan  = 1 << 14               // that one plan has
	readsOfPlans = 1 << 17               // that all have together: some 20 MiB of memory
	stragglers   = 1024                  // reads that may come later than planned: readers have workers
	planPatience = 2 * time.Minute       // for a plan that nobody keeps to
	planRetry    = 50 * time.Millisecond // between attempts to find room, where nothing is known to have changed
	planAtOnce   = 16 * int64(spanSize)  // bytes under way for plans
	heldShare    = 4                     // a quarter of the budget is for reads that come first, the rest for segments that are needed again
	planStep     = int64(8 * spanSize)   // bytes of one planned read that are under way
)

// planned is a read that will come, of one segment.
type planned struct {
	origin   *Cached
	object   *layout.Object
	key      key
	start    int64 // of the segment in the object
	from, to int64 // in the object
	stamp    int64

	plan  *plan
	place int   // in the plan since it began
	begun bool  // it is here, or was asked for
	tried int64 // changes that there were when it was begun

	weight int64 // bytes that it has under way at most, a request at least
}

// plan has the coming reads of one reader, in order.
type plan struct {
	user    uint32
	reads   []*planned // those to come, nil for those that came out of order
	first   int        // the place of reads[0]
	next    int        // the place of the first that may have to be fetched
	end     int64      // the stamp of the next read that is planned
	at      int64      // the stamp of the last read that was done
	touched time.Time  // something was added, fetched or read
}

// plans are all plans of a store. The ledger's lock guards them.
//
// Time is measured in bytes. The stamp of a read counts the bytes that its reader reads before it, from the clock on: the
// stamp of the last read that any reader has done. So readers that plan much and those that plan little come by turns.
type plans struct {
	of      map[any]*plan
	uses    map[key][]*planned // by segment, in the order of their stamps
	reads   int                // in all plans
	readsOf map[uint32]int     // in those of a user
	clock   int64
	flying  int64     // weight of the reads under way
	changes int64     // that may have made room
	blocked time.Time // no room was found before; zero when something has changed since
	running bool      // the filler runs
	wake    chan struct{}
}

func (s *plans) init() {
	s.of, s.uses, s.readsOf, s.wake = map[any]*plan{}, map[key][]*planned{}, map[uint32]int{}, make(chan struct{}, 1)
}

// changed has the plans looked at again.
func (s *plans) changed() {
	s.changes++
	s.blocked = time.Time{}
	s.awaken()
}

// awaken has the filler look again.
func (s *plans) awaken() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake
	}
}

// plan adds reads to a reader's plan. Where they would be too many none is added, except that a plan that is new takes as
// many as it may have.
func (l *ledger) plan(reader any, reads []*planned, now time.Time) (taken, start bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, user := l.plans.of[reader], userOf(reader)
	room := min(readsOfPlan, l.plans.roomFor(user))
	switch {
	case p == nil && room > 0:
		p = &plan{user: user}
		l.plans.of[reader] = p
		reads = reads[:min(len(reads), room)]
	case p == nil || len(p.reads)+len(reads) > readsOfPlan || len(reads) > room:
		return false, false
	}
	p.touched = now
	p.end = max(p.end, l.plans.clock)
	added := map[key][]*planned{}
	for before := p.first + len(p.reads); len(reads) > 0; reads = reads[1:] {
		u := reads[0]
		if l.plans.saidBefore(p, before, u) {
			continue
		}
		u.plan, u.place, u.stamp, u.weight = p, p.first+len(p.reads), p.end, min(max(u.to-u.from, spanSize), planStep)
		p.end += (u.to-u.start+block-1)/block*block - (u.from-u.start)/block*block
		p.reads = append(p.reads, u)
		l.plans.count(p, 1)
		added[u.key] = append(added[u.key], u)
	}
	for k, more := range added {
		l.plans.uses[k] = merged(l.plans.uses[k], more)
	}
	l.plans.changed()
	start = !l.plans.running
	l.plans.running = true
	return true, start
}

// merged merges the uses of a segment with more of them, both in the order of their stamps. Inserting them one by one would take time that is
// quadratic in their number.
func merged(uses, more []*planned) []*planned {
	all := make([]*planned, 0, len(uses)+len(more))
	for len(uses) > 0 && len(more) > 0 {
		from := &uses
		if more[0].stamp < uses[0].stamp {
			from = &more
		}
		all = append(all, (*from)[0])
		*from = (*from)[1:]
	}
	return append(append(all, uses...), more...)
}

// userOf tells whose plan a reader's is: that of a user, where the reader says so.
func userOf(reader any) uint32 {
	if r, ok := reader.(interface{ User() uint32 }); ok {
		return r.User()
	}
	return 0
}

// roomFor is how many reads more a user may plan: after that there is as much room left for others as that user has.
func (s *plans) roomFor(user uint32) int { return max(0, readsOfPlans-s.reads-s.readsOf[user]) / 2 }

// count books reads that come to a plan, or go.
func (s *plans) count(p *plan, n int) {
	s.reads += n
	if s.readsOf[p.user] += n; s.readsOf[p.user] == 0 {
		delete(s.readsOf, p.user)
	}
}

// saidBefore reports whether a plan has a read already, at a place before the given one. A reader may plan the same read
// twice, and reads it once.
func (s *plans) saidBefore(p *plan, before int, u *planned) bool {
	const soonest = 64 // of a segment's uses, which can be many
	uses := s.uses[u.key]
	return slices.ContainsFunc(uses[:min(len(uses), soonest)], func(v *planned) bool {
		return v.plan == p && v.place < before && v.from <= u.from && u.to <= v.to
	})
}

// comesFirst reports whether a read is among the next few of its plan. They alone take the room of later ones: else no
// segment that is needed again would stay.
func (l *ledger) comesFirst(u *planned) bool {
	p := u.plan
	return len(p.reads) > 0 && u.stamp <= max(p.at, p.reads[0].stamp)+l.share()
}

// share is one plan's part of the budget for the segments that are needed first.
func (l *ledger) share() int64 { return l.limit / heldShare / int64(max(1, len(l.plans.of))) }

// takeOff takes a read off its plan.
func (s *plans) takeOff(u *planned) {
	p := u.plan
	if at := u.place - p.first; at < 0 || at >= len(p.reads) || p.reads[at] != u {
		return
	}
	p.reads[u.place-p.first] = nil
	for len(p.reads) > 0 && p.reads[0] == nil {
		p.reads, p.first = p.reads[1:], p.first+1
	}
	p.next = max(p.next, p.first)
	s.count(p, -1)
	uses := s.uses[u.key]
	switch at := slices.Index(uses, u); {
	case len(uses) == 1:
		delete(s.uses, u.key)
	case at == 0:
		s.uses[u.key] = uses[1:]
	default:
		s.uses[u.key] = slices.Delete(uses, at, at+1)
	}
}

// endPlan forgets a reader's plan.
func (l *ledger) endPlan(reader any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plans.endPlan(reader)
}

func (s *plans) endPlan(reader any) {
	p := s.of[reader]
	if p == nil {
		return
	}
	delete(s.of, reader)
	keys := map[key]bool{}
	for _, u := range p.reads {
		if u != nil {
			s.count(p, -1)
			keys[u.key] = true
		}
	}
	for k := range keys {
		if uses := slices.DeleteFunc(s.uses[k], func(other *planned) bool { return other.plan == p }); len(uses) > 0 {
			s.uses[k] = uses
		} else {
			delete(s.uses, k)
		}
	}
	p.reads = nil
	s.changed()
}

// wasRead is told that [from, to) of an object, in one segment, was read. It takes the first planned read of these bytes
// off its plan, once it is read to its end. With it go those of the plan that come much earlier: they were read where
// nobody saw it, or will not be.
func (l *ledger) wasRead(k key, from, to int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.plans.uses[k] {
		if to <= u.from || from >= u.to {
			continue
		}
		p := u.plan
		p.touched = time.Now()
		if to < u.to {
			if from <= u.from {
				u.from = to
			}
			return
		}
		p.at, l.plans.clock = max(p.at, u.stamp), max(l.plans.clock, u.stamp)
		l.plans.takeOff(u)
		for len(p.reads) > 0 && p.first < u.place-stragglers {
			l.plans.takeOff(p.reads[0])
		}
		l.plans.changed()
		return
	}
}

// unplan takes the reads of a segment off all plans. A process that has it open needs nothing of it fetched, and reads it
// where nobody sees it.
func (l *ledger) unplan(k key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.plans.uses[k]) > 0 {
		l.plans.takeOff(l.plans.uses[k][0])
		l.plans.changed()
	}
}

// gone is told that a segment is no longer here.
func (s *plans) gone(k key) {
	for _, u := range s.uses[k] {
		u.begun = false
		u.plan.next = min(u.plan.next, u.place)
	}
	s.changed()
}

// nextPlanned gives the read to fetch now: the first of all plans that is not here. Plans that nobody keeps to end. more
// is false when there is no plan left; the filler ends then.
func (l *ledger) nextPlanned(now time.Time) (u *planned, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.plans
	for reader, p := range s.of {
		if now.Sub(p.touched) > planPatience {
			s.endPlan(reader)
		}
	}
	if len(s.of) == 0 && s.flying == 0 {
		s.running = false
		return nil, false
	}
	if now.Sub(s.blocked) < planRetry {
		return nil, true
	}
	for _, p := range s.of {
		if v := p.toFetch(); v != nil && (u == nil || v.stamp < u.stamp) {
			u = v
		}
	}
	if u == nil || (s.flying > 0 && s.flying+u.weight > planAtOnce) {
		return nil, true
	}
	u.begun, u.tried = true, s.changes
	s.flying += u.weight
	return u, true
}

func (p *plan) toFetch() *planned {
	for ; p.next < p.first+len(p.reads); p.next++ {
		if u := p.reads[p.next-p.first]; u != nil && !u.begun {
			return u
		}
	}
	return nil
}

// fetched is told how the fetch of a read of nextPlanned ended. One that found no room is tried again when something
// changes.
func (l *ledger) fetched(u *planned, noRoom bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.plans
	s.flying -= u.weight
	if !noRoom {
		u.plan.touched = now
	} else {
		u.begun = false
		u.plan.next = max(u.plan.first, min(u.plan.next, u.place))
		if s.changes == u.tried {
			s.blocked = now
			return
		}
	}
	s.awaken()
}

// furthest gives the segment that plans need last, for a read that needs room: one that comes now, where u is nil, or u.
// u may only take the room of later reads, and only the next few reads of a plan take any.
func (l *ledger) furthest(u *planned) *entry {
	after := int64(-1)
	if u != nil {
		if !l.comesFirst(u) {
			return nil
		}
		after = u.stamp
	}
	var out *entry
	for k, uses := range l.plans.uses {
		if uses[0].stamp <= after {
			continue
		}
		if e := l.entries[k]; e != nil && e.pins == 0 && e.bytes > 0 {
			out, after = e, uses[0].stamp
		}
	}
	return out
}
