package layout

import (
	"math"
	"math/rand/v2"
	"testing"
)

// pieces lists the extents of runs, to compare with Extents.
func pieces(b *Body, off, n int64) (extents []Extent, runs int64) {
	for r := range b.RunsWithin(off, n) {
		runs++
		for k := range r.Count {
			extents = append(extents, Extent{r.Logical + k*r.Length, r.Length, r.Object, r.Offset + k*r.Stride})
		}
	}
	return extents, runs
}

// The oracle is a list of all bytes: where each lies.
func TestExtentsOfManyRuns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	objects := []*Object{Bytes("a", make([]byte, 4000)), Bytes("c", make([]byte, 4000))}
	type place struct {
		object *Object
		offset int64
	}
	for runs := range 150 {
		var b Body
		var want []place
		for range runs {
			r := Run{Object: objects[rng.IntN(20)/19], Offset: rng.Int64N(3500), Length: 1 + rng.Int64N(20), Count: 1 + rng.Int64N(6)/4}
			r.Stride = r.Length + rng.Int64N(9)
			b.AddStrided(r.Object, r.Offset, r.Length, r.Stride, r.Count)
			for k := range r.Count {
				for i := range r.Length {
					want = append(want, place{r.Object, r.Offset + k*r.Stride + i})
				}
			}
		}
		var twice Body
		twice.AddBody(&b)
		twice.AddBody(&b)
		if int(b.Size()) != len(want) || int(twice.Size()) != 2*len(want) {
			t.Fatalf("%d bytes, want %d", b.Size(), len(want))
		}
		for _, c := range []struct {
			body *Body
			want []place
		}{{&b, want}, {&twice, append(want[:len(want):len(want)], want...)}} {
			for range 30 {
				off, n := rng.IntN(len(c.want)+1), 1+rng.IntN(len(c.want)+5)
				at := off
				for e := range c.body.Extents(int64(off), int64(n)) {
					for i := range e.Length {
						if e.Logical != int64(at)-i || c.want[at] != (place{e.Object, e.Offset + i}) {
							t.Fatalf("%d runs: byte %d is %d of %+v, want %+v", runs, at, i, e, c.want[at])
						}
						at++
					}
				}
				if end := min(off+n, len(c.want)); at != end {
					t.Fatalf("%d runs: [%d, +%d) ends at %d, want %d", runs, off, n, at, end)
				}
			}
		}
	}
}

// The oracle is Extents: whatever is cut, the runs hold the same pieces, and as many runs as were counted.
func TestRunsWithinARange(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a, c := Bytes("a", make([]byte, 4000)), Bytes("c", make([]byte, 4000))
	for range 300 {
		var b Body
		for range 1 + rng.IntN(5)*rng.IntN(40) {
			length := 1 + rng.Int64N(20)
			b.AddStrided([]*Object{a, c}[rng.IntN(2)], rng.Int64N(100), length, length+rng.Int64N(9), 1+rng.Int64N(8))
		}
		for range 50 {
			off, n := rng.Int64N(b.Size()+2), rng.Int64N(b.Size()+2)
			var want []Extent
			for e := range b.Extents(off, n) {
				want = append(want, e)
			}
			got, runs := pieces(&b, off, n)
			if len(got) != len(want) {
				t.Fatalf("[%d, +%d) of %+v: %d pieces, want %d", off, n, b, len(got), len(want))
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("[%d, +%d) of %+v: piece %d is %+v, want %+v", off, n, b, i, got[i], want[i])
				}
			}
			if count := b.CountWithin(off, n); count != runs {
				t.Fatalf("[%d, +%d) of %+v: %d runs, counted %d", off, n, b, runs, count)
			}
		}
	}
}

func TestRunsOfTheWholeStayWhole(t *testing.T) {
	var b Body
	o := Bytes("o", make([]byte, 1000))
	b.AddStrided(o, 10, 5, 7, 100)
	b.Add(o, 0, 3)
	if _, runs := pieces(&b, 0, math.MaxInt64); runs != int64(b.Runs()) || b.CountWithin(0, math.MaxInt64) != runs {
		t.Errorf("%d runs, want %d", runs, b.Runs())
	}
	if _, runs := pieces(&b, 2, b.Size()-4); runs != 3 {
		t.Errorf("%d runs, want the rest of a piece, 99 whole ones, and a part", runs)
	}
	for _, c := range [][2]int64{{-1, 5}, {0, 0}, {b.Size(), 1}, {math.MaxInt64, math.MaxInt64}} {
		if _, runs := pieces(&b, c[0], c[1]); runs != 0 || b.CountWithin(c[0], c[1]) != 0 {
			t.Errorf("[%d, +%d) has %d runs", c[0], c[1], runs)
		}
	}
}
