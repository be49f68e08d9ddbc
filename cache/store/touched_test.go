package store

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/layout"
)

// read names what a record has: object and segment.
func (r *Record) read() (out []string) {
	touches, _ := r.Touches(0)
	for _, t := range touches {
		out = append(out, fmt.Sprint(t.Object.Name, "@", t.Offset>>20, "+", t.Length))
	}
	return out
}

func (m *mounted) here(name string) int64 {
	here, _ := m.origin.Here(m.objects[name], 0, m.objects[name].Size)
	return here
}

// TestRecords reads in some order, by each way of reading: a record has each segment once, in that order.
func TestRecords(t *testing.T) {
	const mib = 1 << 20
	u := newUpstream(3*mib, mib/2, 2*mib, mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib})
	defer m.close(t)
	check := func(name string, off, n int64) {
		t.Helper()
		m.check(t, u, name, off, n) // as somebody who learns formats
		m.origin.Touched(m.objects[name], off, n)
	}
	m.check(t, u, "3", 0, 10)
	check("2", mib+5, 10)
	check("0", mib-5, 10) // crosses a border
	check("0", 7, 10)
	late, end := m.Record()
	check("2", mib+9, 10)
	if !m.Plan("reader", []layout.Run{whole(m.objects["1"])}) || !m.Bring("other", []layout.Run{whole(m.objects["3"])}) {
		t.Fatal("a plan has no room")
	}
	until(t, "all that is planned is here", func() bool {
		return !m.missing("1") && m.here("3") == mib
	})
	if fd, release, err := m.origin.OpenWhole(t.Context(), m.objects["1"]); err == nil && fd >= 0 {
		release()
	}
	end()
	check("2", 0, 10)
	all := []string{"2@1+1048576", "0@0+1048576", "0@1+1048576", "1@0+524288", "2@0+1048576"}
	if got := m.Touched().read(); !slices.Equal(got, all) {
		t.Errorf("%q, want %q", got, all)
	}
	if got, want := late.read(), []string{"2@1+1048576", "1@0+524288"}; !slices.Equal(got, want) {
		t.Errorf("the record that began later: %q, want %q", got, want)
	}
}

// TestLeasedSegmentsAreRead gives a segment to another process, which reads it where nobody sees that.
func TestLeasedSegmentsAreRead(t *testing.T) {
	const mib = 1 << 20
	u := newUpstream(2*mib, mib)
	m := mount(t, t.TempDir(), u, Options{Segment: mib})
	defer m.close(t)
	m.Bring("other", []layout.Run{whole(m.objects["0"])})
	var segment *layout.Object
	until(t, "it is published", func() bool {
		segment, _, _ = m.origin.Lies(m.objects["0"], mib)
		return segment != nil
	})
	if got := m.Touched().read(); len(got) > 0 {
		t.Fatalf("%q was read by nobody", got)
	}
	segment.Origin.(segments).Hold(segment)()
	if got, want := m.Touched().read(), []string{"0@1+1048576"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestHere looks how much of an object is here while it comes, and when it is published.
func TestHere(t *testing.T) {
	const mib = 1 << 20
	u := newUpstream(2*mib + 100)
	m := mount(t, t.TempDir(), u, Options{Segment: mib})
	defer m.close(t)
	o := m.objects["0"]
	m.check(t, u, "0", block+1, 10)
	for _, c := range [][3]int64{{0, 3 * mib, block}, {0, block, 0}, {block + 5, 10, 10}, {0, block + 5, 5}, {2 * mib, 100, 0}} {
		if got, settling := m.origin.Here(o, c[0], c[1]); got != c[2] || settling > 0 {
			t.Errorf("%d bytes of %d at %d are here, want %d; %d settle", got, c[1], c[0], c[2], settling)
		}
	}
	m.readAll(t, u, "0")
	until(t, "all is here", func() bool { return m.here("0") == o.Size })
	until(t, "it is published", func() bool { _, settling := m.origin.Here(o, 0, o.Size); return settling == 0 })
}

// TestALongRecordEnds has more segments than a record may have.
func TestALongRecordEnds(t *testing.T) {
	r, f, o := newRecord(), &file{}, &layout.Object{Size: (mostTouches + 5) << 20}
	for i := range int64(mostTouches + 5) {
		r.note(f, segmentOf{o, i, i << 20, 1 << 20}, 1<<20)
	}
	if touches, full := r.Touches(0); len(touches) != mostTouches || !full {
		t.Errorf("%d touches, full: %v", len(touches), full)
	}
	if touches, _ := r.Touches(mostTouches - 2); len(touches) != 2 {
		t.Errorf("%d of the last 2", len(touches))
	}
	if touches, _ := r.Touches(mostTouches + 2); len(touches) != 0 {
		t.Errorf("%d behind the last", len(touches))
	}
}
