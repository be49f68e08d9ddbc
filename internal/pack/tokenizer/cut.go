package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// cuts is where a text may be cut so that its parts give the tokens of the whole.
type cuts struct {
	letterSpace bool // before a blank that follows a letter, or nowhere
	lines       bool // and between a lone line end and the next line
	onlySpace   bool // the blank is a space
	onlyASCII   bool // the letter is one of ASCII
	borders     *merges
}

// LastCut returns the last place where text can be cut into parts that give the same tokens apart as together, or 0.
// The place stays one before any further text. Append is told that the second part continues the document.
//
// The place is before a white space that follows a letter, or between a lone line end and the next line. No pattern that
// models ship joins these two or looks over them, so every one of them splits there in any context. A tokenizer.json for
// which that is not known has no such place.
func (t *Tokenizer) LastCut(text []byte) int {
	if !t.cuts.letterSpace {
		return 0
	}
	for i := len(text) - 1; i > 0; i-- {
		switch text[i] {
		case '\n', '\r', '\t':
			if !t.cuts.onlySpace && t.cuts.after(text[:i]) {
				return i
			}
		case ' ':
			if t.cuts.after(text[:i]) {
				return i
			}
		case '/': // o200k_base joins it to a line end
		default:
			if t.cuts.lines && text[i-1] == '\n' && i > 1 && startsWord(text[i:]) {
				// gpt2 takes the last of several white spaces apart, if something follows.
				if r, _ := utf8.DecodeLastRune(text[:i-1]); !unicode.IsSpace(r) {
					return i
				}
			}
		}
	}
	return 0
}

// after reports whether text ends with a letter after which a blank may be cut off.
func (c *cuts) after(text []byte) bool {
	r, _ := utf8.DecodeLastRune(text)
	if !unicode.IsLetter(r) || c.onlyASCII && r >= utf8.RuneSelf {
		return false
	}
	return c.borders == nil || c.borders.unit(r) != none && c.borders.unit('\u2581') != none && c.borders.borders.between(r, '\u2581')
}

// startsWord reports whether text surely begins with something else than white space.
func startsWord(text []byte) bool {
	r, _ := utf8.DecodeRune(text)
	return utf8.FullRune(text) && !unicode.IsSpace(r)
}

// join takes away the places that a text which is taken as a whole, such as an added token, may lie over.
func (c *cuts) join(text string) {
	blank := func(r rune) bool { return unicode.IsSpace(r) || r == '\u2581' }
	before := rune(0)
	for _, r := range text {
		if unicode.IsLetter(before) && blank(r) {
			c.letterSpace = false
		}
		if before == '\n' && !blank(r) {
			c.lines = false
		}
		before = r
	}
}
