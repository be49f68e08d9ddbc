package tokenizer

import "slices"

// gaps tells how p behaves at a blank that follows a letter. Let no state that takes a letter have one that takes a blank
// after it, or look ahead. Then no match lies over that place, and none depends on the text after it. Where an alternative
// takes just blanks, a match begins there.
func (p *pattern) gaps() *gaps {
	g := gapFinder{table: categories(), names: categoryNames(), seen: map[*node]bool{}, known: map[*node]bool{}}
	if !g.apart(p.start) {
		return nil
	}
	branches := []*node{p.start}
	if p.start.kind == branch {
		branches = p.start.branches
	}
	blank := func(n *node) bool {
		if n.kind != runes || n.min > 1 || n.next.kind != accept {
			return false
		}
		return !slices.ContainsFunc([]byte(blanks), func(b byte) bool { return n.set.at([]byte{b}, 0) == 0 })
	}
	return &gaps{letterSpace: true, splits: slices.ContainsFunc(branches, blank)}
}

// blanks are where LastCut cuts.
const blanks = " \t\r\n"

type gapFinder struct {
	table []uint8
	names []string
	seen  map[*node]bool // by apart
	known map[*node]bool // answers of reaches
}

// apart reports whether no state from n on takes a letter and has one that takes a blank, or looks ahead, after it.
func (g *gapFinder) apart(n *node) bool {
	if n == nil || g.seen[n] {
		return true
	}
	g.seen[n] = true
	if n.kind == runes && g.takesLetter(n.set) {
		if n.max > 1 && takesBlank(n.set) || g.reaches(n.next) {
			return false
		}
	}
	for _, b := range n.branches {
		if !g.apart(b) {
			return false
		}
	}
	return g.apart(n.inner) && g.apart(n.next)
}

func (g *gapFinder) takesLetter(s *runeSet) bool {
	for r, c := range g.table {
		if g.names[c][0] == 'L' && s.bits[r>>6]>>(r&63)&1 != 0 {
			return true
		}
	}
	return false // from tabled on there are none
}

func takesBlank(s *runeSet) bool {
	return slices.ContainsFunc([]byte(blanks), func(b byte) bool { return s.at([]byte{b}, 0) > 0 })
}

// reaches reports whether the next rune that n takes may be a blank, or n looks ahead before.
func (g *gapFinder) reaches(n *node) bool {
	answer, ok := g.known[n]
	if ok {
		return answer
	}
	switch n.kind {
	case runes:
		answer = takesBlank(n.set) || n.min == 0 && g.reaches(n.next)
	case branch:
		answer = slices.ContainsFunc(n.branches, g.reaches)
	case ahead:
		answer = true
	}
	g.known[n] = answer
	return answer
}
