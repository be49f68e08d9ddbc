package fetch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// turns bound the requests under way, and share them out among objects. A request that brings nothing for a while, and has others wait,
// makes its object a suspect. Suspects wait behind other objects, and keep a quarter of the turns when others wait. Each time an object is
// suspected it may be silent for twice as long before that: a slow origin gets its bytes through.
type turns struct {
	limit int
	trial func() time.Duration // how long a request may bring nothing while others wait
	stall time.Duration        // the most of that

	mu       sync.Mutex // guards the fields below
	under    []*turn    // in the order in which they began
	waiting  []*turn    // in the order in which they came
	suspects map[*layout.Object]int
	look     *time.Timer // for requests that have become silent, where others wait
}

// turn is a request that is under way, or waits for that.
type turn struct {
	object *layout.Object
	wanted func() cache.Interest
	hedge  bool          // it is the second request of an attempt
	begun  chan struct{} // closed when it is under way
	yield  context.CancelCauseFunc
	good   atomic.Bool  // it has brought enough
	moved  atomic.Int64 // when it began, or last brought enough, ns since 1970

	// The lock of turns guards these.
	suspect bool // it was silent for too long
	ending  bool // it was told to yield

	came int64 // bytes since moved; the request's own
}

const (
	enough   = 4 << 10                // bytes that count as a move: a server that drips brings fewer
	soonest  = 200 * time.Millisecond // after which a request that brings nothing may be told to yield
	untaught = 500 * time.Millisecond // before it is known how long answers take
	share    = 4                      // a quarter of the turns
	reserved = 8                      // an eighth is kept for segments that readers wait for
)

// errYielded ends a request for others that wait. Another attempt follows.
var errYielded = fmt.Errorf("%w, and other objects wait", ErrStalled)

// trial is how long a request may bring nothing while others wait.
func (c *Client) trial() time.Duration {
	if c.opt.NoHedging { // as behind a cache: it may wait for its origin, which another request asks again
		return c.opt.Stall / share
	}
	if slow, ok := c.first.Slow(); ok {
		return max(soonest, slow)
	}
	return untaught
}

func newTurns(limit int, stall time.Duration, trial func() time.Duration) *turns {
	return &turns{limit: limit, stall: stall, trial: trial, suspects: map[*layout.Object]int{}}
}

// take waits for a turn. yield ends the request where others need it more.
func (s *turns) take(ctx context.Context, o *layout.Object, yield context.CancelCauseFunc) (*turn, error) {
	t := &turn{object: o, wanted: cache.InterestOf(ctx), begun: make(chan struct{}), yield: yield}
	s.mu.Lock()
	s.waiting = append(s.waiting, t)
	s.share()
	s.mu.Unlock()
	select {
	case <-t.begun:
		return t, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-t.begun: // at the same time
		return t, nil
	default:
	}
	s.drop(t)
	return nil, context.Cause(ctx)
}

// spare gives a turn for a second request, where there are some that nobody needs.
func (s *turns) spare(o *layout.Object) (*turn, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hedges := 0
	for _, t := range s.under {
		if t.hedge {
			hedges++
		}
	}
	part := max(1, s.limit/share)
	if len(s.waiting) > 0 || hedges >= part || len(s.under)+part > s.limit || s.suspects[o] > 0 {
		return nil, false
	}
	t := &turn{object: o, hedge: true, begun: make(chan struct{}), yield: func(error) {}}
	s.begin(t)
	return t, true
}

// release ends a turn. stalled says that the request did, so that its object is suspected.
func (s *turns) release(t *turn, stalled, brought bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case brought && !stalled:
		delete(s.suspects, t.object)
	case stalled && !t.suspect:
		s.suspects[t.object]++
	}
	s.drop(t)
}

func (s *turns) drop(t *turn) {
	is := func(other *turn) bool { return other == t }
	s.under, s.waiting = slices.DeleteFunc(s.under, is), slices.DeleteFunc(s.waiting, is)
	s.share()
}

