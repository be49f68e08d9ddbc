package writer

// room is which bytes of an arena are free: ranges in order, none next to another.
type room struct{ free []span }

type span struct{ at, n int64 }

func newRoom(n int64) room { return room{[]span{{0, n}}} }

// take gives the first n bytes that are free in a row.
func (r *room) take(n int64) (int64, bool) {
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

// give takes bytes back.
func (r *room) give(at, n int64) {
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
