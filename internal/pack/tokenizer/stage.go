package tokenizer

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// stage is one part of a pre-tokenizer. It splits each piece of the stage before.
type stage struct {
	prefix string     // put before a piece that does not begin with it, by ByteLevel; empty for none
	meta   *metaspace // this changes the piece too

	next     splitter // a known pattern, which leaves no gap; else
	find     finder   // nil for none
	behavior behavior
	invert   bool // find finds the stretches between matches
	gaps     *gaps
}

// gaps is the knowledge of find's matches before a blank that follows a letter. If letterSpace is set, none lies over that
// place or depends on the text after it. If splits is set, one begins or ends there.
type gaps struct{ letterSpace, splits bool }

// finder returns the first match at text[i] or after it, which is not empty; start is len(text) where there is none.
type finder func(text []byte, i int, steps *int) (start, end int)

// behavior is the treatment of matches: SplitDelimiterBehavior of the tokenizers package.
type behavior uint8

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

// metaspace replaces spaces by a mark, and splits before each.
type metaspace struct {
	mark   string
	always bool // put it before every piece that does not begin with it
	first  bool // or before the first piece of a document only
	split  bool
}

// split gives the pieces of text to the next stage.
func (s *stage) split(e *Encoder, level int, text []byte, head bool) {
	if s.meta != nil {
		s.meta.pieces(e, level, text, head)
		return
	}
	if s.prefix != "" && !bytes.HasPrefix(text, []byte(s.prefix)) && (!head || !e.continued) {
		text = e.prefixed(level, s.prefix, text)
	}
	switch {
	case s.next != nil:
		last := level == len(e.stages)-1 && (e.model.merges == nil || e.model.merges.borders == nil)
		for i := 0; i < len(text); {
			end := s.next(e.splits, text, i)
			if last {
				e.piece(text[i:end])
			} else {
				e.split(level+1, text[i:end], head && i == 0)
			}
			i = end
		}
	case s.find != nil:
		s.matches(e, level, text, head)
	default:
		e.split(level+1, text, head)
	}
}

// prefixed returns text with prefix before it, in level's scratch.
func (e *Encoder) prefixed(level int, prefix string, text []byte) []byte {
	e.scratch[level] = append(append(e.scratch[level][:0], prefix...), text...)
	return e.scratch[level]
}

// segment is a match or the text between two.
type segment struct {
	start, end int
	match      bool
}

// matches gives matches, and the text between them, to the next stage.
func (s *stage) matches(e *Encoder, level int, text []byte, head bool) {
	var held segment // the segment that the next one may be merged with
	give := func(x segment) {
		if x.end > x.start {
			e.split(level+1, text[x.start:x.end], head && x.start == 0)
		}
	}
	add := func(x segment) {
		x.match = x.match != s.invert
		switch {
		case s.behavior == isolated || s.behavior == removed:
			if s.behavior == isolated || !x.match {
				give(x)
			}
			return
		case held.end == 0: // the first
		case s.behavior == mergedWithPrevious && x.match && !held.match,
			s.behavior == mergedWithNext && !x.match && held.match,
			s.behavior == contiguous && x.match == held.match:
			x.start = held.start
		default:
			give(held)
		}
		held = x
	}
	for i := 0; i < len(text) && e.err == nil; {
		start, end := s.find(text, i, &e.steps)
		if start > i {
			add(segment{i, start, false})
		}
		if end > start {
			add(segment{start, end, true})
		}
		i = end
	}
	give(held)
}

func (m *metaspace) pieces(e *Encoder, level int, text []byte, head bool) {
	mark := []byte(m.mark)
	buffer := e.scratch[level][:0]
	begins := text[0] == ' ' || bytes.HasPrefix(text, mark)
	if !begins && (m.always || m.first && head) && (!head || !e.continued) {
		buffer = append(buffer, mark...)
	}
	for _, b := range text {
		if b == ' ' {
			buffer = append(buffer, mark...)
		} else {
			buffer = append(buffer, b)
		}
	}
	e.scratch[level] = buffer
	if !m.split {
		e.split(level+1, buffer, head)
		return
	}
	for i := 0; i < len(buffer); {
		end := len(buffer)
		if n := bytes.Index(buffer[i+1:], mark); n >= 0 {
			end = i + 1 + n
		}
		e.split(level+1, buffer[i:end], head && i == 0)
		i = end
	}
}

// findRunes returns a finder of single runes.
func findRunes(is func(rune) bool) finder {
	return func(text []byte, i int, _ *int) (start, end int) {
		for i < len(text) {
			r, n := utf8.DecodeRune(text[i:])
			if is(r) {
				return i, i + n
			}
			i += n
		}
		return len(text), len(text)
	}
}

// findText returns a finder of a text.
func findText(what string) finder {
	return func(text []byte, i int, _ *int) (start, end int) {
		if n := bytes.Index(text[i:], []byte(what)); n >= 0 {
			return i + n, i + n + len(what)
		}
		return len(text), len(text)
	}
}

// isNumeric is Rust's char::is_numeric, of Unicode 17.0. Those that came last are not in Go's tables, nor in
// laterCategories.
func isNumeric(r rune) bool {
	if r < utf8.RuneSelf {
		return '0' <= r && r <= '9'
	}
	return unicode.IsNumber(r) || category(r)[0] == 'N' || r >= 0x11de0 && r <= 0x11de9 || r >= 0x16ff4 && r <= 0x16ff6
}
