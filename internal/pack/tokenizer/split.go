package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// The splitters below cut a text into the pieces that byte-pair encoding never looks beyond. tiktoken
// (tiktoken_ext/openai_public.py) and tiktoken-go/tokenizer do so by a regular expression. The text is valid UTF-8.
// Every rune belongs to a piece, and every piece is followed by the next.

// splitter returns where the piece that begins at text[i] ends, for i < len(text).
type splitter func(s *splits, text []byte, i int) int

// class is the classes of the patterns that a rune is in.
type class uint8

const (
	isLetter  class = 1 << iota // \p{L}
	isNumber                    // \p{N}
	isSpace                     // \s
	isNewline                   // [\r\n], a space too
	isUpper                     // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	isLower                     // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
	isOther                     // [^\s\p{L}\p{N}]
	isMark                      // \p{M}
)

// classOf returns the classes of the runes of a general category, but for white space.
func classOf(category string) class {
	switch category {
	case "Lu", "Lt":
		return isLetter | isUpper
	case "Ll":
		return isLetter | isLower
	case "Lm", "Lo":
		return isLetter | isUpper | isLower
	case "Mn", "Mc", "Me":
		return isOther | isMark | isUpper | isLower
	case "Nd", "Nl", "No":
		return isNumber
	}
	return isOther
}

func classify(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return isSpace | isNewline
	case unicode.IsSpace(r):
		return isSpace
	}
	return classOf(category(r))
}

// splits cuts texts. It is not changed after newSplits.
type splits struct {
	classes [tabled]class
	next    splitter
}

func newSplits(next splitter) *splits {
	s := &splits{next: next}
	names := categoryNames()
	of := make([]class, len(names))
	for i, name := range names {
		of[i] = classOf(name)
	}
	for r, c := range categories() {
		s.classes[r] = of[c]
	}
	for r := range rune(tabled) {
		if unicode.IsSpace(r) {
			s.classes[r] = classify(r)
		}
	}
	return s
}

// at returns the class of the rune at text[i] and its length, or zeros at the end.
func (s *splits) at(text []byte, i int) (class, int) {
	if i >= len(text) {
		return 0, 0
	}
	if c := text[i]; c < utf8.RuneSelf {
		return s.classes[c], 1
	}
	r, n := utf8.DecodeRune(text[i:])
	if int(r) < len(s.classes) {
		return s.classes[r], n
	}
	return classify(r), n
}

// run returns the end of the runes of the wanted class that begin at text[i].
func (s *splits) run(text []byte, i int, want class) int {
	for {
		c, n := s.at(text, i)
		if c&want == 0 {
			return i
		}
		i += n
	}
}

// gpt2 is the pattern of r50k_base and p50k_base:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func gpt2(s *splits, text []byte, i int) int {
	if n := contraction(text[i:], false); n > 0 {
		return i + n
	}
	from := i
	if text[i] == ' ' {
		from++
	}
	if c, n := s.at(text, from); c&(isLetter|isNumber|isOther) != 0 {
		return s.run(text, from+n, c&(isLetter|isNumber|isOther))
	}
	return s.blank(text, i, false)
}

// cl100k is the pattern of cl100k_base, where digits is 3:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// With marks, [\p{L}\p{M}]+ is in the place of \p{L}+, and [^\s\p{L}\p{M}\p{N}] in that of [^\s\p{L}\p{N}].
func cl100k(digits int, marks bool) splitter {
	word, other := isLetter, isOther
	if marks {
		word |= isMark
	}
	return func(s *splits, text []byte, i int) int {
		if text[i] == '\'' {
			if n := contraction(text[i:], true); n > 0 {
				return i + n
			}
		}
		c, n := s.at(text, i)
		if c&isLetter != 0 {
			return s.run(text, i+n, word)
		}
		if c&(isNewline|isNumber) == 0 {
			if end := s.run(text, i+n, word); end > i+n || c&word != 0 {
				return end
			}
		}
		return s.rest(text, i, digits, other, word&isMark, 0)
	}
}

// o200k is the pattern of o200k_base, where short is set and digits is 3:
//
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
//	\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// Mistral's Tekken has no contractions, and \p{N} alone.
func o200k(digits int, short bool) splitter {
	return func(s *splits, text []byte, i int) int {
		prefix := i // where a word begins that has the rune at i before it
		if c, n := s.at(text, i); c&(isLetter|isNumber|isNewline) == 0 {
			prefix = i + n
		}
		for _, word := range [...]func(*splits, []byte, int) int{lowerWord, upperWord} {
			for from := prefix; ; from = i { // a regular expression gives the optional rune back last
				if end := word(s, text, from); end > from {
					if short {
						end += contraction(text[end:], true)
					}
					return end
				}
				if from == i {
					break
				}
			}
		}
		return s.rest(text, i, digits, isOther, 0, '/')
	}
}

