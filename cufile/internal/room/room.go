// Package room says which bytes of an arena are free. It has no lock: its arena has one.
package room

// Room is the free memory: ranges in order, none next to another.
type Room struct{ free []span }

type span struct{ at, n int64 }

// New has n bytes, all free.
func New(n int64) Room { return Room{[]span{{0, n}}} }

// Take gives the place of the first n bytes that are free in a row, if there are any.
func (r *Room) Take(n int64) (at int64, ok bool) {
	if n == 0 {
		return 0, true
	}
	for i := range r.free {
		f := &r.free[i]
		if f.n < n {
			continue
		}
		at := f.at
		if f.at, f.n = f.at+n, f.n-n; f.n == 0 {
			r.free = append(r.free[:i], r.free[i+1:]...)
		}
		return at, true
	}
	return 0, false
}

// Give takes back a range of Take.
func (r *Room) Give(at, n int64) {
	if n == 0 {
		return
	}
	i := 0
	for i < len(r.free) && r.free[i].at < at {
		i++
	}
	r.free = append(r.free, span{})
	copy(r.free[i+1:], r.free[i:])
	r.free[i] = span{at, n}
	if i+1 < len(r.free) && at+n == r.free[i+1].at {
		r.free[i].n += r.free[i+1].n
		r.free = append(r.free[:i+1], r.free[i+2:]...)
	}
	if i > 0 && r.free[i-1].at+r.free[i-1].n == at {
		r.free[i-1].n += r.free[i].n
		r.free = append(r.free[:i], r.free[i+1:]...)
	}
}
