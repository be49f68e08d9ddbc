package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// merges is byte-pair encoding as the tokenizers package does it (models/bpe). Units get tokens, and pairs of tokens are
// merged by a list, regardless of their bytes.
type merges struct {
	pairs    pairTable
	whole    map[string]uint32 // tokens that a piece may be without merging, nil for none
	byteWise bool              // a unit is a byte, else it is a rune
	units    []uint32          // token of each unit below unitsTabled, or none
	rare     map[rune]uint32   // of the others
	bytes    *[256]uint32      // <0x00> and so on: a rune that is no token, where all its bytes have one
	unk      uint32            // token of a unit that has none, or none
	fuse     bool              // adjacent ones are one
	borders  *borders          // nil where pieces are merged as they come
}

// unitsTabled is the end of the runes that have a place in merges.units.
const unitsTabled = 1 << 16

func (m *merges) unit(r rune) uint32 {
	if int(r) < len(m.units) {
		return m.units[r]
	}
	if id, ok := m.rare[r]; ok {
		return id
	}
	return none
}

// pairTable maps pairs of tokens to their merged token: open addressing, at most half full.
type pairTable struct {
	keys   []uint64 // emptyPair where there is none
	values []pairMerge
	shift  uint
}

// pairMerge is the place in the list of merges, and the token.
type pairMerge struct{ rank, id uint32 }

const emptyPair = ^uint64(0)

func newPairTable(n int) pairTable {
	bits := uint(4)
	for 1<<bits < 2*n {
		bits++
	}
	t := pairTable{keys: make([]uint64, 1<<bits), values: make([]pairMerge, 1<<bits), shift: 64 - bits}
	for i := range t.keys {
		t.keys[i] = emptyPair
	}
	return t
}

func (t *pairTable) slot(key uint64) int {
	const golden = 0x9e3779b97f4a7c15
	i := int(key * golden >> t.shift)
	for t.keys[i] != key && t.keys[i] != emptyPair {
		i = (i + 1) & (len(t.keys) - 1)
	}
	return i
}

func (t *pairTable) set(a, b uint32, m pairMerge) {
	key := uint64(a)<<32 | uint64(b)
	i := t.slot(key)
	t.keys[i], t.values[i] = key, m
}

// get returns the merge of a and b, of rank none where there is none.
func (t *pairTable) get(a, b uint32) pairMerge {
	key := uint64(a)<<32 | uint64(b)
	i := t.slot(key)
	if t.keys[i] != key {
		return pairMerge{none, none}
	}
	return t.values[i]
}

// pairMerger merges pieces. One goroutine uses it.
type pairMerger struct {
	*merges
	nodes []pairNode
	heap  []mergePair
}

// pairNode is a token of the piece, in a list. prev and next are places, -1 where there is none.
type pairNode struct {
	prev, next int32
	id         uint32
	join       pairMerge // with the next
}

// fewNodes is up to how many units a piece is merged without a heap.
const fewNodes = 48

func (m *pairMerger) append(dst []uint32, piece []byte) []uint32 {
	m.nodes = m.nodes[:0]
	m.symbols(piece)
	n := len(m.nodes)
	if n == 0 {
		return dst
	}
	for i := range m.nodes {
		m.nodes[i].prev, m.nodes[i].next = int32(i)-1, int32(i)+1
		m.nodes[i].join = pairMerge{none, none}
		if i+1 < n {
			m.nodes[i].join = m.pairs.get(m.nodes[i].id, m.nodes[i+1].id)
		}
	}
	m.nodes[n-1].next = -1
	if n <= fewNodes {
		m.few()
	} else {
		m.many()
	}
	for i := int32(0); i >= 0; i = m.nodes[i].next {
		dst = append(dst, m.nodes[i].id)
	}
	if n > keepNodes {
		m.nodes, m.heap = nil, nil
	}
	return dst
}

