package store

import (
	"fmt"
	"testing"
)

// TestStridedReadersAreFetchedAhead reads at equal distances. Once they are known, the next ones need no fetch.
func TestStridedReadersAreFetchedAhead(t *testing.T) {
	const distance, n = 3*mib + 4096, 8192
	u := newUpstream(64 * mib)
	m := mount(t, t.TempDir(), u, Options{Segment: 8 * mib, Size: 1 << 30})
	for k := range int64(4) { // a place, a distance, and the same distance twice
		m.check(t, u, "0", distance*(k+1), n)
	}
	until(t, "eight more are fetched", func() bool { return u.calls.Load() == 4+strides && m.Stats().Pinned == 0 })
	gate := make(chan struct{})
	u.gate.Store(&gate) // what is not here does not come any more
	for k := range int64(strides) {
		m.check(t, u, "0", distance*(k+5), n)
	}
	close(gate)
}

// TestReadersAtRandomAreNotFetchedAhead, however often two distances are equal.
func TestReadersAtRandomAreNotFetchedAhead(t *testing.T) {
	u := newUpstream(64 * mib)
	m := mount(t, t.TempDir(), u, Options{Segment: 8 * mib, Size: 1 << 30})
	for i, at := range []int64{10, 20, 30, 5, 15, 25, 50, 40, 45, 55} {
		m.check(t, u, "0", at*mib, 8192)
		if got := u.calls.Load(); got != int64(i+1) {
			t.Fatalf("%d fetches for %d reads", got, i+1)
		}
	}
}

// TestWhatOtherProcessesDo is learned by a rescan, so that mounts of one directory keep to the budget together.
func TestWhatOtherProcessesDo(t *testing.T) {
	u := newUpstream(2*mib, 2*mib, 2*mib)
	dir := t.TempDir()
	a := mount(t, dir, u, Options{Segment: mib, Size: 4 * mib})
	b := mount(t, dir, u, Options{Segment: mib, Size: 4 * mib})
	a.readAll(t, u, "0")
	until(t, "object 0 is published", func() bool { return a.Stats().Segments == 2 })
	if s := b.Stats(); s.Segments != 0 {
		t.Fatalf("before: %+v", s)
	}
	if err := b.scan(); err != nil {
		t.Fatal(err)
	}
	if s := b.Stats(); s.Segments != 2 || s.Bytes != 2*mib {
		t.Fatalf("after: %+v", s)
	}
	fetched := u.fetched.Load()
	b.readAll(t, u, "0")
	if u.fetched.Load() != fetched {
		t.Error("what another process has published is fetched again")
	}
	for name := range 3 {
		b.readAll(t, u, fmt.Sprint(name))
	}
	until(t, "nothing is being filled", func() bool { return b.Stats().Filling == 0 })
	if used := usage(t, dir); used > 4*mib {
		t.Errorf("%d bytes are in the directory, 4 MiB are allowed", used)
	}
	if err := a.scan(); err != nil {
		t.Fatal(err)
	}
	if x, y := a.Stats(), b.Stats(); x.Bytes != y.Bytes || x.Segments != y.Segments {
		t.Errorf("the books differ: %+v, %+v", x, y)
	}
}

// TestAScanLeavesFillsAlone: one that is published while the directory is listed is not in the list, and stays on the
// books.
func TestAScanLeavesFillsAlone(t *testing.T) {
	u := newUpstream(2*mib, mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 1 << 30})
	m.readAll(t, u, "1")
	until(t, "object 1 is published", func() bool { return m.Stats().Segments == 1 })
	m.check(t, u, "0", 0, 10) // a fill, of which the rest is missing
	for _, e := range m.ledger.segments() {
		if _, fill := m.ledger.look(e); fill != nil {
			t.Error("a fill is taken for a segment that a scan may take off the books")
		}
	}
	if err := m.scan(); err != nil {
		t.Fatal(err)
	}
	if s := m.Stats(); s.Segments != 1 || s.Filling != 1 {
		t.Errorf("after a scan: %+v", s)
	}
}
