package order

import "fmt"

// Documents are those of a dataset, or of a part of one. Document d has the tokens from Borders[d] to Borders[d+1] of it, which begin
// at token Begins[d] of a file.
type Documents struct {
	Borders []int64
	Begins  []int64 // nil: at the borders
}

// Window says which documents are packed together: those in Count places from First on.
type Window struct {
	First, Count int64
	Room         int64    // tokens of a sample
	Order        []uint64 // keys of the [Permutation] of all documents; none: as they are numbered
	Shuffle      []uint64 // and of that of the window's samples; none: as they were begun
}

// Samples is where a packing goes: the sequences of one sample after another. They are documents, parts of them, and the padding behind
// those of a sample. All but Borders have room for as many sequences, Borders for one more.
type Samples struct {
	Starts, Lengths, Documents []int64 // of each sequence: its first token in the file, its tokens, its document; of padding -1, tokens, -1
	Borders                    []int64 // of each sample: how many sequences come before it; and of all of them
}

// Counts says how many there are. Tokens are those of documents.
type Counts struct{ Sequences, Samples, Tokens int64 }

// Packer packs windows, and keeps its memory from one to the next.
type Packer struct {
	whole  []document
	count  []int32 // of pieces, which are documents or parts of longer ones, by tokens
	fits   bestFit
	final  []uint64 // of each sample, as they were begun: its place among all
	places []int32  // likewise: where its next sequence goes
	next   []int32  // of each number of tokens: its next piece among all, the longest first
}

type document struct{ start, number, tokens int64 }

// mostRoom and mostPieces bound the memory of a packing. Their sums are numbers of 32 bits.
const mostRoom, mostPieces = 1 << 28, 1 << 28

// Pack packs a window by best-fit. Documents longer than a sample are cut. Where there are more sequences than there is room for, nothing is
// written, and there may be fewer than Pack says. Without Borders it only counts. python/hbmfs/data/_packing.py has the same.
func (p *Packer) Pack(d *Documents, w *Window, to *Samples) (n Counts, err error) {
	if w.Room < 1 || w.Room > mostRoom || len(d.Borders) < 1 || d.Begins != nil && len(d.Begins) < len(d.Borders)-1 {
		return n, fmt.Errorf("%d borders, and %d places, are no documents for samples of %d tokens", len(d.Borders), len(d.Begins), w.Room)
	}
	most := int64(min(len(to.Starts), mostPieces))
	if to.Borders == nil {
		most = mostPieces
	}
	pieces, tokens, err := p.cut(d, w, most)
	switch {
	case err != nil:
		return n, err
	case pieces > mostPieces:
		return n, fmt.Errorf("%d documents are %d pieces of %d tokens: pack fewer at a time, or into longer samples", w.Count, pieces, w.Room)
	case pieces > most:
		return Counts{Sequences: 2 * pieces}, nil
	}
	p.fits.fit(p.count, int(pieces), int32(w.Room))
	n = Counts{pieces, int64(len(p.fits.samples)), tokens}
	for _, s := range p.fits.samples {
		if s.left > 0 {
			n.Sequences++
		}
	}
	if n.Sequences <= most && to.Borders != nil {
		p.fill(w, to)
	}
	return n, nil
}

// cut finds the window's documents, and counts their pieces.
func (p *Packer) cut(d *Documents, w *Window, most int64) (pieces, tokens int64, err error) {
	all := int64(len(d.Borders) - 1)
	if w.First < 0 || w.Count < 0 || w.Count > all || w.First > all-w.Count {
		return 0, 0, fmt.Errorf("%d documents from %d on are not among %d", w.Count, w.First, all)
	}
	begins := d.Begins
	if begins == nil {
		begins = d.Borders
	}
	p.count = roomFor(p.count, int(w.Room)+1)
	clear(p.count)
	order := permutationOf(uint64(all), w.Order)
	p.whole = roomFor(p.whole, int(w.Count))
	eachPart(len(p.whole), func(from, to int) {
		var numbers [256]uint64 // at once: each look at borders waits for memory, and none for the others
		for ; from < to; from += len(numbers) {
			block := numbers[:min(len(numbers), to-from)]
			order.fill(block, uint64(w.First)+uint64(from))
			for i, n := range block {
				p.whole[from+i] = document{begins[n], int64(n), d.Borders[n+1] - d.Borders[n]}
			}
		}
	})
	for _, one := range p.whole {
		if left := d.Borders[all] - tokens; one.tokens < 0 || one.tokens > left {
			return 0, 0, fmt.Errorf("document %d has %d tokens, where %d are left for it", one.number, one.tokens, left)
		}
		tokens += one.tokens
		full, rest := int64(0), one.tokens
		if rest > w.Room {
			full, rest = rest/w.Room, rest%w.Room
		}
		if pieces += full + min(rest, 1); pieces > most {
			continue // where full is more than a number of 32 bits
		}
		p.count[w.Room] += int32(full)
		p.count[rest] += int32(min(rest, 1))
	}
	return pieces, tokens, nil
}

// fill writes the sequences of all samples, in their order.
func (p *Packer) fill(w *Window, to *Samples) {
	begun := p.fits.samples
	p.final = roomFor(p.final, len(begun))
	permutationOf(uint64(len(begun)), w.Shuffle).fill(p.final, 0)
	for s, place := range p.final {
		n := int64(begun[s].pieces)
		if begun[s].left > 0 {
			n++
		}
		to.Borders[place+1] = n
	}
	to.Borders[0] = 0
	for s := range begun {
		to.Borders[s+1] += to.Borders[s]
	}
	p.places = roomFor(p.places, len(begun))
	for s, place := range p.final {
		p.places[s] = int32(to.Borders[place])
	}
	p.next = roomFor(p.next, len(p.count))
	at := int32(0)
	for n := len(p.count) - 1; n >= 0; n-- {
		p.next[n] = at
		at += p.count[n]
	}
	for _, one := range p.whole {
		for start, left := one.start, one.tokens; left > 0; start, left = start+w.Room, left-w.Room {
			n := min(left, w.Room)
			next := &p.next[n]
			k := &p.places[p.fits.placed[*next]]
			to.Starts[*k], to.Lengths[*k], to.Documents[*k] = start, n, one.number
			*next++
			*k++
		}
	}
	for s, k := range p.places {
		if left := begun[s].left; left > 0 {
			to.Starts[k], to.Lengths[k], to.Documents[k] = -1, int64(left), -1
		}
	}
}
