package source

import "github.com/hbmfs/hbmfs/cufile/internal/driver"

// Rows are spans of a file that a device may see. Its reader's watch looks at its files.
type Rows struct {
	Of      *Map
	Watch   *Watch
	Spans   []Span
	Missing []Span // those that the device does not see
}

// Finder finds rows one after the other where a device sees them. A row costs the same for any number of files: it is found in a table, without a lock
// or a system call.
type Finder struct {
	Rows       []Rows // that come next
	Element    int64  // bytes that are not divided
	Most       int64  // bytes that are found at once
	Generation uint32 // of the device's registrations, from 1 on
	Round      uint32 // that windows are read in

	turn uint32 // of the watch of Rows[0]
	next int    // the span of Rows[0] that comes next
	skip int64  // bytes of it that were found
}

// Find calls put with at most room of the next parts. Rows that are not registered, or whose file cannot be looked at or has changed, are Missing.
func (f *Finder) Find(room int, put func(r *Rows, at driver.Pointer, s Span)) {
	for ; len(f.Rows) > 0; f.Rows, f.next = f.Rows[1:], 0 {
		if r := &f.Rows[0]; len(r.Spans) > 0 {
			if room = f.findOf(r, room, put); room < 0 {
				return
			}
		}
	}
}

// findOf finds rows of one file, and gives the room that is left; -1 where that ends before.
func (f *Finder) findOf(r *Rows, room int, put func(r *Rows, at driver.Pointer, s Span)) int {
	r.Of.Using.Lock() // another thread may read the same file
	defer r.Of.Using.Unlock()
	f.turn = r.Watch.Turn()
	for ; f.next < len(r.Spans); f.next, f.skip = f.next+1, 0 {
		for whole := &r.Spans[f.next]; f.skip < whole.N; {
			if room == 0 {
				return -1
			}
			s := Span{whole.Offset + f.skip, whole.N - f.skip, whole.To + f.skip}
			at, n := f.find(r, s.Offset)
			if at == 0 {
				r.Missing = append(r.Missing, s)
				break
			}
			n = min(n, s.N, f.Most)
			if f.Element > 1 {
				n -= n % f.Element
			}
			if s.N = n; s.N > 0 {
				put(r, at, s)
				room--
			} else { // an element lies in two windows
				s.N = min(f.Element, whole.N-f.skip)
				r.Missing = append(r.Missing, s)
			}
			f.skip += s.N
		}
	}
	return room
}

// find gives where the device sees the byte at offset of a file, and how many follow it there; 0 where it does not.
func (f *Finder) find(r *Rows, offset int64) (at driver.Pointer, n int64) {
	i := r.Of.Find(offset)
	place := &r.Of.Places[i]
	if place.Turn != f.turn {
		if !r.Watch.Mark(r.Of.Files[i]) {
			return 0, 0
		}
		place.Turn, place.Generation = f.turn, 0
	}
	if place.Generation == f.Generation {
		return place.Base + driver.Pointer(offset-place.Begin), place.End - offset
	}
	run := &r.Of.Runs[i]
	from, n := run.At(offset)
	at, before, after := r.Of.Files[i].See(from, f.Round)
	if at != 0 && run.Inside(from-before, before+after) {
		place.Base, place.Generation = at-driver.Pointer(from-run.Offset), f.Generation
	}
	return at, min(n, after)
}

// See gives where a device sees the byte at offset, and how many bytes it sees before and from there on; 0 where it does not.
func (b *Backing) See(offset int64, round uint32) (at driver.Pointer, before, after int64) {
	seen := b.Seen.Load()
	if seen == nil || offset >= seen.length {
		return 0, 0, 0
	}
	index := offset / seen.window
	if at = driver.Pointer(seen.At[index].Load()); at == 0 {
		return 0, 0, 0
	}
	if used := &seen.Used[index]; used.Load() != round {
		used.Store(round)
	}
	before = offset - index*seen.window
	return at + driver.Pointer(before), before, min(seen.window-before, seen.length-offset)
}
