package layout

import (
	"fmt"
	"strconv"
	"strings"
)

// The values of a Python literal as far as .npy headers use them: string, int64, bool, nil for None, and these.
type (
	pythonTuple []any
	pythonList  []any
)

// maxPythonDepth bounds how deep a literal nests; structured types of NumPy nest a list of tuples for each level.
const maxPythonDepth = 32

// parsePythonDict reads a dictionary with string keys, as repr writes it. It refuses a key that is there twice, and
// anything after the dictionary but white space.
func parsePythonDict(text string) (map[string]any, error) {
	p := pythonParser{text: text}
	p.space()
	if !p.take('{') {
		return nil, p.errorf("'{' is expected")
	}
	dict := map[string]any{}
	for p.space(); !p.take('}'); p.space() {
		key, err := p.value(0)
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if _, twice := dict[name]; !ok || twice {
			return nil, p.errorf("the key %q is no string, or is there twice", fmt.Sprint(key))
		}
		p.space()
		if !p.take(':') {
			return nil, p.errorf("':' is expected")
		}
		if dict[name], err = p.value(0); err != nil {
			return nil, err
		}
		if err := p.separator('}'); err != nil {
			return nil, err
		}
	}
	if p.space(); p.at < len(p.text) {
		return nil, p.errorf("something follows the dictionary")
	}
	return dict, nil
}

type pythonParser struct {
	text string
	at   int
}

func (p *pythonParser) errorf(format string, args ...any) error {
	return fmt.Errorf("at its byte %d: %s", p.at, fmt.Sprintf(format, args...))
}

func (p *pythonParser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *pythonParser) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *pythonParser) take(c byte) bool {
	if p.peek() != c || p.at == len(p.text) {
		return false
	}
	p.at++
	return true
}

// separator takes the comma between two elements; before end it may be missing.
func (p *pythonParser) separator(end byte) error {
	p.space()
	if p.take(',') || p.peek() == end {
		return nil
	}
	return p.errorf("',' or %q is expected", end)
}

func (p *pythonParser) value(depth int) (any, error) {
	if depth > maxPythonDepth {
		return nil, p.errorf("it nests deeper than %d", maxPythonDepth)
	}
	p.space()
	switch c := p.peek(); {
	case c == '\'' || c == '"':
		return p.quoted(c)
	case c == '(':
		return p.tuple(depth)
	case c == '[':
		items, _, err := p.items(']', depth)
		return pythonList(items), err
	case c == '-' || ('0' <= c && c <= '9'):
		return p.number()
	}
	switch {
	case p.word("True"):
		return true, nil
	case p.word("False"):
		return false, nil
	case p.word("None"):
		return nil, nil
	}
	return nil, p.errorf("a value is expected")
}

func (p *pythonParser) word(w string) bool {
	if !strings.HasPrefix(p.text[p.at:], w) {
		return false
	}
	p.at += len(w)
	return true
}

// tuple reads a tuple, or the value in parentheses that a tuple of one lacks its comma for.
func (p *pythonParser) tuple(depth int) (any, error) {
	items, comma, err := p.items(')', depth)
	if err == nil && len(items) == 1 && !comma {
		return items[0], nil
	}
	return pythonTuple(items), err
}

// items reads the elements after an opening bracket, and whether a comma follows the last one.
func (p *pythonParser) items(end byte, depth int) (items []any, comma bool, err error) {
	p.at++
	for p.space(); !p.take(end); p.space() {
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, false, err
		}
		items = append(items, v)
		if err := p.separator(end); err != nil {
			return nil, false, err
		}
		comma = p.text[p.at-1] == ','
	}
	return items, comma, nil
}

// quoted reads a string. Escapes stay as they are written: no type name has any.
func (p *pythonParser) quoted(quote byte) (any, error) {
	start := p.at + 1
	for i := start; i < len(p.text); i++ {
		switch p.text[i] {
		case '\\':
			i++
		case '\n':
			return nil, p.errorf("a string goes over the line's end")
		case quote:
			p.at = i + 1
			return p.text[start:i], nil
		}
	}
	return nil, p.errorf("a string does not end")
}

// number reads an integer. Python 2 wrote an L after long ones, which NumPy still takes.
func (p *pythonParser) number() (any, error) {
	start := p.at
	p.take('-')
	for c := p.peek(); '0' <= c && c <= '9'; c = p.peek() {
		p.at++
	}
	digits := p.text[start:p.at]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return nil, p.errorf("%q is no integer of 64 bits", digits)
	}
	p.take('L')
	return n, nil
}
