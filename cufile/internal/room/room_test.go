package room

import (
	"math/rand/v2"
	"testing"
)

// TestRoomIsFirstFit takes and gives room at random, beside a plain model.
func TestRoomIsFirstFit(t *testing.T) {
	const size = 64
	r := &Room{}
	r.Give(0, size)
	var used [size]bool
	random := rand.New(rand.NewPCG(4, 4))
	held := map[int64]int64{}
	for range 20_000 {
		if n := random.Int64N(9); random.IntN(2) == 0 {
			want, found := int64(0), n == 0
			for at := int64(0); at+n <= size && !found; at++ {
				free := int64(0)
				for free < n && !used[at+free] {
					free++
				}
				want, found = at, free == n
			}
			at, ok := r.Take(n)
			if ok != found || ok && at != want {
				t.Fatalf("%d bytes at %d (%v), want %d (%v)", n, at, ok, want, found)
			}
			if ok && n > 0 {
				held[at] = n
				for i := range n {
					used[at+i] = true
				}
			}
			continue
		}
		for at, n := range held {
			r.Give(at, n)
			delete(held, at)
			for i := range n {
				used[at+i] = false
			}
			break
		}
	}
	for at, n := range held {
		r.Give(at, n)
	}
	if at, ok := r.Take(size); at != 0 || !ok {
		t.Errorf("all was given back, and this is free: %v", r.free)
	}
}
