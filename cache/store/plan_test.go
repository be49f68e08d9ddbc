package store

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// settled waits until nothing is fetched for plans, and nothing can be before something is read.
func (m *mounted) settled(t testing.TB) {
	t.Helper()
	until(t, "the plan is filled as far as it may be", func() bool {
		m.ledger.mu.Lock()
		defer m.ledger.mu.Unlock()
		p := &m.ledger.plans
		for _, e := range m.ledger.entries {
			if e.pins > 0 {
				return false
			}
		}
		if p.flying > 0 {
			return false
		}
		for _, plan := range p.of {
			if plan.toFetch() != nil && p.blocked.IsZero() {
				return false
			}
		}
		return true
	})
}

// whole is all of an object, as a plan wants it.
func whole(o *layout.Object) layout.Run {
	return layout.Run{Object: o, Length: o.Size, Stride: o.Size, Count: 1}
}

// epochs gives two shuffled epochs over n objects.
func epochs(n int) (names []string) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 2 {
		for _, i := range r.Perm(n) {
			names = append(names, fmt.Sprint(i))
		}
	}
	return names
}

// TestAPlanBeatsSIEVE reads two shuffled epochs of four times what the cache holds, once without a plan and once with
// one. With it, each read finds its bytes here, and fewer are fetched twice.
func TestAPlanBeatsSIEVE(t *testing.T) {
	const objects = 48
	u := newUpstream(slices.Repeat([]int{2 * block}, objects)...)
	order := epochs(objects)
	opt := Options{Segment: mib, Size: objects / 4 * 2 * block}
	hits := func(planned bool) int64 {
		m := mount(t, t.TempDir(), u, opt)
		defer m.close(t)
		before := u.fetched.Load()
		if planned {
			var runs []layout.Run
			for _, name := range order {
				runs = append(runs, whole(m.objects[name]))
			}
			if !m.Plan("reader", runs) {
				t.Fatal("the plan was refused")
			}
		}
		for i, name := range order {
			m.settled(t)
			calls := u.calls.Load()
			if planned && m.missing(name) {
				t.Errorf("read %d, of object %s, does not find its bytes here", i, name)
			}
			m.check(t, u, name, 0, 2*block)
			if n := u.calls.Load() - calls; planned && n > 8 {
				t.Errorf("%d requests after one read", n)
			}
			if s := m.Stats(); s.Bytes > opt.Size {
				t.Fatalf("%d bytes are kept, %d are allowed", s.Bytes, opt.Size)
			}
		}
		m.settled(t)
		if planned {
			m.noPlans(t)
		}
		if s := m.Stats(); s.Uncached != 0 || s.Refused != 0 || s.Failures != 0 {
			t.Errorf("stats %+v", s)
		}
		return int64(len(order)) - (u.fetched.Load()-before)/(2*block)
	}
	sieve, plan := hits(false), hits(true)
	t.Logf("of %d reads in the second epoch, SIEVE spares %d fetches, a plan %d; the cache holds %d objects", objects, sieve, plan, objects/4)
	if plan < 2*sieve || plan < 8 {
		t.Errorf("a plan spares %d fetches, SIEVE %d", plan, sieve)
	}
}

// missing reports whether the first byte of an object is not here.
func (m *mounted) missing(name string) bool {
	seg, _, _ := m.origin.Lies(m.objects[name], 0)
	return seg == nil
}

// noPlans checks that nothing is remembered of plans that have ended.
func (m *mounted) noPlans(t testing.TB) {
	t.Helper()
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	p := &m.ledger.plans
	if p.reads != 0 || len(p.uses) != 0 || p.flying != 0 {
		t.Errorf("%d planned reads of %d segments are left, %d bytes under way", p.reads, len(p.uses), p.flying)
	}
}

