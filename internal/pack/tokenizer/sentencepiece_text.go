package tokenizer

import (
	"bytes"
	"math"
	"unicode/utf8"
)

// sentenceNormalizer changes texts as sentencepiece does (src/normalizer.cc, Normalize). It applies rules by their longest match,
// one space for several where the model says so, and a mark for each space.
type sentenceNormalizer struct {
	rules   *charsmap    // nil for none
	defined *addedTokens // which no rule changes; nil for none
	prefix  bool         // a mark goes before the text
	extra   bool         // spaces at its ends go, and several in a row are one
}

const spaceMark = "\u2581"

// next returns the normal form of the start of text, and the length of that start.
func (n *sentenceNormalizer) next(text []byte) (to []byte, size int) {
	if n.defined != nil && n.defined.starts[text[0]] {
		if t := n.defined.match(text, 0); t != nil {
			return text[:len(t.content)], len(t.content)
		}
	}
	if n.rules != nil {
		if to, size := n.rules.longest(text); size > 0 {
			return to, size
		}
	}
	size = 1
	if text[0] >= utf8.RuneSelf {
		_, size = utf8.DecodeRune(text)
	}
	return text[:size], size
}

// append appends the normalized text to dst. continued says that the text before it ended with a letter.
func (n *sentenceNormalizer) append(dst, text []byte, continued bool, steps *int) []byte {
	start, i := len(dst), 0
	for n.extra && !continued && i < len(text) {
		to, size := n.next(text[i:])
		if string(to) != " " {
			break
		}
		i += size
	}
	if i == len(text) {
		return dst
	}
	if n.prefix && !continued {
		dst = append(dst, spaceMark...)
	}
	afterSpace := n.extra && !continued
	for i < len(text) && grows(dst, text, steps) {
		to, size := n.next(text[i:])
		i += size
		if afterSpace {
			to = bytes.TrimLeft(to, " ")
		}
		for _, b := range to {
			if b == ' ' {
				dst = append(dst, spaceMark...)
			} else {
				dst = append(dst, b)
			}
		}
		if len(to) > 0 {
			afterSpace = n.extra && to[len(to)-1] == ' '
		}
	}
	for n.extra && bytes.HasSuffix(dst[start:], []byte(spaceMark)) {
		dst = dst[:len(dst)-len(spaceMark)]
	}
	return dst
}

// child follows a byte from a node of the trie.
func (c *charsmap) child(node uint32, b byte) (next uint32, unit uint32, ok bool) {
	at := node ^ uint32(b)
	if int64(at) >= int64(len(c.units)) {
		return 0, 0, false
	}
	unit = c.units[at]
	return at ^ trieOffset(unit), unit, unit&(1<<31|0xff) == uint32(b)
}

// longest returns the replacement of the longest prefix of key that is in c, and its length, or 0.
func (c *charsmap) longest(key []byte) (to []byte, n int) {
	node := trieOffset(c.units[0])
	value := int64(-1)
	for i, b := range key {
		next, unit, ok := c.child(node, b)
		if b == 0 || !ok {
			break
		}
		node = next
		if unit>>8&1 != 0 && int64(node) < int64(len(c.units)) {
			value, n = int64(c.units[node]&(1<<31-1)), i+1
		}
	}
	if n == 0 || value > int64(len(c.blob)) {
		return nil, 0
	}
	to, _, _ = bytes.Cut(c.blob[value:], []byte{0})
	return to, n
}

// joinsSpaces reports whether a rule has a space after something else, or the trie is so large that this is not looked for.
func (c *charsmap) joinsSpaces() bool {
	root := trieOffset(c.units[0])
	seen, nodes := map[uint32]bool{root: true}, []uint32{root}
	for len(nodes) > 0 {
		node := nodes[len(nodes)-1]
		nodes = nodes[:len(nodes)-1]
		for b := 1; b < 256; b++ {
			next, _, ok := c.child(node, byte(b))
			if ok && b == ' ' && node != root || len(seen) > 1<<20 {
				return true
			}
			if ok && !seen[next] {
				seen[next] = true
				nodes = append(nodes, next)
			}
		}
	}
	return false
}

// sentenceUnigram takes the tokens of the best sum of scores as sentencepiece does it (src/unigram_model.cc, EncodeOptimized). It uses
// sums of float32 from the start of the text on, and the first of equals. So a text's tokens depend on all of it.
type sentenceUnigram struct {
	trie    unigramTrie
	scores  []float32
	unknown float32 // score of a rune that is no token
	unk     uint32
	bytes   *[256]uint32
	inner   bool // a token has a mark behind its start
}