// lowerWord returns the end of [upper]*[lower]+ at text[from], or 0. Marks and most scripts are both upper and lower.
func lowerWord(s *splits, text []byte, from int) int {
	both := 0 // the end of the last rune that can be given back
	i := from
	for {
		c, n := s.at(text, i)
		if c&isUpper == 0 {
			break
		}
		i += n
		if c&isLower != 0 {
			both = i
		}
	}
	if end := s.run(text, i, isLower); end > i {
		return end
	}
	return both
}

// upperWord returns the end of [upper]+[lower]* at text[from], or 0.
func upperWord(s *splits, text []byte, from int) int {
	i := s.run(text, from, isUpper)
	if i == from {
		return 0
	}
	return s.run(text, i, isLower)
}

// rest is the common part of cl100k and o200k. It tries \p{N}{1,digits}, ?[^\s\p{L}\p{N}]+ with a space before it and
// line ends or the byte also after it, \s*[\r\n]+, and blank. The text at i is no letter. The class but is in none of the
// second.
func (s *splits) rest(text []byte, i, digits int, other, but class, also byte) int {
	c, n := s.at(text, i)
	if c&isNumber != 0 {
		end := i + n
		for range digits - 1 {
			c, n := s.at(text, end)
			if c&isNumber == 0 {
				break
			}
			end += n
		}
		return end
	}
	from := i
	if text[i] == ' ' {
		from++
	}
	if end := s.runBut(text, from, other, but); end > from {
		for end < len(text) && (text[end] == '\r' || text[end] == '\n' || also != 0 && text[end] == also) {
			end++
		}
		return end
	}
	return s.blank(text, i, true)
}

// runBut is run, up to a rune of the class but.
func (s *splits) runBut(text []byte, i int, want, but class) int {
	for {
		c, n := s.at(text, i)
		if c&want == 0 || c&but != 0 {
			return i
		}
		i += n
	}
}

// blank returns the end of the piece of white space at text[i]. Where lines is set, \s*[\r\n]+ comes first: up to the
// last line end. Then it is \s+(?!\S)|\s+: all but the last rune, which belongs to the word that follows.
func (s *splits) blank(text []byte, i int, lines bool) int {
	end, last, line := i, i, 0
	for {
		c, n := s.at(text, end)
		if c&isSpace == 0 {
			break
		}
		last, end = end, end+n
		if c&isNewline != 0 {
			line = end
		}
	}
	switch {
	case lines && line > 0:
		return line
	case end < len(text) && last > i:
		return last
	}
	return end
}

// contraction returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the start of text, or 0. With fold, letters of
// either case count, and so does the long s, as Unicode folds it.
func contraction(text []byte, fold bool) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	low := func(i int) byte {
		if c := text[i]; fold && 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return text[i]
	}
	switch a := low(1); a {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(text) > 2 && low(2) == 'e' {
			return 3
		}
	case 'l':
		if len(text) > 2 && low(2) == 'l' {
			return 3
		}
	case 0xc5:
		if fold && len(text) > 2 && text[2] == 0xbf { // U+017F
			return 3
		}
	}
	return 0
}

// known returns the splitter of a pattern that models ship, or nil. It is checked against the pattern by tests.
func known(pattern string) splitter {
	const (
		blanks = `|\s*[\r\n]+|\s+(?!\S)|\s+`
		short  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
		lower  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
		upper  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
		signs  = `| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks
		slash  = `| ?[^\s\p{L}\p{N}]+[\r\n/]*` + blanks
		words  = short + `|[^\r\n\p{L}\p{N}]?\p{L}+`
	)
	switch pattern {
	case `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:
		return gpt2
	case words + `|\p{N}{1,3}` + signs: // GPT-4, Llama 3
		return cl100k(3, false)
	case words + `|\p{N}` + signs: // Qwen 2 and 3
		return cl100k(1, false)
	case short + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` + blanks: // Qwen 3.5
		return cl100k(1, true)
	case lower + short + `?|` + upper + short + `?|\p{N}{1,3}` + slash: // GPT-4o, Llama 4
		return o200k(3, true)
	case lower + `|` + upper + `|\p{N}` + slash: // Tekken
		return o200k(1, false)
	}
	return nil
}
