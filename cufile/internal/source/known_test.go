package source

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestPlaces says when it must be asked again where bytes lie.
func TestPlaces(t *testing.T) {
	runs := []Run{{Length: 100, Count: 1, Object: 7}, {Logical: 100, Length: 50, Count: 1, Object: pendingObject}, {Logical: 150, Length: 10, Count: 5, Object: 8}}
	newKnown := func(runs []Run, took time.Duration) (p known) {
		for i := range runs {
			p.add(&runs[i])
		}
		p.done(took)
		return p
	}
	p := newKnown(runs, time.Hour)
	if !p.covers(100, 50) {
		t.Error("it is asked again at once")
	}
	p.again = time.Time{}
	for span, want := range map[[2]int64]bool{{0, 100}: true, {0, 101}: false, {120, 1}: false, {150, 50}: true, {149, 2}: false} {
		if got := p.covers(span[0], span[1]); got != want {
			t.Errorf("%d bytes at %d: %v, want %v", span[1], span[0], got, want)
		}
	}
	p = newKnown(runs[:1], 0)
	p.again = time.Time{}
	if !p.covers(0, 100) {
		t.Error("what is here is asked for again")
	}
	if (&known{}).covers(0, 1) {
		t.Error("nothing is known, and it is not asked for")
	}
}

// TestPendingRunsAreAskedFor has the one request ask that said so, while the others use the runs that there are.
func TestPendingRunsAreAskedFor(t *testing.T) {
	null, err := os.Open(os.DevNull) // which knows no extents
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }() // it was read at most
	m, mine := &mountedFile{file: null, length: 100}, time.Now().Add(time.Hour)
	m.all.add(&Run{Length: 100, Count: 1, Object: pendingObject})
	m.all.done(0)
	m.all.again = mine
	if _, err := m.askOnce(t.Context(), 0, 100, mine.Add(1)); err != nil {
		t.Errorf("another request asks, too: %v", err)
	}
	if _, err := m.askOnce(t.Context(), 0, 100, mine); err == nil {
		t.Error("nobody asks for runs that are pending")
	}
}

// TestShed gives back what was not used for a while, and nothing else.
func TestShed(t *testing.T) {
	s := newShelf(t, 5)
	h := NewDescriptors(5, letNothing)
	take := func(b *Backing) {
		if err := h.Pin(t.Context(), []*Backing{b}); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range s.files {
		b.Cached = i > 0 // the first is local
		take(b)
		if i < 4 { // the last is in use
			h.Unpin([]*Backing{b})
		}
	}
	if h.Shed(t.Context(), time.Hour); s.now.Load() != 5 {
		t.Errorf("%d of 5 are open, all of which were used just now", s.now.Load())
	}
	for _, b := range s.files[:3] {
		b.used = b.used.Add(-2 * time.Hour)
	}
	if h.Shed(t.Context(), time.Hour); s.now.Load() != 3 || s.files[1].FD >= 0 || s.files[2].FD >= 0 {
		t.Errorf("%d are open, want all but two", s.now.Load())
	}
	take(s.files[1]) // it can be had again
	s.check(s.files[1])
	h.Unpin([]*Backing{s.files[1], s.files[4]})
	drop(t, h, s.files)
}

// TestNoLeaseIsKeptForEver gives files of a cache back that no request uses, also those that were opened ahead, and keeps one that is read from memory.
func TestNoLeaseIsKeptForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, 4)
		h := NewDescriptors(4, letNothing)
		for _, b := range s.files {
			b.Cached = true
		}
		if err := h.Pin(t.Context(), s.files[:3]); err != nil {
			t.Fatal(err)
		}
		h.Unpin(s.files[:2])
		if _, err := s.Open(t.Context(), s.files[3:]); err != nil {
			t.Fatal(err)
		}
		if err := h.offer(t.Context(), s.files[3:]); err != nil {
			t.Fatal(err)
		}
		for range 5 * leaseLongest / time.Second {
			h.refresh(s.files[:1])
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if s.now.Load() != 2 || s.files[0].FD < 0 || s.files[2].FD < 0 {
			t.Errorf("%d of 4 are open, want the one that is read and the one that is pinned", s.now.Load())
		}
		h.Unpin(s.files[2:3])
		time.Sleep(3 * leaseLongest)
		synctest.Wait()
		if s.now.Load() != 0 || h.shedding {
			t.Errorf("%d are open for ever, or the timer runs on: %v", s.now.Load(), h.shedding)
		}
		drop(t, h, s.files)
	})
}
