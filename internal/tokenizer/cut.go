package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// LastCut returns the last place where text can be cut into parts that give the same tokens apart as together, or 0.
// Whatever follows text, the place stays one. Append is told that the second part continues the document.
//
// The place is before a white space that follows a letter, or between a lone line end and the next line. No pattern of
// tiktoken's vocabularies joins these two or looks over them, so every one of them splits there whatever comes before
// and after.
func (t *Tokenizer) LastCut(text []byte) int {
	for i := len(text) - 1; i > 0; i-- {
		switch text[i] {
		case ' ', '\n', '\r', '\t':
			if r, _ := utf8.DecodeLastRune(text[:i]); unicode.IsLetter(r) {
				return i
			}
		case '/': // o200k_base joins it to a line end
		default:
			if text[i-1] == '\n' && i > 1 && startsWord(text[i:]) {
				// gpt2 takes the last of several white spaces apart, if something follows.
				if r, _ := utf8.DecodeLastRune(text[:i-1]); !unicode.IsSpace(r) {
					return i
				}
			}
		}
	}
	return 0
}

// startsWord reports whether text surely begins with something else than white space.
func startsWord(text []byte) bool {
	r, _ := utf8.DecodeRune(text)
	return utf8.FullRune(text) && !unicode.IsSpace(r)
}