// suspected tells whether the object's last requests stalled.
func (s *turns) suspected(o *layout.Object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspects[o] > 0
}

func (s *turns) begin(t *turn) {
	t.moved.Store(time.Now().UnixNano())
	s.under = append(s.under, t)
	close(t.begun)
}

// held counts the turns of suspects, of one object, and of requests that no reader waits for.
func (s *turns) held(o *layout.Object) (suspects, own, idle int) {
	for _, t := range s.under {
		if s.doubtful(t) {
			suspects++
		}
		if t.object == o {
			own++
		}
		if t.idle() {
			idle++
		}
	}
	return suspects, own, idle
}

// doubtful tells that the object of a turn is suspected, and that this turn has not shown the contrary.
func (s *turns) doubtful(t *turn) bool { return s.suspects[t.object] > 0 && !t.good.Load() }

// idle tells that no reader waits for the request.
func (t *turn) idle() bool { return t.hedge || t.wanted() != cache.Reader }

// share begins the requests that may, and has others yield. The lock is held.
func (s *turns) share() {
	for len(s.under) < s.limit {
		t := s.next()
		if t == nil {
			break
		}
		s.waiting = slices.DeleteFunc(s.waiting, func(other *turn) bool { return other == t })
		s.begin(t)
	}
	if len(s.waiting) == 0 || len(s.under) == 0 {
		if s.look != nil {
			s.look.Stop()
		}
		return
	}
	s.makeWay()
}

// next gives the first of those that may begin: objects that are not suspected, and among these the segments that readers wait for. One
// suspect comes before others, so that each gets its turn in the end.
func (s *turns) next() (best *turn) {
	level := 0
	for _, t := range s.waiting {
		suspects, own, idle := s.held(t.object)
		l := 2 * s.suspects[t.object]
		switch {
		case l > 0 && own > 0:
			continue
		case l > 0 && suspects < s.limit/reserved:
			l = -1
		}
		if t.idle() {
			if s.limit > 1 && idle >= s.limit-max(1, s.limit/reserved) {
				continue
			}
			l++
		}
		if best == nil || l < level {
			best, level = t, l
		}
	}
	return best
}

// makeWay suspects requests that are silent for too long, and has them yield to those that wait. It looks again when the next one may be.
func (s *turns) makeWay() {
	now, soon := time.Now(), s.stall
	for _, t := range s.under {
		patience := min(s.stall, s.trial()<<min(s.suspects[t.object], 10))
		silent := now.Sub(time.Unix(0, t.moved.Load()))
		switch {
		case t.suspect:
		case silent >= patience:
			t.suspect = true
			s.suspects[t.object]++
		default:
			soon = min(soon, patience-silent)
		}
	}
	healthy, others := 0, 0
	for _, t := range s.waiting {
		if s.suspects[t.object] == 0 {
			healthy++
		} else {
			others++
		}
	}
	suspects, _, _ := s.held(nil)
	for _, t := range s.under {
		if t.ending {
			healthy--
			if s.doubtful(t) {
				suspects--
			}
		}
	}
	for _, t := range s.under { // the ones that began first have been silent for the longest
		switch {
		case t.ending || !s.doubtful(t):
			continue
		case healthy > 0 && suspects > s.limit/share:
			healthy--
			suspects--
		case t.suspect && others > 0:
			others--
		default:
			continue
		}
		t.ending = true
		t.yield(errYielded)
	}
	if s.look == nil {
		s.look = time.AfterFunc(soon, s.again)
	} else {
		s.look.Reset(soon)
	}
}

func (s *turns) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.share()
}

// brought counts bytes of a request.
func (t *turn) brought(n int) {
	if t.came += int64(n); t.came >= enough {
		t.came = 0
		t.good.Store(true)
		t.moved.Store(time.Now().UnixNano())
	}
}

// pause says that the request waits for its reader, until resume.
func (t *turn) pause()  { t.moved.Store(1<<63 - 1) }
func (t *turn) resume() { t.moved.Store(time.Now().UnixNano()) }
