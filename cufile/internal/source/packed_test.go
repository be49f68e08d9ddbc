package source

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPackedRuns compares packed runs with the runs themselves, for spans anywhere.
func TestPackedRuns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, runsApart, runsApart + 1, 5000} {
		var p packedRuns
		var runs []Run
		end := int64(0)
		for range n {
			r := Run{Logical: end, Length: 1 + random.Int64N(1<<random.IntN(40)), Object: random.Uint64N(5), Offset: random.Int64N(1 << 50), Count: 1}
			switch random.IntN(5) {
			case 0:
				r.Count = 2 + random.Int64N(100)
				r.Stride = r.Length + random.Int64N(1000)
			case 1:
				r.Object = pendingObject
				fallthrough
			default:
				r.Stride = r.Length
			}
			before := &Run{}
			if len(runs) > 0 {
				before = &runs[len(runs)-1]
			}
			p.add(before, &r)
			runs, end = append(runs, r), r.End()
		}
		if got := p.within(nil, 0, end); !slices.Equal(got, runs) {
			t.Fatalf("%d runs came back as %d others", n, len(got))
		}
		for range 200 {
			var spans []Span
			for range random.IntN(20) {
				at := random.Int64N(end)
				spans = append(spans, Span{Offset: at, N: random.Int64N(min(end-at, 1<<random.IntN(45)) + 1)})
			}
			var want []Run
			for _, r := range runs {
				if slices.ContainsFunc(spans, func(s Span) bool { return s.N > 0 && s.Offset < r.End() && s.Offset+s.N > r.Logical }) {
					want = append(want, r)
				}
			}
			if got := p.of(spans); !slices.Equal(got, want) {
				t.Fatalf("of %d runs, %v has %v, want %v", n, spans, got, want)
			}
		}
	}
}

// TestJoinedSpans compares ranges with the bytes of the spans that they were made of.
func TestJoinedSpans(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var spans []Span
		var want, got [100]bool
		for range random.IntN(12) {
			s := Span{Offset: random.Int64N(80), N: random.Int64N(20)}
			spans = append(spans, s)
			for i := range s.N {
				want[s.Offset+i] = true
			}
		}
		end := int64(-1)
		for _, r := range joined(spans) {
			if r.Offset <= end || r.N == 0 {
				t.Fatalf("%v of %v", r, spans)
			}
			for end = r.Offset; end < r.Offset+r.N; end++ {
				got[end] = true
			}
		}
		if got != want {
			t.Fatalf("%v became %v", spans, joined(spans))
		}
	}
}
