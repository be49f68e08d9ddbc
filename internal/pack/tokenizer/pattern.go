package tokenizer

import (
	"errors"
	"unicode/utf8"
)

// pattern is a regular expression as Oniguruma understands it, of the part of its language that tokenizers use. That
// part has sets, repeated sets, groups that are optional at most, alternatives, and looking ahead. It never matches
// the empty text.
//
// A match is the first that backtracking finds. Groups are not repeated, so the work of one place is bounded by a
// polynomial of the text, and matchSteps bounds that.
type pattern struct {
	start *node
}

// errSteps says that a pattern took more steps than a text is worth.
var errSteps = errors.New("a pattern of the tokenizer takes too many steps on this text")

// matchSteps bounds the steps of a text: one million, and so many for each byte.
const matchSteps = 1000

// node is a state: the match here, and the state after it.
type node struct {
	kind     nodeKind
	set      *runeSet
	min, max int  // of set
	keep     bool // set gives nothing back
	branches []*node
	inner    *node // looked ahead to
	not      bool  // inner must not match
	next     *node
}

type nodeKind uint8

const (
	accept nodeKind = iota
	runes
	branch
	ahead
)

// find returns the first match at text[i] or after it; start is len(text) where there is none.
func (p *pattern) find(text []byte, i int, steps *int) (start, end int) {
	for i < len(text) {
		if end := p.start.match(text, i, steps); end >= 0 {
			return i, end
		}
		if *steps < 0 {
			break
		}
		i += runeLen(text, i)
	}
	return len(text), len(text)
}

func runeLen(text []byte, i int) int {
	if text[i] < utf8.RuneSelf {
		return 1
	}
	_, n := utf8.DecodeRune(text[i:])
	return n
}

// match returns the end of the match of n at text[i], or -1.
func (n *node) match(text []byte, i int, steps *int) int {
	for {
		if *steps--; *steps < 0 {
			return -1
		}
		switch n.kind {
		case accept:
			return i
		case runes:
			if n.min == 1 && n.max == 1 {
				length := n.set.at(text, i)
				if length == 0 {
					return -1
				}
				i, n = i+length, n.next
				continue
			}
			return n.repeat(text, i, steps)
		case branch:
			for _, b := range n.branches[:len(n.branches)-1] {
				if end := b.match(text, i, steps); end >= 0 {
					return end
				}
			}
			n = n.branches[len(n.branches)-1]
		case ahead:
			if found := n.inner.match(text, i, steps) >= 0; found == n.not {
				return -1
			}
			n = n.next
		}
	}
}

// repeat matches as many runes as it can, and gives them back one by one.
func (n *node) repeat(text []byte, i int, steps *int) int {
	end, count := i, 0
	for count < n.max {
		length := n.set.at(text, end)
		if length == 0 {
			break
		}
		end, count = end+length, count+1
	}
	*steps -= count
	if n.keep {
		if count < n.min {
			return -1
		}
		return n.next.match(text, end, steps)
	}
	for ; count >= n.min && *steps >= 0; count-- {
		if found := n.next.match(text, end, steps); found >= 0 {
			return found
		}
		if end > i {
			_, length := utf8.DecodeLastRune(text[:end])
			end -= length
		}
	}
	return -1
}

// runeSet is a set of runes.
type runeSet struct {
	bits [tabled / 64]uint64
	rule setRule // of the runes from tabled on
}

// at returns the length of the rune at text[i] where it is in the set, or 0.
func (s *runeSet) at(text []byte, i int) int {
	if i >= len(text) {
		return 0
	}
	r, n := rune(text[i]), 1
	if r >= utf8.RuneSelf {
		r, n = utf8.DecodeRune(text[i:])
	}
	if r < tabled && s.bits[r>>6]>>(r&63)&1 != 0 || r >= tabled && s.rule.holds(r, category(r)) {
		return n
	}
	return 0
}

// setRule says which runes are in a set.
type setRule struct {
	not    bool
	ranges [][2]rune
	within []string // general categories, or their first letters
	space  bool     // \s
	parts  []setRule
}

func (s *setRule) holds(r rune, category string) bool {
	return s.has(r, category) != s.not
}

func (s *setRule) has(r rune, category string) bool {
	for _, x := range s.ranges {
		if x[0] <= r && r <= x[1] {
			return true
		}
	}
	for _, c := range s.within {
		if category[:len(c)] == c {
			return true
		}
	}
	if s.space && isWhiteSpace(r) {
		return true
	}
	for i := range s.parts {
		if s.parts[i].holds(r, category) {
			return true
		}
	}
	return false
}

// compile makes the set of the rule, with table from categories.
func (s *setRule) compile(table []uint8, names []string) *runeSet {
	set := &runeSet{rule: *s}
	for r, c := range table {
		if s.holds(rune(r), names[c]) {
			set.bits[r>>6] |= 1 << (r & 63)
		}
	}
	return set
}
