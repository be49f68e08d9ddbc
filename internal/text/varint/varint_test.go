package varint

import (
	"math"
	"testing"
	"time"
)

func TestRecordsComeBack(t *testing.T) {
	var w Writer
	at := time.Unix(-5, 999_999_999)
	w.Uint(0, 127, 128, math.MaxUint64)
	w.Text("")
	w.Text("a name")
	w.Time(at)
	r := Reader{B: w.B}
	for _, want := range []uint64{0, 127, 128, math.MaxUint64} {
		if got := r.Uint(); got != want {
			t.Errorf("%d came back, want %d", got, want)
		}
	}
	if a, b, c := r.Text(), r.Text(), r.Time(); a != "" || b != "a name" || !c.Equal(at) || !r.Whole() {
		t.Errorf("%q, %q, %v came back, whole: %v", a, b, c, r.Whole())
	}
}

// A record that is cut anywhere is short, and what is taken from then on is zero.
func TestShortRecords(t *testing.T) {
	var w Writer
	w.Uint(1 << 40)
	w.Text("a name")
	w.Time(time.Unix(1<<40, 1<<20))
	for n := range w.B {
		r := Reader{B: w.B[:n]}
		r.Uint()
		r.Text()
		r.Time()
		if !r.Short || r.Whole() || r.Uint() != 0 || r.Text() != "" || r.Count() != 0 || !r.Time().IsZero() {
			t.Errorf("%d of %d bytes: short is %v", n, len(w.B), r.Short)
		}
	}
}

// A count beyond what follows allocates nothing.
func TestCountsAreBounded(t *testing.T) {
	var w Writer
	w.Uint(1<<62, 1)
	if r := (Reader{B: w.B}); r.Count() != 0 || !r.Short {
		t.Error("a count of 2^62 was taken for one byte")
	}
}
