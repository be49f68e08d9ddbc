package order

import "math/bits"

// bestFit is best-fit decreasing: the longest piece goes first, into the fullest sample that it still fits into. python/hbmfs/data/_packing.py
// explains it, and gives the same. It keeps its memory from one packing to the next.
type bestFit struct {
	count  []int32 // of pieces, by length: 1 to room tokens
	groups []group
	free   []int32  // by tokens left: the last group with so many, by its place in groups; 0: none
	some   []uint64 // bit r: free[r] is not 0

	placed  []int32 // of each piece, the longest first: its sample
	samples []sample
}

// group is samples with one history.
type group struct{ first, many, next int32 }

// sample is one that was begun: how many pieces it has, and how many tokens are left.
type sample struct{ pieces, left int32 }

// fit places pieces, of which there are count by length, in samples of room tokens.
func (f *bestFit) fit(count []int32, pieces int, room int32) {
	f.count, f.groups, f.samples = count, append(f.groups[:0], group{}), f.samples[:0]
	f.free, f.some, f.placed = roomFor(f.free, int(room)+1), roomFor(f.some, int(room)/64+1), roomFor(f.placed, pieces)[:0]
	clear(f.free)
	clear(f.some)
	for n := room; n > 0; n-- {
		f.placeAll(n, room)
	}
}

// placeAll places the pieces of one length.
func (f *bestFit) placeAll(length, room int32) {
	for rest := f.count[length]; rest > 0; {
		left, g := f.take(length)
		if left == 0 {
			left, g = room, group{first: int32(len(f.samples)), many: (rest + room/length - 1) / (room / length)}
			for range g.many {
				f.samples = append(f.samples, sample{left: room})
			}
		}
		each := left / length
		if filled := min(g.many, rest/each); filled > 0 {
			f.place(g.first, filled, each, length)
			f.put(left-each*length, group{first: g.first, many: filled})
			rest -= filled * each
			g.first, g.many = g.first+filled, g.many-filled
		}
		if rest > 0 && g.many > 0 { // too few for one more full sample
			f.place(g.first, 1, rest, length)
			f.put(left-rest*length, group{first: g.first, many: 1})
			rest, g.first, g.many = 0, g.first+1, g.many-1
		}
		f.put(left, g)
	}
}

// place puts the next pieces into many samples from first on, so many into each.
func (f *bestFit) place(first, many, each, length int32) {
	for s := first; s < first+many; s++ {
		f.samples[s].pieces += each
		f.samples[s].left -= each * length
		for range each {
			f.placed = append(f.placed, s)
		}
	}
}

func (f *bestFit) put(left int32, g group) {
	if left > 0 && g.many > 0 {
		g.next = f.free[left]
		f.free[left] = int32(len(f.groups))
		f.groups = append(f.groups, g)
		f.some[left/64] |= 1 << (left % 64)
	}
}

// take gives samples with the fewest tokens left that a piece fits into; left is 0 where there are none.
func (f *bestFit) take(length int32) (left int32, g group) {
	word := length / 64
	found := f.some[word] >> (length % 64) << (length % 64)
	for found == 0 {
		if word++; int(word) == len(f.some) {
			return 0, group{}
		}
		found = f.some[word]
	}
	left = word*64 + int32(bits.TrailingZeros64(found))
	g = f.groups[f.free[left]]
	if f.free[left] = g.next; g.next == 0 {
		f.some[left/64] &^= 1 << (left % 64)
	}
	return left, g
}

// roomFor gives n elements, in the same memory where that is enough. Their identity is not part of the
// answer.
func roomFor[T any](list []T, n int) []T {
	if cap(list) < n {
		return make([]T, n, n+n/8)
	}
	return list[:n]
}
