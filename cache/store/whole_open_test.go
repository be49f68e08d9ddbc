package store

import (
	"bytes"
	"context"
	"os"
	"slices"
	"testing"
	"time"
)

// opened opens all of an object, compares what is in the file, and reports whether there is one.
func (m *mounted) opened(t testing.TB, u *upstream, name string) bool {
	t.Helper()
	fd, release, err := m.origin.OpenWhole(t.Context(), m.objects[name])
	if err != nil {
		t.Fatal(err)
	}
	if fd < 0 {
		return false
	}
	m.compare(t, u, name, fd)
	if n, want := m.Stats().Pinned, int64(len(u.data[name])); n < want {
		t.Errorf("%d bytes are pinned while %d are held", n, want)
	}
	release()
	return true
}

// compare reads a descriptor to its end, and closes it.
func (m *mounted) compare(t testing.TB, u *upstream, name string, fd int) {
	t.Helper()
	f := os.NewFile(uintptr(fd), name)
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	var got bytes.Buffer
	if _, err := got.ReadFrom(f); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), u.data[name]) {
		t.Errorf("object %s: the file has other bytes", name)
	}
	if _, err := f.Write([]byte{1}); err == nil {
		t.Errorf("object %s: the file can be written", name)
	}
}

// reads has time pass on all trails, as if what was opened had been read.
func (m *mounted) reads(d time.Duration) {
	m.origin.mu.Lock()
	defer m.origin.mu.Unlock()
	for i := range m.origin.trails {
		m.origin.trails[i].since = m.origin.trails[i].since.Add(-d)
	}
}

// TestOpenWhole opens objects that are not here, in parts, on their way, and here.
func TestOpenWhole(t *testing.T) {
	u := newUpstream(slices.Repeat([]int{2 * mib}, 6)...)
	m := mountWhole(t, u, Options{Segment: 4 * mib, Size: 1 << 30, Ahead: 3 * mib})
	if m.opened(t, u, "0") {
		t.Error("an object that was never read has a file")
	}
	m.check(t, u, "0", 0, mib)
	m.came(t)
	if !m.opened(t, u, "0") {
		t.Error("an object that is here has no file")
	}
	gate := make(chan struct{})
	u.gate.Store(&gate)
	m.check(t, u, "0", mib, mib) // 1 and 2 are on their way now
	m.reads(-time.Hour)
	if m.opened(t, u, "1") {
		t.Error("what is on its way has a file")
	}
	m.origin.trails = nil
	m.check(t, u, "0", 0, 1)
	m.reads(time.Hour)
	hasty, cancel := context.WithCancel(t.Context())
	cancel()
	if fd, _, err := m.origin.OpenWhole(hasty, m.objects["1"]); fd >= 0 || err != nil {
		t.Errorf("who does not wait gets %d, %v", fd, err)
	}
	waits := make(chan bool)
	go func() { waits <- m.opened(t, u, "1") }()
	close(gate)
	if !<-waits {
		t.Error("what was waited for has no file")
	}
	wantNames(t, "in the end", m.came(t), "0", "1", "2", "3")
}

// TestOpeningIsNotReading: who opens one object after the other, faster than he could read them, has nothing come.
func TestOpeningIsNotReading(t *testing.T) {
	u := newUpstream(slices.Repeat([]int{2 * mib}, 6)...)
	m := mountWhole(t, u, Options{Segment: 4 * mib, Size: 1 << 30})
	for _, name := range []string{"0", "1", "2", "3"} {
		m.check(t, u, name, 0, 1)
		m.origin.trails = nil // nobody has noticed
	}
	m.came(t)
	for _, name := range []string{"0", "1", "2", "3"} {
		if !m.opened(t, u, name) {
			t.Errorf("object %s has no file", name)
		}
		m.reads(-time.Hour)
	}
	wantNames(t, "after opens", m.came(t), "0", "1", "2", "3")
	m.origin.trails = nil
	for _, name := range []string{"2", "3"} {
		if !m.opened(t, u, name) {
			t.Errorf("object %s has no file", name)
		}
		m.reads(time.Hour)
	}
	wantNames(t, "after one by one", m.came(t), "0", "1", "2", "3", "4", "5")
}

// TestNoFileBeforeItIsPublished opens what has all of its bytes and no name yet: whoever read its file would not hear that the disk has lost them.
func TestNoFileBeforeItIsPublished(t *testing.T) {
	u := newUpstream(2*mib, 2*mib)
	m := mountWhole(t, u, Options{Segment: 4 * mib, Size: 1 << 30})
	o := m.objects["0"]
	fills := m.origin.fills(m.origin.file(o), o)
	if len(fills) != 1 || fills[0] == nil {
		t.Fatalf("%d fills", len(fills))
	}
	for range 2 {
		if fd, err := m.openEntry(t.Context(), fills[0].entry); err == nil {
			t.Errorf("a segment without a name is opened: descriptor %d", fd)
		}
		if err := m.origin.pour(t.Context(), o, fills, nil); err != nil {
			t.Fatal(err)
		}
	}
	fills[0].publish(t.Context())
	m.ledger.unpin(fills[0].entry)
	if !m.opened(t, u, "0") || m.Stats().Segments != 1 {
		t.Error("it was not published")
	}
}

// TestPartsAreNotAFile: neither several segments nor one that is being filled.
func TestPartsAreNotAFile(t *testing.T) {
	u := newUpstream(3*mib, mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 1 << 30})
	m.readAll(t, u, "0")
	m.check(t, u, "1", 0, 10)
	for name := range m.objects {
		if m.opened(t, u, name) {
			t.Errorf("object %s is opened as a file", name)
		}
	}
}
