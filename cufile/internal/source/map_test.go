package source

import (
	"math/rand/v2"
	"testing"
)

// TestMapFindsEachByte compares a Map of runs of all sizes with a look through all runs.
func TestMapFindsEachByte(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var runs []Run
		end := int64(0)
		for i := range 1 + random.IntN(60) {
			r := Run{Logical: end, Length: 1 + random.Int64N(9), Object: uint64(i + 2), Offset: random.Int64N(100), Count: 1}
			switch random.IntN(4) {
			case 0: // one run is far longer than the others together
				r.Length = 1 + random.Int64N(5000)
			case 1:
				r.Count = 1 + random.Int64N(5)
				r.Stride = r.Length + random.Int64N(3)
			}
			runs, end = append(runs, r), r.End()
		}
		m := newMap(runs, func(r *Run) *Backing { return &Backing{Object: r.Object} })
		for offset := range end {
			i := 0
			for runs[i].End() <= offset {
				i++
			}
			if got := m.Find(offset); got != i || m.Files[got].Object != runs[i].Object {
				t.Fatalf("byte %d of %d: run %d, want %d of %+v", offset, end, got, i, runs)
			}
		}
	}
}

func TestPlaceInARun(t *testing.T) {
	strided := Run{Logical: 100, Length: 10, Offset: 1000, Stride: 25, Count: 4}
	straight := Run{Logical: 100, Length: 10, Offset: 1000, Stride: 10, Count: 4}
	for _, c := range []struct {
		of               Run
		offset, place, n int64
	}{{strided, 100, 1000, 10}, {strided, 109, 1009, 1}, {strided, 110, 1025, 10}, {strided, 137, 1082, 3}, {straight, 100, 1000, 40}, {straight, 125, 1025, 15}} {
		if place, n := c.of.At(c.offset); place != c.place || n != c.n {
			t.Errorf("byte %d of %+v: %d bytes at %d, want %d at %d", c.offset, c.of, n, place, c.n, c.place)
		}
	}
	for _, c := range []struct {
		of            Run
		first, window int64
		want          bool
	}{{straight, 1000, 40, true}, {straight, 0, 1040, true}, {straight, 0, 1039, false}, {straight, 1001, 4096, false}, {strided, 0, 4096, false}} {
		if got := c.of.Inside(c.first, c.window); got != c.want {
			t.Errorf("%+v inside %d bytes at %d: %t", c.of, c.window, c.first, got)
		}
	}
}