// TestAPlanIsFilledInItsOrder, and not beyond the budget; the end of the reader is the end of the plan.
func TestAPlanIsFilledInItsOrder(t *testing.T) {
	u := newUpstream(slices.Repeat([]int{mib}, 16)...)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 4 * mib})
	for _, name := range []string{"12", "13", "14", "15"} { // what no plan needs makes room
		m.check(t, u, name, 0, mib)
	}
	m.settled(t)
	var runs []layout.Run
	for i := range 12 {
		runs = append(runs, whole(m.objects[fmt.Sprint(11-i)]))
	}
	if !m.Plan("reader", runs) {
		t.Fatal("the plan was refused")
	}
	here := func() (names []string) {
		m.settled(t)
		for i := range 16 {
			if name := fmt.Sprint(i); !m.missing(name) {
				names = append(names, name)
			}
		}
		return names
	}
	if got := here(); !slices.Equal(got, []string{"8", "9", "10", "11"}) {
		t.Errorf("before the first read %v are here, want the first four of the plan", got)
	}
	m.check(t, u, "11", 0, mib)
	m.check(t, u, "9", 0, mib)
	if got := here(); !slices.Equal(got, []string{"10", "6", "7", "8"}) && !slices.Equal(got, []string{"6", "7", "8", "10"}) {
		t.Errorf("after two reads %v are here", got)
	}
	m.check(t, u, "0", 0, mib) // out of turn: reads never wait for plans
	if s := m.Stats(); s.Uncached != 0 {
		t.Errorf("stats %+v", s)
	}
	m.EndPlan("reader")
	m.settled(t)
	m.noPlans(t)
	fetched := u.fetched.Load()
	m.check(t, u, "10", 0, mib) // was here
	m.settled(t)
	if got := u.fetched.Load(); got > fetched+mib {
		t.Errorf("%d bytes were fetched after the plan's end", got-fetched)
	}
}

// readerOf is a reader of a user.
type readerOf struct {
	uid uint32
	n   int
}

func (r readerOf) User() uint32 { return r.uid }

// TestPlansEnd when nobody keeps to them, and what is planned is bounded.
func TestPlansEnd(t *testing.T) {
	u := newUpstream(4*mib, 4*mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 64 * mib})
	gate := make(chan struct{})
	u.gate.Store(&gate)
	o := m.objects["0"]
	many := layout.Run{Object: o, Length: 1, Stride: 2, Count: 2 * mib}
	if !m.Plan(1, []layout.Run{many}) || m.Plan(1, []layout.Run{many}) {
		t.Error("a plan takes what it may have, and then no more")
	}
	for i := 2; i <= readsOfPlans/readsOfPlan/2; i++ {
		if !m.Plan(i, []layout.Run{many}) {
			t.Errorf("reader %d may not plan", i)
		}
	}
	if m.Plan("one more", []layout.Run{many}) {
		t.Error("plans of a user are not bounded")
	}
	for uid := range uint32(100) {
		if took := m.Plan(readerOf{7 + uid, 1}, []layout.Run{many}); !took && uid < 10 {
			t.Errorf("user %d has no room for a plan", uid)
		}
	}
	m.ledger.mu.Lock()
	if n := m.ledger.plans.reads; n > readsOfPlans {
		t.Errorf("%d reads are planned", n)
	}
	m.ledger.mu.Unlock()
	until(t, "as much is under way as may be", func() bool {
		m.ledger.mu.Lock()
		defer m.ledger.mu.Unlock()
		return m.ledger.plans.flying == planAtOnce
	})
	if _, more := m.ledger.nextPlanned(time.Now().Add(planPatience / 2)); !more {
		t.Error("the plans end before their time")
	}
	m.ledger.nextPlanned(time.Now().Add(2 * planPatience))
	m.ledger.mu.Lock()
	if n := len(m.ledger.plans.readsOf); n != 0 || m.ledger.plans.reads != 0 {
		t.Errorf("%d reads of %d users are left of plans that have ended", m.ledger.plans.reads, n)
	}
	m.ledger.mu.Unlock()
	u.gate.Store(nil)
	close(gate)
	m.settled(t)
	m.noPlans(t)
	if !m.Plan("one more", []layout.Run{whole(m.objects["1"])}) {
		t.Error("there is no room for a plan, though the others have ended")
	}
	m.settled(t)
	before := u.calls.Load()
	m.readAll(t, u, "1")
	if n := u.calls.Load() - before; n != 0 {
		t.Errorf("%d requests for what was planned", n)
	}
	m.noPlans(t)
}

