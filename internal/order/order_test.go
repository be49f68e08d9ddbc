package order

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBestFit compares with the definition: the longest piece first, into the fullest sample that it fits into.
func TestBestFit(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		room := 1 + random.Int64N(150)
		lengths := make([]int64, random.IntN(300))
		for i := range lengths {
			lengths[i] = 1 + random.Int64N(1+random.Int64N(room))
		}
		sample := make([]int64, len(lengths))
		samples, err := BestFit(lengths, room, sample)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]int64, samples)
		for i, s := range sample {
			got[s] += lengths[i]
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
	for _, n := range []int64{0, -1, 8} {
		if _, err := BestFit([]int64{n}, 7, make([]int64, 1)); err == nil {
			t.Errorf("a piece of %d was packed", n)
		}
	}
}

// TestPack packs documents of all lengths: every token comes once, in the order of its document, and samples are full but for padding.
func TestPack(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		room := 1 + random.Int64N(40)
		d := Documents{Borders: []int64{0}}
		for range random.IntN(60) {
			d.Borders, d.Begins = append(d.Borders, d.Borders[len(d.Borders)-1]+random.Int64N(1+2*room)), append(d.Begins, random.Int64N(1000))
		}
		var numbers, keys []int64
		for n := range d.Begins {
			numbers = append(numbers, int64(n))
		}
		random.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
		for range random.IntN(2) * 6 {
			keys = append(keys, random.Int64())
		}
		shuffle := make([]uint64, len(keys))
		for i, key := range keys {
			shuffle[i] = uint64(key)
		}
		p, err := d.Pack(numbers, room, shuffle)
		if err != nil {
			t.Fatal(err)
		}
		starts, lengths, documents := make([]int64, p.Sequences), make([]int64, p.Sequences), make([]int64, p.Sequences)
		p.Fill(starts, lengths, documents)
		came, q := make([]int64, len(d.Begins)), 0
		for s, n := range p.Each {
			tokens := int64(0)
			for i := range n {
				doc := documents[q]
				switch {
				case lengths[q] < 1 || doc < 0 && (starts[q] != -1 || i != n-1):
					t.Fatalf("sequence %d of sample %d: %d tokens from %d on, of document %d", i, s, lengths[q], starts[q], doc)
				case doc >= 0 && (starts[q] < d.Begins[doc] || (starts[q]-d.Begins[doc])%room != 0):
					t.Fatalf("sequence %d of sample %d: %d tokens from %d on, of document %d", i, s, lengths[q], starts[q], doc)
				case doc >= 0:
					came[doc] += lengths[q]
				}
				tokens, q = tokens+lengths[q], q+1
			}
			if tokens != room {
				t.Fatalf("sample %d of %d tokens has %d", s, room, tokens)
			}
		}
		if q != len(starts) {
			t.Fatalf("%d sequences, %d of samples", len(starts), q)
		}
		for doc, n := range came {
			if n != d.Borders[doc+1]-d.Borders[doc] {
				t.Fatalf("%d tokens of document %d", n, doc)
			}
		}
	}
	for _, tokens := range []int64{1 << 40, math.MaxInt64} {
		d := Documents{Borders: []int64{0, tokens}}
		if _, err := d.Pack([]int64{0}, 2, nil); err == nil {
			t.Errorf("a document of %d tokens was packed into samples of 2", tokens)
		}
	}
	d := Documents{Borders: []int64{0, 5, 1 << 60, 3, 6}}
	for _, numbers := range [][]int64{{-1}, {4}, {1}, {2}, {0, 3}} {
		if _, err := d.Pack(numbers, 7, nil); err == nil {
			t.Errorf("documents %v were packed", numbers)
		}
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
