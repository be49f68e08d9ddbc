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

// Packed are documents, or parts of them, in samples of room tokens: pieces of one sample after another, and likewise its sequences,
// which are the pieces and the padding behind them, of document -1.
type Packed struct {
	Starts, Lengths, Places []int64 // of each piece: its first token in the file, its tokens, and where in the samples it goes
	Tokens, Numbers         []int64 // of each sequence: its tokens, and its document
	Pieces, Sequences       []int64 // of each sample: how many it has
}

// piece is a document, or a part of one that is longer than a sample.
type piece struct{ start, document, tokens int64 }

// cut gives the pieces of documents, those of numbers, for samples of room tokens.
func (d *Documents) cut(numbers []int64, room int64) ([]piece, error) {
	for _, n := range numbers {
		if n < 0 || n >= int64(len(d.Borders)-1) {
			return nil, fmt.Errorf("document %d is none of %d", n, len(d.Borders)-1)
		}
	}
	whole := make([]piece, len(numbers))
	eachPart(len(numbers), func(from, to int) { // each look waits for memory
		for i, n := range numbers[from:to] {
			p := piece{d.Borders[n], n, d.Borders[n+1] - d.Borders[n]}
			if d.Begins != nil {
				p.start = d.Begins[n]
			}
			whole[from+i] = p
		}
	})
	pieces, left := make([]piece, 0, len(whole)+len(whole)/8), d.Borders[len(d.Borders)-1]
	for _, p := range whole {
		if p.tokens < 0 || p.tokens > left {
			return nil, fmt.Errorf("document %d has %d tokens, where %d are left for it", p.document, p.tokens, left)
		}
		left -= p.tokens
		for at := int64(0); at < p.tokens; at += room {
			pieces = append(pieces, piece{p.start + at, p.document, min(p.tokens-at, room)})
		}
	}
	return pieces, nil
}

// Pack packs documents, those of numbers, by best-fit. Those longer than room are cut. Samples come in the order that keys shuffle
// them to; without keys in the order in which they were begun. python/hbmfs/_packing.py has the same.
func (d *Documents) Pack(numbers []int64, room int64, keys []uint64) (*Packed, error) {
	if room < 1 || len(d.Borders) < 1 || d.Begins != nil && len(d.Begins) < len(d.Borders)-1 {
		return nil, fmt.Errorf("%d borders, and %d places, are no documents for samples of %d tokens", len(d.Borders), len(d.Begins), room)
	}
	pieces, err := d.cut(numbers, room)
	if err != nil {
		return nil, err
	}
	lengths := make([]int64, len(pieces))
	for i := range pieces {
		lengths[i] = pieces[i].tokens
	}
	sample := make([]int64, len(pieces))
	samples, err := BestFit(lengths, room, sample)
	if err != nil {
		return nil, err
	}
	order := shuffled(samples, keys)
	p := &Packed{Pieces: make([]int64, samples), Sequences: make([]int64, samples)}
	tokens := make([]int64, samples)
	for i, begun := range sample {
		s := int64(order[begun])
		sample[i] = s
		p.Pieces[s]++
		tokens[s] += lengths[i]
	}
	at, said := make([]int64, samples), make([]int64, samples) // where the next piece, and sequence, of each sample go
	all, sequences := int64(0), int64(0)
	for s, n := range p.Pieces {
		at[s], said[s] = all, sequences
		if p.Sequences[s] = n; tokens[s] < room {
			p.Sequences[s]++
		}
		all, sequences = all+n, sequences+p.Sequences[s]
	}
	p.Starts, p.Lengths, p.Places = make([]int64, all), make([]int64, all), make([]int64, all)
	p.Tokens, p.Numbers = make([]int64, sequences), make([]int64, sequences)
	free := make([]int64, samples) // where the next piece goes
	for s := range free {
		free[s] = int64(s) * room
	}
	for i, s := range sample {
		k, q := at[s], said[s]
		p.Starts[k], p.Lengths[k], p.Places[k] = pieces[i].start, lengths[i], free[s]
		p.Tokens[q], p.Numbers[q] = lengths[i], pieces[i].document
		at[s], said[s], free[s] = k+1, q+1, free[s]+lengths[i]
	}
	for s, n := range tokens {
		if n < room {
			p.Tokens[said[s]], p.Numbers[said[s]] = room-n, -1
		}
	}
	return p, nil
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