// TestWhatIsHeldIsOffThePlan: who has a segment open reads it where nobody sees it.
func TestWhatIsHeldIsOffThePlan(t *testing.T) {
	u := newUpstream(mib, mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: mib})
	m.readAll(t, u, "0")
	m.settled(t)
	if !m.Plan("reader", []layout.Run{whole(m.objects["0"]), whole(m.objects["1"])}) {
		t.Fatal("the plan was refused")
	}
	m.settled(t)
	seg, _, _ := m.origin.Lies(m.objects["0"], 0)
	if seg == nil || !m.missing("1") {
		t.Fatal("what comes first did not stay")
	}
	release := segments{m.dir, m.Store}.Hold(seg)
	p := make([]byte, mib)
	if _, err := seg.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, u.data["0"]) {
		t.Error("the held segment has other bytes", err)
	}
	release()
	until(t, "the next of the plan is here", func() bool { return !m.missing("1") })
}

// TestPlannedFetchesFail as the origin does, and whoever reads hears of it.
func TestPlannedFetchesFail(t *testing.T) {
	u := newUpstream(mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 8 * mib})
	bad := fmt.Errorf("the origin is out of order")
	u.fail.Store(&bad)
	if !m.Plan("reader", []layout.Run{whole(m.objects["0"])}) {
		t.Fatal("the plan was refused")
	}
	m.settled(t)
	if _, err := m.objects["0"].ReadAt(t.Context(), make([]byte, 10), 0); err == nil {
		t.Error("a read of what cannot be had succeeds")
	}
	u.fail.Store(nil)
	m.readAll(t, u, "0")
}

// TestAPlanIsOfAllOrigins plans objects of two origins in turn, one of which gives them as a whole. Each comes from its own.
func TestAPlanIsOfAllOrigins(t *testing.T) {
	u := newUpstream(2*mib, 2*mib, 2*mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 32 * mib})
	defer m.close(t)
	decoded := &upstream{data: map[string][]byte{"d0": u.data["0"], "d1": u.data["1"]}}
	l := decoded.listing()
	for _, o := range l.Objects {
		o.Whole = true
		m.objects[o.Name] = o
	}
	other := m.Add("test://", decoded, l)
	var runs []layout.Run
	for _, name := range []string{"0", "d0", "1", "d1", "2"} {
		runs = append(runs, whole(m.objects[name]))
	}
	if !m.Plan("reader", runs) {
		t.Fatal("the plan was refused")
	}
	until(t, "all that is planned is here", func() bool { return m.Stats().Segments == 10 })
	for _, name := range []string{"0", "1", "2"} {
		m.check(t, u, name, 0, 2*mib)
	}
	for name, data := range decoded.data {
		got := make([]byte, len(data))
		if n, err := other.ReadAt(t.Context(), m.objects[name], got, 0); n != len(data) || err != nil || !bytes.Equal(got, data) {
			t.Errorf("object %s: %d bytes, %v, or other bytes", name, n, err)
		}
	}
	if a, b := u.fetched.Load(), decoded.fetched.Load(); a != 6*mib || b != 4*mib {
		t.Errorf("%d and %d bytes were fetched, want each byte once from its own origin", a, b)
	}
	m.noPlans(t)
}

func TestMergedUsesAreInOrder(t *testing.T) {
	uses := func(stamps ...int64) (all []*planned) {
		for _, stamp := range stamps {
			all = append(all, &planned{stamp: stamp})
		}
		return all
	}
	for _, c := range []struct{ uses, more []*planned }{
		{nil, uses(1, 2)}, {uses(1, 2), nil}, {uses(1, 5, 9), uses(0, 5, 7, 12)}, {uses(3, 3), uses(3)}, {uses(8), uses(1, 2)},
	} {
		got := merged(c.uses, c.more)
		want := slices.Concat(c.uses, c.more)
		slices.SortStableFunc(want, func(a, b *planned) int { return cmp.Compare(a.stamp, b.stamp) })
		if !slices.Equal(got, want) {
			t.Errorf("%d and %d uses are merged out of order", len(c.uses), len(c.more))
		}
	}
}
