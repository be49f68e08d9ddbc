package order

import (
	"fmt"
	"math"
)

// Documents are those of a dataset, or of a part of one: document d has the tokens from Borders[d] to Borders[d+1] of it, which begin
// at token Begins[d] of a file.
type Documents struct {
	Borders []int64
	Begins  []int64 // nil: at the borders
}

// Packing is documents, or parts of them, in samples of room tokens.
type Packing struct {
	Sequences int64   // of all samples: pieces, and the padding behind those of a sample
	Each      []int64 // of each sample: how many sequences it has

	room   int64
	pieces []piece
	order  []int64 // the numbers of pieces, one sample after another
	free   []int64 // tokens of padding of each sample
}

// piece is a document, or a part of one that is longer than a sample.
type piece struct{ start, tokens, document int64 }

// mostPieces bounds the memory of a packing.
const mostPieces = 1 << 28

// cut gives the pieces of documents, those of numbers, for samples of room tokens, and how many tokens each has.
func (d *Documents) cut(numbers []int64, room int64) (pieces []piece, lengths []int64, err error) {
	for _, n := range numbers {
		if n < 0 || n >= int64(len(d.Borders)-1) {
			return nil, nil, fmt.Errorf("document %d is none of %d", n, len(d.Borders)-1)
		}
	}
	begins := d.Begins
	if begins == nil {
		begins = d.Borders
	}
	whole := make([]piece, len(numbers))
	eachPart(len(numbers), func(from, to int) { // each look waits for memory
		for i, n := range numbers[from:to] {
			whole[from+i] = piece{begins[n], d.Borders[n+1] - d.Borders[n], n}
		}
	})
	count, left := int64(0), d.Borders[len(d.Borders)-1]
	for i := range whole {
		n := whole[i].tokens
		if n < 0 || n > left {
			return nil, nil, fmt.Errorf("document %d has %d tokens, where %d are left for it", whole[i].document, n, left)
		}
		left -= n
		if count++; n > room {
			count += (n - 1) / room
		} else if n == 0 {
			count--
		}
	}
	if count > mostPieces {
		return nil, nil, fmt.Errorf("%d documents are %d pieces of %d tokens: pack fewer at a time, or into longer samples", len(numbers), count, room)
	}
	pieces, lengths = make([]piece, 0, count), make([]int64, 0, count)
	for _, p := range whole {
		for ; p.tokens > 0; p.start, p.tokens = p.start+room, p.tokens-room {
			n := min(p.tokens, room)
			pieces, lengths = append(pieces, piece{p.start, n, p.document}), append(lengths, n)
		}
	}
	return pieces, lengths, nil
}

// Pack packs documents, those of numbers, by best-fit. Those longer than room are cut. Samples come in the order that keys shuffle
// them to; without keys in the order in which they were begun. python/hbmfs/_packing.py has the same.
func (d *Documents) Pack(numbers []int64, room int64, keys []uint64) (*Packing, error) {
	if room < 1 || len(d.Borders) < 1 || d.Begins != nil && len(d.Begins) < len(d.Borders)-1 {
		return nil, fmt.Errorf("%d borders, and %d places, are no documents for samples of %d tokens", len(d.Borders), len(d.Begins), room)
	}
	pieces, lengths, err := d.cut(numbers, room)
	if err != nil {
		return nil, err
	}
	sample := make([]int64, len(pieces))
	samples, err := BestFit(lengths, room, sample)
	if err != nil {
		return nil, err
	}
	p := &Packing{Each: make([]int64, samples), room: room, pieces: pieces, order: make([]int64, len(pieces)), free: make([]int64, samples)}
	for s := range p.free {
		p.free[s] = room
	}
	shuffle := shuffled(samples, keys)
	for i, begun := range sample {
		s := int64(shuffle[begun])
		sample[i] = s
		p.Each[s]++
		p.free[s] -= lengths[i]
	}
	next := starts(p.Each) // where the next piece of each sample goes
	for i, s := range sample {
		p.order[next[s]] = int64(i)
		next[s]++
	}
	for s, n := range p.free {
		if n > 0 {
			p.Each[s]++
		}
		p.Sequences += p.Each[s]
	}
	return p, nil
}

// Fill gives the sequences of one sample after another: the first token in the file, the tokens, and the document of each. Of padding,
// the first token and the document are -1.
func (p *Packing) Fill(first, tokens, documents []int64) {
	begins := starts(p.Each)
	padded := make([]int64, len(p.Each)) // samples before each that have padding
	for s := 1; s < len(padded); s++ {
		padded[s] = padded[s-1] + min(p.free[s-1], 1)
	}
	eachPart(len(p.Each), func(from, to int) { // each look at a piece waits for memory
		for s := from; s < to; s++ {
			k, end := begins[s], begins[s]+p.Each[s]
			if n := p.free[s]; n > 0 {
				end--
				first[end], tokens[end], documents[end] = -1, n, -1
			}
			for _, i := range p.order[k-padded[s] : end-padded[s]] {
				one := &p.pieces[i]
				first[k], tokens[k], documents[k] = one.start, one.tokens, one.document
				k++
			}
		}
	})
}

// starts says where each of some ranges begins, which lie one behind the other and are so long.
func starts(lengths []int64) []int64 {
	list, at := make([]int64, len(lengths)), int64(0)
	for i, n := range lengths {
		list[i] = at
		at += n
	}
	return list
}

// shuffled is the numbers below n in the order of a [Permutation], by these keys; as they are without keys.
func shuffled(n int64, keys []uint64) []uint64 {
	list := make([]uint64, n)
	for i := range list {
		list[i] = uint64(i)
	}
	if len(keys) > 0 && n > 0 {
		rows := uint64(math.Sqrt(float64(n)))
		for rows*rows < uint64(n) {
			rows++
		}
		for rows > 1 && (rows-1)*(rows-1) >= uint64(n) {
			rows--
		}
		p := Permutation{N: uint64(n), Rows: rows, Columns: (uint64(n) + rows - 1) / rows, Keys: keys}
		p.Apply(list)
	}
	return list
}
