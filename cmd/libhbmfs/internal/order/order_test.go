package order

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// packed packs, and gives the samples. It begins with room for too few sequences.
func packed(t *testing.T, p *Packer, d *Documents, w *Window) *Samples {
	t.Helper()
	for n, tries := int64(len(d.Borders))/2, 0; ; tries++ {
		to := &Samples{make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n+1)}
		found, err := p.Pack(d, w, to)
		if err != nil || tries > 2 {
			t.Fatalf("%+v, in room for %d sequences: %v", found, n, err)
		}
		if k := found.Sequences; k <= n {
			if counted, err := p.Pack(d, w, new(Samples)); err != nil || counted != found {
				t.Fatalf("%+v are counted, and %+v packed: %v", counted, found, err)
			}
			return &Samples{to.Starts[:k], to.Lengths[:k], to.Documents[:k], to.Borders[:found.Samples+1]}
		}
		n = found.Sequences
	}
}

// TestBestFit compares with the definition: the longest piece first, into the fullest sample that it fits into.
func TestBestFit(t *testing.T) {
	random, p := rand.New(rand.NewPCG(1, 2)), new(Packer)
	for range 200 {
		room := 1 + random.Int64N(150)
		lengths, d := make([]int64, random.IntN(300)), Documents{Borders: []int64{0}}
		for i := range lengths {
			lengths[i] = 1 + random.Int64N(1+random.Int64N(room))
			d.Borders = append(d.Borders, d.Borders[i]+lengths[i])
		}
		samples := packed(t, p, &d, &Window{Count: int64(len(lengths)), Room: room})
		var got []int64
		for s, end := range samples.Borders[1:] {
			got = append(got, 0)
			for k := samples.Borders[s]; k < end; k++ {
				if samples.Documents[k] >= 0 {
					got[s] += samples.Lengths[k]
				}
			}
		}
		var want []int64
		for _, n := range slices.Backward(slices.Sorted(slices.Values(lengths))) {
			best := -1
			for i, used := range want {
				if used+n <= room && (best < 0 || used > want[best]) {
					best = i
				}
			}
			if best < 0 {
				best, want = len(want), append(want, 0)
			}
			want[best] += n
		}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Fatalf("%v in %d: %v, want %v", lengths, room, got, want)
		}
	}
}

// TestPack packs documents of all lengths: every token comes once, in the order of its document, and samples are full but for padding.
func TestPack(t *testing.T) {
	random, p := rand.New(rand.NewPCG(5, 6)), new(Packer)
	for range 300 {
		d := Documents{Borders: []int64{0}}
		w := Window{Room: 1 + random.Int64N(40)}
		for range random.IntN(60) + random.IntN(2)*random.IntN(3000) {
			d.Borders, d.Begins = append(d.Borders, d.Borders[len(d.Borders)-1]+random.Int64N(1+2*w.Room)), append(d.Begins, random.Int64N(1000))
		}
		w.First = random.Int64N(int64(len(d.Borders)))
		w.Count = random.Int64N(int64(len(d.Borders)) - w.First)
		for range random.IntN(2) * 6 {
			w.Order, w.Shuffle = append(w.Order, random.Uint64()), append(w.Shuffle, random.Uint64())
		}
		packs(t, &d, &w, packed(t, p, &d, &w))
	}
	d := Documents{Borders: []int64{0, 5, 1 << 60, 3, 6}}
	to := Samples{make([]int64, 9), make([]int64, 9), make([]int64, 9), make([]int64, 10)}
	for _, w := range []Window{
		{-1, 1, 7, nil, nil}, {0, 5, 7, nil, nil}, {4, 1, 7, nil, nil}, {1, -1, 7, nil, nil}, {1 << 62, 1 << 62, 7, nil, nil}, {1, 1, 7, nil, nil}, {2, 1, 7, nil, nil},
		{0, 1, 0, nil, nil}, {0, 1, 1 << 40, nil, nil},
	} {
		if _, err := p.Pack(&d, &w, &to); err == nil {
			t.Errorf("%+v was packed", w)
		}
	}
	d.Borders = []int64{0, mostPieces}
	if n, err := p.Pack(&d, &Window{0, 1, 1, nil, nil}, &to); err != nil || n.Sequences <= 9 {
		t.Errorf("%+v, %v", n, err)
	}
	for _, tokens := range []int64{mostPieces + 1, 1 << 40, math.MaxInt64} {
		d.Borders = []int64{0, tokens}
		if _, err := p.Pack(&d, &Window{0, 1, 1, nil, nil}, &to); err == nil {
			t.Errorf("a document of %d tokens was packed into samples of 1", tokens)
		}
	}
}

