package tokenizer

import "unicode/utf8"

// graphemeKind is a rune's part in the rules for the borders of grapheme clusters (UAX #29).
type graphemeKind uint8

const (
	kindAny graphemeKind = iota
	kindCR
	kindLF
	kindControl
	kindExtend
	kindPictograph
	kindConsonant
	kindL
	kindV
	kindT
	kindLV
	kindLVT
	kindPrepend
	kindRegional
	kindSpacing
	kindJoiner
)

// graphemeRange is runes of one kind.
type graphemeRange struct {
	lo, hi rune
	kind   graphemeKind
}

// graphemes finds the borders of grapheme clusters.
type graphemes struct {
	kinds [tabled]graphemeKind
}

func newGraphemes() *graphemes {
	g := &graphemes{}
	for _, x := range graphemeRanges() {
		for r := x.lo; r <= x.hi && r < tabled; r++ {
			g.kinds[r] = x.kind
		}
	}
	const firstSyllable, lastSyllable, trailing = 0xac00, 0xd7a3, 28
	for r := firstSyllable; r <= lastSyllable; r++ {
		g.kinds[r] = kindLVT
		if (r-firstSyllable)%trailing == 0 {
			g.kinds[r] = kindLV
		}
	}
	return g
}

func (g *graphemes) kind(r rune) graphemeKind {
	switch {
	case r < tabled:
		return g.kinds[r]
	case r >= 0xe0020 && r <= 0xe007f, r >= 0xe0100 && r <= 0xe01ef:
		return kindExtend
	case r >= 0xe0000 && r <= 0xe0fff:
		return kindControl
	}
	return kindAny
}

// isLinker reports whether InCB of r is Linker.
func isLinker(r rune) bool {
	switch r {
	case 0x94d, 0x9cd, 0xacd, 0xb4d, 0xc4d, 0xd4d, 0x1039, 0x17d2, 0x1a60, 0x1b44, 0x1bab, 0xa9c0, 0xaaf6, 0x10a3f, 0x11133,
		0x113d0, 0x1193e, 0x11a47, 0x11a99, 0x11f42:
		return true
	}
	return false
}

// end returns the end of the cluster that begins at text[i], for i < len(text).
func (g *graphemes) end(text []byte, i int) int {
	r, n := utf8.DecodeRune(text[i:])
	before := g.kind(r)
	regional := before == kindRegional
	pictograph := before == kindPictograph              // then extends only
	consonant, linked := before == kindConsonant, false // then extends and linkers only
	for i += n; i < len(text); i += n {
		r, n = utf8.DecodeRune(text[i:])
		kind := g.kind(r)
		joined := joins(before, kind)
		switch {
		case before == kindCR || before == kindLF || before == kindControl:
		case kind == kindConsonant && consonant && linked,
			kind == kindPictograph && pictograph && before == kindJoiner,
			kind == kindRegional && regional && before == kindRegional:
			joined = true
		}
		if !joined {
			return i
		}
		regional = kind == kindRegional && (!regional || before != kindRegional)
		pictograph = kind == kindPictograph || pictograph && (kind == kindExtend || kind == kindJoiner && before != kindJoiner)
		switch {
		case kind == kindConsonant:
			consonant, linked = true, false
		case isLinker(r):
			linked = true
		case kind != kindExtend && kind != kindJoiner || r == 0x200c:
			consonant = false
		}
		before = kind
	}
	return i
}

// joins is the rules GB3 to GB9b, of two neighbors.
func joins(before, after graphemeKind) bool {
	switch {
	case before == kindCR:
		return after == kindLF
	case before == kindControl || before == kindLF || after == kindControl || after == kindCR || after == kindLF:
		return false
	case before == kindL && (after == kindL || after == kindV || after == kindLV || after == kindLVT),
		(before == kindLV || before == kindV) && (after == kindV || after == kindT),
		(before == kindLVT || before == kindT) && after == kindT:
		return true
	}
	return after == kindExtend || after == kindJoiner || after == kindSpacing || before == kindPrepend
}
