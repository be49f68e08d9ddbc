package tokenizer

import (
	tiktoken "github.com/tiktoken-go/tokenizer"
)

// ranks is a vocabulary: the token of each string of bytes, which is also the order in which pairs are merged.
type ranks map[string]uint32

// loadRanks takes the vocabulary out of a codec whose error mode is still the one that returns bytes as they are.
// size bounds the tokens; some below it may be missing, or special.
func loadRanks(codec tiktoken.Codec, size int64) ranks {
	r := make(ranks, size)
	for id := range uint(size) {
		if text, err := codec.Decode([]uint{id}); err == nil { // an error says that there is no such token
			r[text] = uint32(id)
		}
	}
	return r
}

// keepNodes bounds the memory that is kept from piece to piece.
const keepNodes = 1 << 16

// merger does byte-pair encoding of pieces. One goroutine uses it.
type merger struct {
	ranks ranks
	nodes []mergeNode
	heap  []mergePair
}

// mergeNode is a part of the piece, at the index where it begins, in a list of parts.
type mergeNode struct {
	prev, next int32
	rank       uint32 // of this part joined with the next, or none
}

// mergePair is a candidate: the part that begins at is to be joined with the next one. It is out of date where the
// node's rank is another.
type mergePair struct {
	rank uint32
	at   int32
}

func (p mergePair) before(q mergePair) bool {
	return p.rank < q.rank || p.rank == q.rank && p.at < q.at
}

// append appends the tokens of piece to dst. It joins the pair with the lowest rank, the first of equals, until no pair
// is a token. It takes O(n log n) and about 30 bytes for each of piece, so one long piece is no trap.
func (m *merger) append(dst []uint32, piece string) []uint32 {
	n := int32(len(piece)) // nobody has a text of 2 GiB in one piece
	m.nodes, m.heap = m.nodes[:0], m.heap[:0]
	for i := range n + 1 {
		m.nodes = append(m.nodes, mergeNode{prev: i - 1, next: i + 1, rank: none})
	}
	for i := range n {
		m.consider(piece, i)
	}
	for len(m.heap) > 0 {
		p := m.pop()
		if m.nodes[p.at].rank != p.rank {
			continue
		}
		gone := m.nodes[p.at].next
		next := m.nodes[gone].next
		m.nodes[gone].rank = none
		m.nodes[p.at].next = next
		m.nodes[next].prev = p.at
		m.consider(piece, p.at)
		if prev := m.nodes[p.at].prev; prev >= 0 {
			m.consider(piece, prev)
		}
	}
	for i := int32(0); i < n; i = m.nodes[i].next {
		dst = append(dst, m.ranks[piece[i:m.nodes[i].next]])
	}
	if n > keepNodes {
		m.nodes, m.heap = nil, nil
	}
	return dst
}

// consider sets the rank of the part at i and makes it a candidate.
func (m *merger) consider(piece string, i int32) {
	node := &m.nodes[i]
	node.rank = none
	if int(node.next) == len(piece) {
		return
	}
	if rank, ok := m.ranks[piece[i:m.nodes[node.next].next]]; ok {
		node.rank = rank
		m.push(mergePair{rank, i})
	}
}

func (m *merger) push(p mergePair) {
	m.heap = append(m.heap, p)
	h := m.heap
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h[i].before(h[parent]) {
			return
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

func (m *merger) pop() mergePair {
	h := m.heap
	top := h[0]
	h[0] = h[len(h)-1]
	h = h[:len(h)-1]
	m.heap = h
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(h) {
			return top
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(h[i]) {
			return top
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