// packs finds in samples every token of the documents of a window once.
func packs(t *testing.T, d *Documents, w *Window, samples *Samples) {
	t.Helper()
	numbers := make([]uint64, w.Count)
	permutationOf(uint64(len(d.Begins)), w.Order).fill(numbers, uint64(w.First))
	came, q := map[int64]int64{}, 0
	for s, end := range samples.Borders[1:] {
		tokens := int64(0)
		for ; q < int(end); q++ {
			start, n, doc := samples.Starts[q], samples.Lengths[q], samples.Documents[q]
			switch {
			case n < 1 || doc < 0 && (start != -1 || q != int(end)-1):
				t.Fatalf("sequence %d of sample %d: %d tokens from %d on, of document %d", q, s, n, start, doc)
			case doc >= 0 && (start < d.Begins[doc] || (start-d.Begins[doc])%w.Room != 0):
				t.Fatalf("sequence %d of sample %d: %d tokens from %d on, of document %d", q, s, n, start, doc)
			case doc >= 0:
				came[doc] += n
			}
			tokens += n
		}
		if tokens != w.Room {
			t.Fatalf("sample %d of %d tokens has %d", s, w.Room, tokens)
		}
	}
	if q != len(samples.Starts) {
		t.Fatalf("%d sequences, %d of samples", len(samples.Starts), q)
	}
	for _, n := range numbers {
		if doc := int64(n); came[doc] != d.Borders[doc+1]-d.Borders[doc] {
			t.Fatalf("%d tokens of document %d", came[doc], doc)
		} else {
			delete(came, doc)
		}
	}
	for doc, n := range came {
		t.Fatalf("%d tokens of document %d, which is of another window", n, doc)
	}
}

// TestDraw gives sources a sample each 2, 4 and 4 samples. Python's tests compare real weights.
func TestDraw(t *testing.T) {
	one := Wide{0, 1}
	sources := []Source{
		{May: 1, Due: 2, ThenMay: 3, ThenDue: 4, Every: 2, Slope: one},
		{May: 1, Due: 4, ThenMay: 5, ThenDue: 8, Every: 4, Slope: one},
		{May: 1, Due: 4, ThenMay: 5, ThenDue: 8, Every: 4, Slope: one},
	}
	drawn := make([]byte, 20)
	if n := Draw(sources, 0, 1<<62, drawn); n != 20 || !slices.Equal(drawn[:8], []byte{0, 1, 0, 2, 0, 1, 0, 2}) {
		t.Fatalf("%d: %v", n, drawn)
	}
	// A third more than each sample: what is rounded up grows to more than the slope, across the border of 64 bits.
	slope := Wide{3, 0}
	s := Source{May: 1, Due: 1, ThenMay: 2, ThenDue: 2, Every: 1, Slope: slope, Part: Wide{1, 0}, MayPast: Wide{2, 1}, DuePast: Wide{2, 1}}
	var due []int64
	for range 6 {
		due = append(due, s.ThenDue)
		s.step(&s.ThenDue, &s.DuePast)
	}
	if want := []int64{2, 3, 4, 6, 7, 8}; !slices.Equal(due, want) {
		t.Errorf("due at %v, want %v", due, want)
	}
}

// TestCut compares with every token of every row.
func TestCut(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		var borders [][]int64
		shortest := int64(1 << 62)
		for range 1 + random.IntN(3) {
			b := []int64{0}
			for range 1 + random.IntN(50) {
				b = append(b, b[len(b)-1]+random.Int64N(9))
			}
			borders, shortest = append(borders, b), min(shortest, b[len(b)-1])
		}
		if shortest == 0 {
			continue
		}
		length := 1 + random.Int64N(shortest)
		starts, sources, each := make([]int64, random.IntN(3000)), []int32(nil), make([]int64, 3000)
		if len(borders) > 1 {
			sources = make([]int32, len(starts))
		}
		of := func(row int) []int64 {
			if sources == nil {
				return borders[0]
			}
			return borders[sources[row]]
		}
		for i := range starts {
			if sources != nil {
				sources[i] = int32(random.IntN(len(borders)))
			}
			b := of(i)
			starts[i] = random.Int64N(b[len(b)-1] - length + 1)
		}
		c, err := NewCut(borders, sources, starts, length, each[:len(starts)])
		if err != nil {
			t.Fatal(err)
		}
		lengths, documents, goesOn := make([]int64, c.Total), make([]int64, c.Total), make([]byte, c.Total)
		c.Fill(lengths, documents, goesOn)
		at := 0
		for i, start := range starts {
			token, b := start, of(i)
			for range each[i] {
				d := documents[at]
				if token < b[d] || token+lengths[at] > b[d+1] || (goesOn[at] == 1) != (b[d+1] > start+length) {
					t.Fatalf("row %d from %d: %d tokens of document %d", i, start, lengths[at], d)
				}
				token, at = token+lengths[at], at+1
			}
			if token != start+length {
				t.Fatalf("row %d ends at %d", i, token)
			}
		}
		if at != len(documents) {
			t.Fatalf("%d documents, %d of rows", len(documents), at)
		}
	}
	if _, err := NewCut([][]int64{{0, 5}}, nil, []int64{3}, 3, make([]int64, 1)); err == nil {
		t.Error("a row outside was cut")
	}
	if _, err := NewCut([][]int64{{0, math.MinInt64}}, nil, []int64{0}, 1, make([]int64, 1)); err == nil {
		t.Error("rows of fewer than no tokens were cut")
	}
	c, err := NewCut([][]int64{{0, 2, 5}}, nil, []int64{1}, 3, make([]int64, 1))
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("arrays that are too short were filled")
			}
		}()
		c.Fill(nil, nil, nil)
	}()
	for _, source := range []int32{-1, 1} {
		if _, err := NewCut([][]int64{{0, 5}}, []int32{source}, []int64{1}, 3, make([]int64, 1)); err == nil {
			t.Errorf("a row of dataset %d was cut", source)
		}
	}
}