func newSentenceUnigram(m *sentenceModel, vocab map[string]uint32, unk uint32, bytes *[256]uint32) *sentenceUnigram {
	least := float32(math.MaxFloat32)
	u := &sentenceUnigram{scores: make([]float32, len(m.pieces)), unk: unk, bytes: bytes}
	var tokens []string
	for _, p := range m.pieces {
		if p.kind == pieceNormal {
			least = min(least, p.score)
		}
	}
	for i, p := range m.pieces {
		switch p.kind {
		case pieceNormal:
			u.scores[i] = p.score
		case pieceDefined:
			u.scores[i] = float32(0.1 * float64(len(p.text)-1))
		default:
			continue
		}
		tokens = append(tokens, p.text)
		u.inner = u.inner || len(p.text) > 0 && containsMark(p.text[1:])
	}
	u.unknown = least - unknownPenalty
	u.trie = newUnigramTrie(tokens, vocab)
	return u
}

func containsMark(text string) bool { return bytes.Contains([]byte(text), []byte(spaceMark)) }

// sentenceEncoder finds the best tokens. One goroutine uses it.
type sentenceEncoder struct {
	*sentenceUnigram
	best []sentencePath
}

// sentencePath is the best way to a place.
type sentencePath struct {
	score float32
	from  int32 // or -1
	id    uint32
}

// append appends the tokens of a whole text. It goes on word by word where no token lies over the start of a word.
func (u *sentenceEncoder) append(dst []uint32, text []byte) []uint32 {
	score, unknown := float32(0), false
	for from := 0; from < len(text); {
		to := len(text)
		if !u.inner {
			if n := bytes.Index(text[from+1:], []byte(spaceMark)); n >= 0 {
				to = from + 1 + n
			}
		}
		score = u.word(text[from:to], score)
		dst, unknown = u.tokens(dst, text[from:to], unknown)
		from = to
	}
	if cap(u.best) > keepNodes {
		u.best = nil
	}
	return dst
}

// word fills in the best ways through a part of the text whose start has a score, and returns that of its end.
func (u *sentenceEncoder) word(text []byte, score float32) float32 {
	n := len(text)
	if cap(u.best) < n+1 {
		u.best = make([]sentencePath, n+1, n+n/4+64)
	}
	best := u.best[:n+1]
	for i := range best {
		best[i] = sentencePath{from: -1}
	}
	best[0].score = score
	for i := 0; i < n; {
		length, single := runeLen(text, i), false
		if best[i].score < -farScore || best[i].score > farScore {
			nearer(best[i:])
		}
		here := best[i].score
		node := uint32(0)
		for k := i; k < n; k++ {
			m := u.trie.table.get(node, uint32(text[k]))
			if m.rank == none {
				break
			}
			node = m.rank
			if m.id == none {
				continue
			}
			if b, sum := &best[k+1], u.scores[m.id]+here; b.from < 0 || sum > b.score {
				*b = sentencePath{sum, int32(i), m.id}
			}
			single = single || k+1 == i+length
		}
		if !single {
			if b, sum := &best[i+length], u.unknown+here; b.from < 0 || sum > b.score {
				*b = sentencePath{sum, int32(i), u.unk}
			}
		}
		i += length
	}
	return best[n].score
}

// farScore is how far a sum goes before the package begins anew at 0, since a float32 tells less apart the larger it is.
const farScore = 100000

// nearer moves the scores of the places that ways lead to, so that the first has none.
func nearer(best []sentencePath) {
	offset := best[0].score
	for i := range best {
		if i == 0 || best[i].from >= 0 {
			best[i].score -= offset
		}
	}
}

// tokens appends the tokens of the best way. unknown says that the last token stood for text that the model does not know. Such
// tokens in a row are one, unless they become bytes.
func (u *sentenceEncoder) tokens(dst []uint32, text []byte, unknown bool) ([]uint32, bool) {
	best := u.best[:len(text)+1]
	for end, from := int32(len(text)), best[len(text)].from; end > 0; { // turn the way round: from is where the next token ends then
		before := best[from].from
		best[from].from = end
		end, from = from, before
	}
	for i := int32(0); int(i) < len(text); {
		next := best[i].from
		switch id := best[next].id; {
		case id != u.unk:
			dst, unknown = append(dst, id), false
		case u.bytes != nil:
			for _, b := range text[i:next] {
				dst = append(dst, u.bytes[b])
			}
			unknown = false
		case !unknown:
			dst, unknown = append(dst, id), true
		}
		i = next
	}
	return dst, unknown
}
