package cufile

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// TestBatchesSeeOnlyFilesThatTheyRead says of a file whether the device saw it, by the last request that had spans of it.
func TestBatchesSeeOnlyFilesThatTheyRead(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		r := newReader(t, o)
		var files []*File
		for seed := range uint64(2) {
			name, _ := randomFile(t, 100_000, 70+seed)
			files = append(files, openFileIn(t, r, name))
		}
		m := newMemory(t, r, 2000, 0)
		for range 2 {
			must(t, brought(t, Target{Memory: m.Memory}, &Batch{Files: files, Element: 1, Sources: []int32{0, 0}, Starts: []int64{0, 50_000}, Length: 1000}))
			if files[1].Info().Seen {
				t.Error("a file of which nothing was read counts as seen")
			}
		}
		seen := files[0].Info().Seen
		must(t, brought(t, Target{Memory: m.Memory}, &Batch{Files: files, Element: 1, Sources: []int32{1}, Starts: []int64{0}, Length: 1000}))
		if files[0].Info().Seen != seen {
			t.Errorf("that a file was seen was %v, and a batch of another file has changed it", seen)
		}
	})
}

// TestBatchOfOneFile brings elements of a file that begins with something else, one span behind the other. What is not read stays.
func TestBatchOfOneFile(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		const element, begin = 2, 3
		name, data := randomFile(t, 301_234, 19)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		random := rand.New(rand.NewPCG(19, 2))
		elements := (f.Size() - begin) / element
		var want []byte
		b := Batch{Files: []*File{f}, Begins: []int64{begin}, Element: element}
		for i := range 500 {
			n := random.Int64N(200)
			start := random.Int64N(elements - n + 1)
			if i%7 == 0 && isFake(o) { // whose memory begins as 0xDB
				start = Unread
				want = append(want, bytes.Repeat([]byte{0xDB}, int(n)*element)...)
			} else {
				at := begin + start*element
				want = append(want, data[at:at+n*element]...)
			}
			b.Starts, b.Lengths = append(b.Starts, start), append(b.Lengths, n)
		}
		m := newMemory(t, r, int64(len(want)), 0)
		q, err := BeginBatch(t.Context(), Target{Memory: m.Memory}, &b, nil)
		must(t, err)
		_, err = q.Result()
		must(t, err)
		m.holds(t, want, isFake(o))
		for _, c := range []struct {
			start, n int64
			want     error
		}{
			{Unread - 1, 1, ErrOutOfRange},
			{elements, 1, ErrOutOfRange},
			{elements - 9, 10, ErrOutOfRange},
			{math.MaxInt64, 1, ErrOutOfRange},
			{math.MinInt64, 1, ErrOutOfRange},
			{0, -1, ErrMemory},
			{0, math.MaxInt64, ErrMemory},
			{0, math.MinInt64, ErrMemory},
			{Unread, 101, ErrMemory},
		} {
			wrong := Batch{Files: b.Files, Begins: b.Begins, Element: element, Starts: []int64{0, c.start, 0}, Lengths: []int64{1, c.n, 1}}
			if err := brought(t, Target{Memory: Memory{Pointer: m.Pointer, Length: 200}}, &wrong); !errors.Is(err, c.want) {
				t.Errorf("%d elements from %d on: %v, want %v", c.n, c.start, err, c.want)
			}
		}
		for _, wrong := range []func(b *Batch){
			func(b *Batch) { b.Element = 0 },
			func(b *Batch) { b.Begins = []int64{-1} },
			func(b *Batch) { b.Begins = []int64{f.Size() + 1} },
			func(b *Batch) { b.Begins = nil; b.Element = f.Size() },
			func(b *Batch) { b.Lengths = b.Lengths[1:] },
			func(b *Batch) { b.Places = b.Lengths[1:] },
			func(b *Batch) { b.Sources = make([]int32, 1) },
			func(b *Batch) { b.Files = nil },
		} {
			other := b
			wrong(&other)
			if err := brought(t, Target{Memory: m.Memory}, &other); err == nil {
				t.Errorf("%+v was read", other)
			}
		}
	})
}

// TestBatchOfManySpans brings batches whose spans are located by the thread that begins them, and by another one. Spans that cannot be are an error of the request.
func TestBatchOfManySpans(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 100_000, 21)
		r := newReader(t, o)
		f := openFileIn(t, r, name)
		for _, n := range []int{manySpans - 1, manySpans, 2*manySpans + 3} {
			random := rand.New(rand.NewPCG(21, uint64(n)))
			b := Batch{Files: []*File{f}, Element: 2}
			var want []byte
			for range n {
				start, length := random.Int64N(f.Size()/2-30), random.Int64N(30)
				b.Starts, b.Lengths = append(b.Starts, start), append(b.Lengths, length)
				want = append(want, data[2*start:2*(start+length)]...)
			}
			m := newMemory(t, r, int64(len(want)), 0)
			for round := range 3 { // the later ones may find all of it registered
				q, err := BeginBatch(t.Context(), Target{Memory: m.Memory}, &b, nil)
				must(t, err)
				_, err = q.Result()
				must(t, err)
				m.holds(t, want, isFake(o))
				if round == 0 {
					wrong := b
					wrong.Starts = append([]int64{f.Size()}, b.Starts[1:]...)
					q, err := BeginBatch(t.Context(), Target{Memory: m.Memory}, &wrong, nil)
					must(t, err)
					if _, err = q.Result(); !errors.Is(err, ErrOutOfRange) {
						t.Errorf("%d spans, one of them behind the end: %v", n, err)
					}
				}
			}
		}
	})
}

// brought gives the error of a batch, of its begin or of the request.
func brought(t *testing.T, to Target, b *Batch) error {
	t.Helper()
	q, err := BeginBatch(t.Context(), to, b, nil)
	if err == nil {
		_, err = q.Result()
	}
	return err
}

// TestBatchWithoutMemory gives addresses on the host where there is none: an error, which ends no process.
func TestBatchWithoutMemory(t *testing.T) {
	name, _ := randomFile(t, 1000, 20)
	r := newReader(t, Options{Device: HostDevice})
	f := openFileIn(t, r, name)
	none := Batch{Files: []*File{f}, Element: 1}
	unread := Batch{Files: none.Files, Element: 1, Starts: []int64{Unread}, Places: []int64{0}, Length: 5}
	for _, c := range []struct {
		at  uintptr
		n   int64
		b   *Batch
		bad bool // also where nothing is to move
	}{
		{math.MaxUint, 100, &none, false},
		{math.MaxUint, 100, &unread, false},
		{1 << 62, math.MaxInt64, &unread, false},
		{1, 8000, &unread, false},
		{8, 8000, &none, true},
		{4096, 8000, &none, true},
		{1 << 50, 8000, &none, true},
	} {
		m := Memory{Pointer: c.at, Length: c.n}
		var s *Sequences
		if c.bad {
			s = &Sequences{Lengths: []int64{3, 997}, Documents: []int64{1, 2}, Tokens: 1000, Begins: m, Positions: m, Numbers: m}
		}
		q, err := BeginBatch(t.Context(), Target{Memory: m}, c.b, s)
		if err == nil {
			_, err = q.Result()
		}
		if errors.Is(err, ErrMemory) != c.bad {
			t.Errorf("%d bytes at %#x: %v", c.n, c.at, err)
		}
	}
}
