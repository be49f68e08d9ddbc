package tokenizer

import (
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// composer normalizes to NFC as the tokenizers package does, which has the tables of Unicode 9.0. A mark that came
// later is an ordinary rune there. norm.NFC knows them, and it puts a joiner into long rows of marks. Only its tables
// are used.
type composer struct {
	unstable [tabled]bool // the rune may change, or make the one before it change
	pairs    map[[2]rune]rune
}

func newComposer() *composer {
	c := &composer{pairs: map[[2]rune]rune{}}
	for r := rune(0xc0); r < tabled; r++ {
		if isSurrogate(r) || isLaterMark(r) {
			continue
		}
		p := norm.NFC.PropertiesString(string(r))
		same := norm.NFC.IsNormalString(string(r))
		c.unstable[r] = !p.BoundaryBefore() || p.CCC() != 0 || !same
		parts := []rune(string(p.Decomposition()))
		if len(parts) < 2 || !same {
			continue
		}
		if first := []rune(norm.NFC.String(string(parts[:len(parts)-1]))); len(first) == 1 {
			c.pairs[[2]rune{first[0], parts[len(parts)-1]}] = r
		}
	}
	return c
}

func isSurrogate(r rune) bool { return r >= 0xd800 && r < 0xe000 }

// append appends the normalized text to dst.
func (c *composer) append(dst, text []byte) []byte {
	from, before := 0, 0 // the text not copied yet, and where the last stable rune begins
	for i := 0; i < len(text); {
		if text[i] < utf8.RuneSelf {
			before = i
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if r >= tabled || !c.unstable[r] {
			before = i
			i += n
			continue
		}
		dst = append(dst, text[from:before]...)
		for i < len(text) {
			r, n = utf8.DecodeRune(text[i:])
			if r < utf8.RuneSelf || r >= tabled || !c.unstable[r] {
				break
			}
			i += n
		}
		dst = c.compose(dst, text[before:i])
		from, before = i, i
	}
	return append(dst, text[from:]...)
}

// ordered is a rune and its combining class.
type ordered struct {
	r     rune
	class uint8
}

// compose appends the NFC of a stable rune, or none, and those after it that are not.
func (c *composer) compose(dst, text []byte) []byte {
	var all []ordered
	for _, r := range string(text) {
		all = decompose(all, r)
	}
	for i := 0; i < len(all); i++ { // marks are sorted within their row
		end := i
		for end < len(all) && all[end].class != 0 {
			end++
		}
		if end > i+1 {
			slices.SortStableFunc(all[i:end], func(a, b ordered) int { return int(a.class) - int(b.class) })
		}
		i = max(i, end)
	}
	out := all[:0:0]
	starter := -1 // in out
	for _, x := range all {
		last := uint8(0)
		if len(out)-1 > starter {
			last = out[len(out)-1].class
		}
		blocked := len(out)-1 > starter && (last == 0 || last >= x.class)
		if starter >= 0 && !blocked {
			if joined, ok := c.pair(out[starter].r, x.r); ok {
				out[starter].r = joined
				continue
			}
		}
		if x.class == 0 {
			starter = len(out)
		}
		out = append(out, x)
	}
	for _, x := range out {
		dst = utf8.AppendRune(dst, x.r)
	}
	return dst
}

// Hangul, by Unicode 3.12.
const (
	hangulS, hangulL, hangulV, hangulT = 0xac00, 0x1100, 0x1161, 0x11a7
	hangulLs, hangulVs, hangulTs       = 19, 21, 28
)

func (c *composer) pair(a, b rune) (rune, bool) {
	switch {
	case a >= hangulL && a < hangulL+hangulLs && b >= hangulV && b < hangulV+hangulVs:
		return hangulS + ((a-hangulL)*hangulVs+b-hangulV)*hangulTs, true
	case a >= hangulS && a < hangulS+hangulLs*hangulVs*hangulTs && (a-hangulS)%hangulTs == 0 && b > hangulT && b < hangulT+hangulTs:
		return a + b - hangulT, true
	}
	r, ok := c.pairs[[2]rune{a, b}]
	return r, ok
}

func decompose(dst []ordered, r rune) []ordered {
	if isLaterMark(r) || r < utf8.RuneSelf {
		return append(dst, ordered{r, 0})
	}
	if s := r - hangulS; s >= 0 && s < hangulLs*hangulVs*hangulTs {
		dst = append(dst, ordered{hangulL + s/(hangulVs*hangulTs), 0}, ordered{hangulV + s%(hangulVs*hangulTs)/hangulTs, 0})
		if t := s % hangulTs; t > 0 {
			dst = append(dst, ordered{hangulT + t, 0})
		}
		return dst
	}
	p := norm.NFD.PropertiesString(string(r))
	parts := string(p.Decomposition())
	if parts == "" {
		return append(dst, ordered{r, p.CCC()})
	}
	for _, part := range parts {
		dst = append(dst, ordered{part, norm.NFD.PropertiesString(string(part)).CCC()})
	}
	return dst
}

// isLaterMark reports whether normalization has rules for r that came after Unicode 9.0. The package's own answers for
// every rune gave the list.
func isLaterMark(r rune) bool {
	if r < 0x7fd {
		return false
	}
	for _, x := range [...][2]rune{
		{0x7fd, 0x7fd}, {0x898, 0x89f}, {0x8ca, 0x8d3}, {0x9fe, 0x9fe}, {0xc3c, 0xc3c}, {0xd3b, 0xd3c},
		{0xeba, 0xeba}, {0x1715, 0x1715}, {0x1abf, 0x1ace}, {0x1df6, 0x1dfa}, {0xa82c, 0xa82c}, {0x10d24, 0x10d27},
		{0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b},
		{0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
		{0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
		{0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
		{0x1e4ec, 0x1e4ef},
	} {
		if x[0] <= r && r <= x[1] {
			return true
		}
	}
	return false
}
