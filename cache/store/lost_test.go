package store

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox/thin"
)

// starved mounts a store on a disk that has lost the place of an object's only segment: what is written there from now on is lost. The segment comes once
// the gate is closed.
func starved(t *testing.T, kind string, u *upstream, whole bool) (m *mounted, disk *thin.Disk, gate chan struct{}) {
	t.Helper()
	disk = thin.New(t, kind, t.TempDir(), t.TempDir())
	if err := os.Chmod(disk.Dir, 0o755); err != nil { // nobody else's
		t.Fatal(err)
	}
	m = mount(t, disk.Dir, u, Options{Segment: 2 * mib, Size: 16 * mib})
	m.objects["0"].Whole = whole
	gate = make(chan struct{})
	u.gate.Store(&gate)
	g := m.origin.segment(m.objects["0"], 0)
	if whole {
		f := m.origin.file(m.objects["0"])
		f.mu.Lock()
		m.origin.startPass(f, m.objects["0"], nil).hurry()
		f.mu.Unlock()
	} else {
		m.origin.begin(m.origin.file(m.objects["0"]), g, func(fill *fill) { fill.begin(0, fill.blockEnd(mib)) })
	}
	var f *fill
	until(t, "the segment has its place", func() bool {
		if e := m.ledger.find(keyOf(m.origin.file(m.objects["0"]).identity, 0)); e != nil {
			_, f = m.ledger.look(e)
		}
		return f != nil && u.calls.Load() > 0
	})
	disk.Starve(t, fmt.Sprintf("/proc/self/fd/%d", f.fd))
	return m, disk, gate
}

// isRight reads the object twice: first while its bytes may be lost unnoticed, and once the store has noticed.
func (m *mounted) isRight(t *testing.T, u *upstream, off, n int64) {
	t.Helper()
	for range 2 {
		m.check(t, u, "0", off, n)
	}
	if s := m.Stats(); s.Failures == 0 || s.Uncached == 0 || !strings.Contains(s.Why, "disk") {
		t.Errorf("the disk has lost bytes, and the state is %+v", s)
	}
}

// TestLostWhileItIsFilled has the disk lose bytes of a segment that is being filled, and the kernel forget them: reads give the origin's, and the state
// says why.
func TestLostWhileItIsFilled(t *testing.T) {
	for _, kind := range thin.Kinds() {
		t.Run(kind, func(t *testing.T) {
			u := newUpstream(2 * mib)
			m, disk, gate := starved(t, kind, u, false)
			close(gate)
			m.check(t, u, "0", 0, mib)
			disk.Forget(t)
			m.isRight(t, u, 0, mib)
			disk.Feed(t)
			if s := m.Stats(); s.Filling != 0 || s.Published != 0 {
				t.Errorf("what the disk has lost is kept: %+v", s)
			}
		})
	}
}

// TestLostBeforeItIsPublished has the disk lose bytes of an object that came as a whole: it is not published, and reads give the origin's bytes.
func TestLostBeforeItIsPublished(t *testing.T) {
	for _, kind := range thin.Kinds() {
		t.Run(kind, func(t *testing.T) {
			u := newUpstream(2 * mib)
			m, disk, gate := starved(t, kind, u, true)
			close(gate)
			m.check(t, u, "0", 0, mib)
			m.came(t)
			disk.Forget(t)
			disk.Feed(t)
			m.isRight(t, u, 0, 2*mib)
			if s := m.Stats(); s.Published != 0 {
				t.Errorf("it was published: %+v", s)
			}
		})
	}
}
