package safetensors

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// space is the white space of JSON.
	space = " \t\r\n"
	// maxDepth is the nesting that serde_json, by which the safetensors package reads JSON, puts up with.
	maxDepth = 127
)

// scanner reads JSON as serde_json does, which is narrower than encoding/json. Half of a surrogate pair is no text, and a number that no
// float64 can hold is out of range. It is also ten times as fast. The first error stays, and ends all that is under way.
type scanner struct {
	text []byte // valid UTF-8
	i    int
	err  error
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = errorf(8+int64(s.i), format, args...)
	}
	s.i = len(s.text)
}

func (s *scanner) notJSON(expected string) {
	found := "its end"
	if rest := s.text[s.i:]; len(rest) > 0 {
		found = fmt.Sprintf("%q", strings.ToValidUTF8(string(rest[:min(len(rest), 12)]), ""))
	}
	s.fail("its header is not JSON: at byte %d it has %s, expected %s", s.i, found, expected)
}

// peek passes over white space, and gives the next byte: 0 at the end.
func (s *scanner) peek() byte {
	for ; s.i < len(s.text); s.i++ {
		switch c := s.text[s.i]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// next passes over white space and c, if that follows.
func (s *scanner) next(c byte) bool {
	if s.peek() != c || s.i == len(s.text) {
		return false
	}
	s.i++
	return true
}

// items reads the items between brackets, up to end. s is at the first one.
func (s *scanner) items(end byte, item func()) {
	s.i++
	for first := true; s.err == nil && !s.next(end); first = false {
		if !first && !s.next(',') {
			s.notJSON(fmt.Sprintf("a comma or %q", end))
			return
		}
		item()
	}
}

// object reads an object that s is at: member reads the value.
func (s *scanner) object(member func(key []byte)) {
	s.items('}', func() {
		if s.peek() != '"' {
			s.notJSON("a key")
			return
		}
		key := s.str()
		if s.err == nil && !s.next(':') {
			s.notJSON("a colon")
		}
		if s.err == nil {
			member(key)
		}
	})
}

// value reads a value that lies so many levels deep, and returns its text.
func (s *scanner) value(depth int) []byte {
	c := s.peek()
	begin := s.i
	switch {
	case (c == '{' || c == '[') && depth > maxDepth:
		s.fail("its header is not JSON that anybody reads: it is nested more than %d deep", maxDepth)
	case c == '{':
		s.object(func([]byte) { s.value(depth + 1) })
	case c == '[':
		s.items(']', func() { s.value(depth + 1) })
	case c == '"':
		s.str()
	case c == '-' || c >= '0' && c <= '9':
		s.number()
	default:
		for _, word := range []string{"true", "false", "null"} {
			if strings.HasPrefix(string(s.text[s.i:min(len(s.text), s.i+len(word))]), word) {
				s.i += len(word)
				return s.text[begin:s.i]
			}
		}
		s.notJSON("a value")
	}
	return s.text[begin:s.i]
}

// digits passes over digits, of which there must be one.
func (s *scanner) digits() {
	begin := s.i
	for s.i < len(s.text) && s.text[s.i] >= '0' && s.text[s.i] <= '9' {
		s.i++
	}
	if s.i == begin {
		s.notJSON("a digit")
	}
}

// at reports whether one of some bytes follows, and passes over it.
func (s *scanner) at(any string) bool {
	if s.i == len(s.text) || strings.IndexByte(any, s.text[s.i]) < 0 {
		return false
	}
	s.i++
	return true
}

func (s *scanner) number() {
	begin := s.i
	s.at("-")
	if !s.at("0") {
		s.digits()
	}
	if s.at(".") {
		s.digits()
	}
	if s.at("eE") {
		s.at("+-")
		s.digits()
	}
	if raw := s.text[begin:s.i]; s.err == nil && len(raw) > 4 { // 1e999 has five
		if _, err := strconv.ParseFloat(string(raw), 64); err != nil {
			s.fail("its header has the number %s, which is out of range", shown(raw))
		}
	}
}

// str reads a string that s is at. The result may lie in the text.
func (s *scanner) str() []byte {
	s.i++
	begin := s.i
	for ; s.i < len(s.text); s.i++ {
		switch c := s.text[s.i]; {
		case c == '"':
			s.i++
			return s.text[begin : s.i-1]
		case c == '\\':
			return s.escaped(begin)
		case c < ' ':
			s.notJSON("no control character in a string")
			return nil
		}
	}
	s.notJSON("the end of a string")
	return nil
}

// escaped reads the rest of a string that has an escape in it.
func (s *scanner) escaped(begin int) []byte {
	out := append([]byte(nil), s.text[begin:s.i]...)
	for s.i < len(s.text) {
		c := s.text[s.i]
		switch {
		case c == '"':
			s.i++
			return out
		case c < ' ':
			s.notJSON("no control character in a string")
			return nil
		case c != '\\':
			out = append(out, c)
			s.i++
			continue
		}
		s.i++
		if s.at("u") {
			out = utf8.AppendRune(out, s.unicode())
		} else if i := strings.IndexByte(`"\/bfnrt`, s.text[min(s.i, len(s.text)-1)]); i >= 0 && s.i < len(s.text) {
			out = append(out, "\"\\/\b\f\n\r\t"[i])
			s.i++
		} else {
			s.notJSON("an escape")
		}
	}
	s.notJSON("the end of a string")
	return nil
}

// unicode reads the digits behind \u, and those of the other half where they are a surrogate's.
func (s *scanner) unicode() rune {
	r := s.hex()
	if !utf16.IsSurrogate(r) {
		return r
	}
	if s.at(`\`) && s.at("u") {
		if both := utf16.DecodeRune(r, s.hex()); both != utf8.RuneError {
			return both
		}
	}
	s.fail("its header is not UTF-8: a string has half of a surrogate pair")
	return 0
}

func (s *scanner) hex() rune {
	n, err := strconv.ParseUint(string(s.text[s.i:min(len(s.text), s.i+4)]), 16, 16)
	if err != nil || len(s.text)-s.i < 4 {
		s.notJSON("four hexadecimal digits")
		return 0
	}
	s.i += 4
	return rune(n)
}
