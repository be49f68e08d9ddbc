// Package room says which bytes of an arena are free. It has no lock: its arena has one.
package room

import (
	"cmp"
	"slices"
)

// Room is the free memory: ranges in order, none next to another. At first none is free; Give adds bytes.
type Room struct{ free []span }

type span struct{ at, n int64 }

// Take gives the place of the first n bytes that are free in a row, if there are any.
func (r *Room) Take(n int64) (at int64, ok bool) {
	if n == 0 {
		return 0, true
	}
	i := slices.IndexFunc(r.free, func(f span) bool { return f.n >= n })
	if i < 0 {
		return 0, false
	}
	f := &r.free[i]
	at = f.at
	if f.at, f.n = f.at+n, f.n-n; f.n == 0 {
		r.free = slices.Delete(r.free, i, i+1)
	}
	return at, true
}

// Give takes back a range of Take, or adds new bytes.
func (r *Room) Give(at, n int64) {
	if n == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(r.free, at, func(f span, at int64) int { return cmp.Compare(f.at, at) })
	if i < len(r.free) && at+n == r.free[i].at {
		n += r.free[i].n
		r.free = slices.Delete(r.free, i, i+1)
	}
	if i > 0 && r.free[i-1].at+r.free[i-1].n == at {
		r.free[i-1].n += n
		return
	}
	r.free = slices.Insert(r.free, i, span{at, n})
}
