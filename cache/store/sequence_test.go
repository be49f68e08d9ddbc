package store

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// mountWhole mounts an upstream whose objects come as a whole.
func mountWhole(t testing.TB, u *upstream, opt Options) *mounted {
	t.Helper()
	opt.MinFree = 1
	s, err := Open(t.TempDir(), opt)
	if err != nil {
		t.Fatal(err)
	}
	l := u.listing()
	for _, o := range l.Objects {
		o.Whole = true
	}
	m := &mounted{s, s.Add("test://", u, l), map[string]*layout.Object{}}
	for _, o := range l.Objects {
		m.objects[o.Name] = o
	}
	t.Cleanup(func() { m.close(t) })
	return m
}

// came waits until nothing is on its way, and says which objects are here.
func (m *mounted) came(t testing.TB) (names []string) {
	t.Helper()
	until(t, "nothing is on its way", func() bool { return m.underWay() == 0 && m.Stats().Pinned == 0 })
	for name := range m.objects {
		if !m.missing(name) {
			names = append(names, name)
		}
	}
	return slices.Sorted(slices.Values(names))
}

func (m *mounted) underWay() (n int) {
	for _, o := range m.objects {
		f := m.origin.file(o)
		f.mu.Lock()
		if f.pass != nil {
			n++
		}
		f.mu.Unlock()
	}
	return n
}

func wantNames(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v are here, want %v", what, got, want)
	}
}

// TestWhatFollowsComesAhead reads objects that come as a whole, in order: those that follow come before they are read,
// as many as two and a half ahead have.
func TestWhatFollowsComesAhead(t *testing.T) {
	u := newUpstream(slices.Repeat([]int{2 * mib}, 8)...)
	m := mountWhole(t, u, Options{Segment: mib, Size: 1 << 30, Ahead: 5 * mib})
	m.check(t, u, "0", 0, mib)
	wantNames(t, "after a read", m.came(t), "0")
	m.check(t, u, "0", mib, mib)
	wantNames(t, "after one that goes on", m.came(t), "0", "1", "2", "3")
	gate := make(chan struct{})
	u.gate.Store(&gate) // what is not here does not come any more
	for _, name := range []string{"1", "2", "3"} {
		m.check(t, u, name, 0, 8192)
	}
	close(gate)
	wantNames(t, "after the next ones", m.came(t), "0", "1", "2", "3", "4", "5", "6")
	m.check(t, u, "4", 0, 1)
	wantNames(t, "after the one after", m.came(t), "0", "1", "2", "3", "4", "5", "6", "7")
	if n := u.fetched.Load(); n != 16*mib {
		t.Errorf("%d bytes were fetched for 16 MiB", n)
	}
	if s := m.Stats(); s.Uncached != 0 || s.Failures != 0 || s.Refused != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestNothingFollowsAtRandom: neither after small reads here and there, nor after objects in another order.
func TestNothingFollowsAtRandom(t *testing.T) {
	u := newUpstream(slices.Repeat([]int{4 * mib}, 8)...)
	m := mountWhole(t, u, Options{Segment: mib, Size: 1 << 30})
	for _, name := range []string{"5", "2", "7", "0", "2", "5"} {
		for _, at := range []int64{0, 3, 1} {
			m.check(t, u, name, at*mib+at, 100)
		}
	}
	wantNames(t, "after reads at random", m.came(t), "0", "2", "5", "7")
}

// TestWhatFollowsTakesNoRoom: where the cache is so small that what comes ahead would take the place of what is read.
func TestWhatFollowsTakesNoRoom(t *testing.T) {
	u := newUpstream(slices.Repeat([]int{2 * mib}, 4)...)
	m := mountWhole(t, u, Options{Segment: mib, Size: 7 * mib})
	for i := range 4 {
		m.readAll(t, u, fmt.Sprint(i))
		m.came(t)
	}
	if n := u.calls.Load(); n != 4 {
		t.Errorf("4 objects were fetched by %d passes", n)
	}
}

// TestTooLargeForTheCache: an object larger than the cache evicts no other object, and reads of it bypass the cache.
func TestTooLargeForTheCache(t *testing.T) {
	u := newUpstream(2*mib, 8*mib)
	m := mountWhole(t, u, Options{Segment: mib, Size: 7 * mib})
	m.readAll(t, u, "0")
	until(t, "object 0 is published", func() bool { return m.Stats().Segments == 2 })
	m.check(t, u, "1", 0, 100)
	m.check(t, u, "1", 5*mib, 100)
	if s := m.Stats(); s.Segments != 2 || s.Filling != 0 || s.Evicted != 0 || s.Refused != 2 || s.Uncached != 200 {
		t.Errorf("stats %+v", s)
	}
}

// TestNobodyWaitsForATurn: a read does not wait until there is a processor for what it needs, neither where that is to
// begin nor where it is to come ahead.
func TestNobodyWaitsForATurn(t *testing.T) {
	u := newUpstream(slices.Repeat([]int{2 * mib}, 4)...)
	m := mountWhole(t, u, Options{Segment: mib, Size: 1 << 30, Ahead: mib})
	for range cap(m.turns) {
		m.turns <- struct{}{}
	}
	m.readAll(t, u, "0")
	m.check(t, u, "0", 0, mib)
	m.check(t, u, "0", mib, mib)
	until(t, "object 0 is published", func() bool { return m.Stats().Segments == 2 })
	if n, calls := m.underWay(), u.calls.Load(); n != 1 || calls != 1 {
		t.Errorf("%d objects are on their way, and %d were begun; want 1 that has no turn", n, calls)
	}
	m.readAll(t, u, "1")
	for range cap(m.turns) {
		<-m.turns
	}
	wantNames(t, "in the end", m.came(t), "0", "1", "2")
}

// TestSuccessors follow each other in their directories, whatever lies between.
func TestSuccessors(t *testing.T) {
	l := cache.RemoteListing([]*layout.Object{
		{Name: "a/1", Version: "1", Whole: true}, {Name: "a/2", Version: "1"}, {Name: "a/3", Version: "1", Whole: true},
		{Name: "a/x/1", Version: "1", Whole: true}, {Name: "a/z", Version: "1", Whole: true}, {Name: "b", Version: "1", Whole: true},
	})
	got := map[string]string{}
	for o, next := range successors(l.Objects) {
		got[o.Name] = next.Name
	}
	if len(got) != 2 || got["a/1"] != "a/3" || got["a/3"] != "a/z" {
		t.Errorf("got %v", got)
	}
}
