package cufile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// TestScatter brings spans of any length, in any order, to places of their own. Bytes between these stay.
func TestScatter(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		name, data := randomFile(t, 1<<20+301_234, 12)
		r := newReader(t, o)
		f, other := openFileIn(t, r, name), openFileIn(t, r, name)
		random := rand.New(rand.NewPCG(12, 2))
		gap := int64(0)
		if isFake(o) { // whose memory begins as 0xDB
			gap = 1
		}
		for trial := range 8 {
			var spans []Placed
			want, moved := bytes.Repeat([]byte{0xDB}, 1<<20), int64(0) // more than a quarter of the arena
			for at := int64(0); at < int64(len(want)); at += gap {
				n := min(random.Int64N(2<<(4+2*trial)), int64(len(want))-at)
				offset := random.Int64N(f.Size() - n)
				copy(want[at:], data[offset:offset+n])
				spans = append(spans, Placed{Offset: offset, N: n, To: at})
				at, moved = at+n, moved+n
			}
			random.Shuffle(len(spans), func(i, j int) { spans[i], spans[j] = spans[j], spans[i] })
			m := newMemory(t, r, int64(len(want)), int64(trial))
			q, err := BeginScatter(t.Context(), Target{Memory: m.Memory}, []Part{{f, spans[:len(spans)/3]}, {other, spans[len(spans)/3:]}, {f, nil}}, nil)
			must(t, err)
			result, err := q.Result()
			must(t, err)
			if result.Moved.Total() != moved || result.Choice.Why == "" {
				t.Errorf("%d bytes: %+v", moved, result)
			}
			m.holds(t, want, isFake(o))
		}
		m := newMemory(t, r, 100, 0)
		for _, c := range []struct {
			span Placed
			want error
		}{
			{Placed{Offset: -1, N: 1}, ErrOutOfRange},
			{Placed{Offset: f.Size(), N: 1}, ErrOutOfRange},
			{Placed{N: -1}, ErrOutOfRange},
			{Placed{N: 101}, ErrMemory},
			{Placed{N: 1, To: 100}, ErrMemory},
			{Placed{N: 1, To: -1}, ErrMemory},
			{Placed{N: 1, To: 1<<63 - 1}, ErrMemory},
		} {
			if _, err := BeginScatter(t.Context(), Target{Memory: m.Memory}, []Part{{f, []Placed{c.span}}}, nil); !errors.Is(err, c.want) {
				t.Errorf("%+v: %v, want %v", c.span, err, c.want)
			}
		}
		if _, err := BeginScatter(t.Context(), Target{Memory: m.Memory, Widen: WidenU16ToI64}, []Part{{f, nil}}, nil); !errors.Is(err, ErrMemory) {
			t.Errorf("widened: %v", err)
		}
	})
}
