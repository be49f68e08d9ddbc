package tokenizer

import (
	"bytes"
	"unicode"
)

// addedToken is a token that is found in a text before it is split.
type addedToken struct {
	id             uint32
	content        string
	lstrip, rstrip bool
	special        bool // its text in a document is ordinary text
	singleWord     bool // it counts only between blanks, which is not supported
}

// addedTokens finds added tokens: of those that begin first, the longest.
type addedTokens struct {
	tokens []addedToken
	nodes  map[uint64]int32 // of a trie: parent and byte
	ends   []int32          // of a node: the token that ends there, or -1
	starts [256]bool
}

func newAddedTokens(tokens []addedToken) *addedTokens {
	useful := false
	for _, t := range tokens {
		useful = useful || !t.special
	}
	if !useful { // then nothing is ever found
		return nil
	}
	a := &addedTokens{tokens: tokens, nodes: map[uint64]int32{}, ends: []int32{-1}}
	for i, t := range tokens {
		node := int32(0)
		for _, b := range []byte(t.content) {
			key := uint64(node)<<8 | uint64(b)
			next, ok := a.nodes[key]
			if !ok {
				next = int32(len(a.ends))
				a.nodes[key] = next
				a.ends = append(a.ends, -1)
			}
			node = next
		}
		a.ends[node] = int32(i)
		a.starts[t.content[0]] = true
	}
	return a
}

// match returns the longest token at text[i], or nil.
func (a *addedTokens) match(text []byte, i int) *addedToken {
	node, found := int32(0), int32(-1)
	for ; i < len(text); i++ {
		next, ok := a.nodes[uint64(node)<<8|uint64(text[i])]
		if !ok {
			break
		}
		node = next
		if a.ends[node] >= 0 {
			found = a.ends[node]
		}
	}
	if found < 0 {
		return nil
	}
	return &a.tokens[found]
}

// addedMatch is a token that was found: after the text up to start, and the next text begins at end. Where two tokens
// strip the same white space, end may lie before the start of this one, as in the package.
type addedMatch struct {
	*addedToken
	start, end int
	scan       int // where looking for the next token begins
}

// next returns the first token in text from scan on. Text before from belongs to earlier ones.
func (a *addedTokens) next(text []byte, scan, from int) (addedMatch, bool) {
	for i := scan; i < len(text); {
		if !a.starts[text[i]] {
			i++
			continue
		}
		t := a.match(text, i)
		if t == nil {
			i++
			continue
		}
		m := addedMatch{t, i, i + len(t.content), i + len(t.content)}
		i = m.end
		if t.special {
			continue
		}
		if t.lstrip {
			m.start = max(len(trimRight(text[:m.start])), from)
		}
		if t.rstrip {
			m.end = len(text) - len(trimLeft(text[m.end:]))
		}
		return m, true
	}
	return addedMatch{}, false
}

func trimLeft(text []byte) []byte  { return bytes.TrimLeftFunc(text, unicode.IsSpace) }
func trimRight(text []byte) []byte { return bytes.TrimRightFunc(text, unicode.IsSpace) }