// few merges by looking for the lowest rank, the first of equals, again and again.
func (m *pairMerger) few() {
	for {
		best, at := none, int32(-1)
		for i := int32(0); i >= 0; i = m.nodes[i].next {
			if m.nodes[i].join.rank < best {
				best, at = m.nodes[i].join.rank, i
			}
		}
		if at < 0 {
			return
		}
		m.merge(at)
	}
}

// many does the same in O(n log n).
func (m *pairMerger) many() {
	m.heap = m.heap[:0]
	for i := range m.nodes {
		if rank := m.nodes[i].join.rank; rank != none {
			m.heap = append(m.heap, mergePair{rank, int32(i)})
		}
	}
	slices.SortFunc(m.heap, func(p, q mergePair) int {
		if p.before(q) {
			return -1
		}
		return 1
	}) // a sorted list is a heap
	h := merger{heap: m.heap}
	for len(h.heap) > 0 {
		p := h.pop()
		if m.nodes[p.at].join.rank != p.rank {
			continue
		}
		m.merge(p.at)
		if join := m.nodes[p.at].join; join.rank != none {
			h.push(mergePair{join.rank, p.at})
		}
		if prev := m.nodes[p.at].prev; prev >= 0 && m.nodes[prev].join.rank != none {
			h.push(mergePair{m.nodes[prev].join.rank, prev})
		}
	}
	m.heap = h.heap
}

// merge joins the token at i with the next.
func (m *pairMerger) merge(i int32) {
	node := &m.nodes[i]
	gone := &m.nodes[node.next]
	node.id, node.next = node.join.id, gone.next
	gone.join = pairMerge{none, none}
	node.join = pairMerge{none, none}
	if node.next >= 0 {
		next := &m.nodes[node.next]
		next.prev = i
		node.join = m.pairs.get(node.id, next.id)
	}
	if node.prev >= 0 {
		prev := &m.nodes[node.prev]
		prev.join = m.pairs.get(prev.id, node.id)
	}
}

// symbols makes a node of each unit.
func (m *pairMerger) symbols(piece []byte) {
	unknown := false // the last unit has no token, and its node waits
	flush := func() {
		if unknown {
			m.nodes, unknown = append(m.nodes, pairNode{id: m.unk}), false
		}
	}
	for i := 0; i < len(piece); {
		r, n := rune(piece[i]), 1
		if !m.byteWise && r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(piece[i:])
		}
		unit := piece[i : i+n]
		i += n
		if id := m.unit(r); id != none {
			flush()
			m.nodes = append(m.nodes, pairNode{id: id})
			continue
		}
		if m.bytes != nil && !slices.ContainsFunc(unit, func(b byte) bool { return m.bytes[b] == none }) {
			// The package adds these before an unknown unit that still waits. So does this.
			for _, b := range unit {
				m.nodes = append(m.nodes, pairNode{id: m.bytes[b]})
			}
			continue
		}
		if m.unk == none {
			continue // the package leaves such a unit out
		}
		if !m.fuse {
			flush()
		}
		unknown = true
	}
	flush()
}

// borders are places that no merge goes over, known by the runes around them. A text that no pre-tokenizer splits is cut
// there, so that its words are merged, and remembered, one by one.
type borders struct {
	joined map[[2]rune]struct{} // the last rune of a merge's left side, and the first one of its right side
}

// between reports whether a and b, both of which are tokens, are never merged with each other.
func (b *borders) between(x, y rune) bool {
	_, ok := b.joined[[2]rune{x, y}]
	return !ok
}

// pieces yields the parts of text between borders.
func (m *merges) pieces(text []byte, yield func(piece []byte)) {
	const mark = '\u2581'
	from := 0
	before := rune(-1)
	for i := 0; i < len(text); {
		r, n := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(text[i:])
		}
		if i > from && (r >= utf8.RuneSelf || r == '\n') && (r == mark || r == '\n' || i-from >= 12) &&
			(r != mark || before != mark) && m.unit(before) != none && m.unit(r) != none && m.borders.between(before, r) {
			yield(text[from:i])
			from = i
		}
		before = r
		i += n
	}
	if from < len(text) {
		yield(text[from:])
	}
}
