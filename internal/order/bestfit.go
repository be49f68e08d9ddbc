package order

import (
	"fmt"
	"math/bits"
)

// BestFit gives each piece of 1 to room tokens the number of a sample of room tokens, by best-fit decreasing, and the number of
// samples. python/hbmfs/_packing.py explains it, and gives the same.
func BestFit(lengths []int64, room int64, sample []int64) (samples int64, err error) {
	p := packing{count: make([]int64, room+1), free: make([][]group, room+1), some: make([]uint64, room/64+1), sample: sample, order: make([]int64, len(lengths))}
	for _, n := range lengths {
		if n < 1 || n > room {
			return 0, fmt.Errorf("a piece of %d tokens, where samples have %d", n, room)
		}
		p.count[n]++
	}
	begin, end := make([]int64, room+1), int64(0) // of each length in order, the longest first
	for n := room; n > 0; n-- {
		begin[n], end = end, end+p.count[n]
	}
	for i, n := range lengths {
		p.order[begin[n]] = int64(i)
		begin[n]++
	}
	for n := room; n > 0; n-- {
		p.placeAll(n, room)
	}
	return p.samples, nil
}

// group is samples with one history.
type group struct{ first, many int64 }

type packing struct {
	count   []int64   // of pieces, by length
	free    [][]group // by tokens left
	some    []uint64  // bit r: free[r] is not empty
	samples int64

	order  []int64 // pieces that are not placed yet, the longest first
	sample []int64 // of each piece
}

// placeAll places the pieces of one length.
func (p *packing) placeAll(length, room int64) {
	for rest := p.count[length]; rest > 0; {
		left, g := p.take(length)
		if left == 0 {
			many := (rest + room/length - 1) / (room / length)
			left, g = room, group{p.samples, many}
			p.samples += many
		}
		each := left / length
		if filled := min(g.many, rest/each); filled > 0 {
			p.place(filled*each, g.first, each)
			p.put(left-each*length, group{g.first, filled})
			rest -= filled * each
			g = group{g.first + filled, g.many - filled}
		}
		if rest > 0 && g.many > 0 { // too few for one more full sample
			p.place(rest, g.first, rest)
			p.put(left-rest*length, group{g.first, 1})
			rest, g = 0, group{g.first + 1, g.many - 1}
		}
		p.put(left, g)
	}
}

// place puts the next pieces into samples from first on, so many into each.
func (p *packing) place(pieces, first, each int64) {
	for i, piece := range p.order[:pieces] {
		p.sample[piece] = first + int64(i)/each
	}
	p.order = p.order[pieces:]
}

func (p *packing) put(left int64, g group) {
	if left > 0 && g.many > 0 {
		p.free[left] = append(p.free[left], g)
		p.some[left/64] |= 1 << (left % 64)
	}
}

// take gives samples with the fewest tokens left that a piece fits into; left is 0 where there are none.
func (p *packing) take(length int64) (left int64, g group) {
	word := length / 64
	found := p.some[word] >> (length % 64) << (length % 64)
	for found == 0 {
		if word++; word == int64(len(p.some)) {
			return 0, group{}
		}
		found = p.some[word]
	}
	left = word*64 + int64(bits.TrailingZeros64(found))
	last := len(p.free[left]) - 1
	g, p.free[left] = p.free[left][last], p.free[left][:last]
	if last == 0 {
		p.some[left/64] &^= 1 << (left % 64)
	}
	return left, g
}
