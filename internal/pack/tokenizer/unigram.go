package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// unigram is the model of sentencepiece that takes the tokens of the best sum of scores, as the tokenizers package does
// it (models/unigram, encode_optimized). It uses sums of float64 from the left, and the first of equals.
type unigram struct {
	ids    map[string]uint32
	scores []float64
	nodes  unigramTrie
	unk    uint32 // or none
	worst  float64
	bytes  *[256]uint32 // as in merges
}

// unigramTrie is open addressing over a node and a byte.
type unigramTrie struct {
	table pairTable // the value's rank is the child, its id the token that ends there, or none
	count uint32
}

func newUnigramTrie(tokens []string, ids map[string]uint32) unigramTrie {
	total := 1
	for _, t := range tokens {
		total += len(t)
	}
	t := unigramTrie{table: newPairTable(total), count: 1}
	for _, token := range tokens {
		node := uint32(0)
		for i, b := range []byte(token) {
			m := t.table.get(node, uint32(b))
			if m.rank == none {
				m = pairMerge{t.count, none}
				t.count++
				t.table.set(node, uint32(b), m)
			}
			if i == len(token)-1 {
				m.id = ids[token]
				t.table.set(node, uint32(b), m)
			}
			node = m.rank
		}
	}
	return t
}

// unknownPenalty is the distance of an unknown rune's score below the worst token's.
const unknownPenalty = 10

// unigramEncoder finds the best tokens of pieces. One goroutine uses it.
type unigramEncoder struct {
	*unigram
	best []bestPath
}

// bestPath is the best way to a place.
type bestPath struct {
	score float64
	from  int32 // or -1
	id    uint32
}

func (u *unigramEncoder) append(dst []uint32, piece []byte) ([]uint32, error) {
	n := len(piece)
	if cap(u.best) < n+1 {
		u.best = make([]bestPath, n+1, 2*n+64)
	}
	u.best = u.best[:n+1]
	best := u.best
	for i := range best {
		best[i] = bestPath{from: -1}
	}
	for i := 0; i < n; {
		length := runeLen(piece, i)
		here := best[i].score
		single := false
		node := uint32(0)
		for k := i; k < n; k++ {
			m := u.nodes.table.get(node, uint32(piece[k]))
			if m.rank == none {
				break
			}
			node = m.rank
			if m.id == none {
				continue
			}
			if b := &best[k+1]; b.from < 0 || u.scores[m.id]+here > b.score {
				*b = bestPath{u.scores[m.id] + here, int32(i), m.id}
			}
			single = single || k+1 == i+length
		}
		if !single {
			if u.unk == none {
				r, _ := utf8.DecodeRune(piece[i:])
				return dst, fmt.Errorf("the tokenizer has no token for %q, and none for what it does not know", r)
			}
			if b, score := &best[i+length], u.worst-unknownPenalty+here; b.from < 0 || score > b.score {
				*b = bestPath{score, int32(i), u.unk}
			}
		}
		i += length
	}
	dst = u.backtrack(dst, piece)
	if n > keepNodes {
		u.best = nil
	}
	return dst, nil
}

// backtrack appends the tokens of the best way to the end of piece.
func (u *unigramEncoder) backtrack(dst []uint32, piece []byte) []uint32 {
	best, start := u.best, len(dst)
	for end := int32(len(piece)); end > 0; {
		b := best[end]
		if b.id != u.unk {
			dst = append(dst, b.id)
			end = b.from
			continue
		}
		from := b.from
		for from > 0 && best[from].id == u.unk { // unknown runes in a row are one
			from = best[from].from
		}
		dst = u.unknown(dst, piece[from:end])
		end = from
	}
	for i, k := start, len(dst)-1; i < k; i, k = i+1, k-1 {
		dst[i], dst[k] = dst[k], dst[i]
	}
	return dst
}

// unknown appends the tokens of runes that are not in the vocabulary, in reverse.
func (u *unigramEncoder) unknown(dst []uint32, text []byte) []uint32 {
	if id, ok := u.ids[string(text)]; ok {
		return append(dst, id)
	}
	if u.bytes != nil {
		known := true
		for _, b := range text {
			known = known && u.bytes[b] != none
		}
		if known {
			for i := len(text) - 1; i >= 0; i-- {
				dst = append(dst, u.bytes[text[i]])
			}
			return dst
		}
	}
	return append(dst, u.unk)
}
