package corpus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// Why an object gives no text.
var (
	errSyntax   = errors.New("not a JSON object")
	errNoKey    = errors.New("there is no such key")
	errNoString = errors.New("the value is not a string")
)

// sentence is an error for people that is matched as another.
type sentence struct {
	text string
	is   error
}

func (e *sentence) Error() string { return e.text }
func (e *sentence) Unwrap() error { return e.is }

// textOf returns the string under key of a JSON object. repaired says that it had invalid UTF-8, which is U+FFFD now.
// The text may lie in line.
func textOf(line []byte, key string) (text []byte, repaired bool, err error) {
	if value, ok := scanValue(line, key); ok && value != nil {
		if text, ok := unquote(value); ok {
			return text, false, nil
		}
	}
	return slowTextOf(line, key)
}

// slowTextOf takes the values that textOf's scanner does not: every mistake, and rare forms.
func slowTextOf(line []byte, key string) (text []byte, repaired bool, err error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return nil, false, &sentence{fmt.Sprintf("not a JSON object: %v", err), errSyntax}
	}
	if object == nil {
		return nil, false, &sentence{"not a JSON object: it is null", errSyntax}
	}
	value, ok := object[key]
	if !ok {
		return nil, false, &sentence{fmt.Sprintf("there is no key %q, name the one that holds the text with --text-key", key), errNoKey}
	}
	if len(value) == 0 || value[0] != '"' {
		return nil, false, &sentence{fmt.Sprintf("the value of %q is not a string", key), errNoString}
	}
	var s string
	if err := json.Unmarshal(value, &s); err != nil {
		return nil, false, &sentence{fmt.Sprintf("the value of %q: %v", key, err), errSyntax}
	}
	return []byte(s), !utf8.Valid(value), nil
}

// scanValue returns the string under key with its quotes: the last one, as encoding/json takes it. ok is false where
// the object is not surely valid.
func scanValue(line []byte, key string) (value []byte, ok bool) {
	i := skipSpace(line, 0)
	if i >= len(line) || line[i] != '{' {
		return nil, false
	}
	for i = skipSpace(line, i+1); ; {
		end, plain := stringEnd(line, i)
		if end < 0 {
			return nil, false
		}
		name := line[i+1 : end-1]
		if !plain {
			return nil, false // it may be the key, escaped
		}
		if i = skipSpace(line, end); i >= len(line) || line[i] != ':' {
			return nil, false
		}
		i = skipSpace(line, i+1)
		if end = scanEnd(line, i); end < 0 {
			return nil, false
		}
		if string(name) == key {
			if value = line[i:end]; value[0] != '"' {
				return nil, false
			}
		}
		if i = skipSpace(line, end); i >= len(line) {
			return nil, false
		}
		if line[i] == '}' {
			return value, skipSpace(line, i+1) == len(line)
		}
		if line[i] != ',' {
			return nil, false
		}
		i = skipSpace(line, i+1)
	}
}

// scanEnd returns where the value at i ends, or -1 where it is not surely valid.
func scanEnd(line []byte, i int) int {
	if i >= len(line) {
		return -1
	}
	var end int
	switch line[i] {
	case '"':
		end, _ = stringEnd(line, i)
		return end
	case '{', '[':
		end = i + valueEnd(line[i:])
	default:
		for end = i; end < len(line) && !bytes.ContainsRune([]byte(",}] \t\r\n"), rune(line[end])); {
			end++
		}
	}
	if end <= i || !json.Valid(line[i:end]) {
		return -1
	}
	return end
}

// valueEnd returns the length of the object or array that text begins with, or 0 where it does not end.
func valueEnd(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

func skipSpace(line []byte, i int) int {
	for i < len(line) && (line[i] == ' ' || line[i] == '\t' || line[i] == '\r' || line[i] == '\n') {
		i++
	}
	return i
}

// stringEnd returns where the string at i ends, behind its quote, or -1 where it is not valid. plain says that it has
// no escapes.
func stringEnd(line []byte, i int) (end int, plain bool) {
	if i >= len(line) || line[i] != '"' {
		return -1, false
	}
	plain = true
	for i++; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			return i + 1, plain
		case c < ' ':
			return -1, false
		case c == '\\':
			plain = false
			if i++; i >= len(line) {
				return -1, false
			}
			switch line[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if _, ok := hex4(line[i+1:]); !ok {
					return -1, false
				}
				i += 4
			default:
				return -1, false
			}
		}
	}
	return -1, false
}

func hex4(text []byte) (rune, bool) {
	if len(text) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range text[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unquote returns the text of a string that stringEnd has passed. ok is false where it is not UTF-8.
func unquote(quoted []byte) (text []byte, ok bool) {
	in := quoted[1 : len(quoted)-1]
	if !utf8.Valid(in) {
		return nil, false
	}
	at := bytes.IndexByte(in, '\\')
	if at < 0 {
		return in, true
	}
	out := make([]byte, 0, len(in))
	for ; at >= 0; at = bytes.IndexByte(in, '\\') {
		out = append(out, in[:at]...)
		c := in[at+1]
		in = in[at+2:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r, _ := hex4(in)
			in = in[4:]
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if len(in) >= 6 && in[0] == '\\' && in[1] == 'u' {
					low, _ = hex4(in[2:])
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					in = in[6:]
				}
			}
			out = utf8.AppendRune(out, r)
			continue
		}
		out = append(out, c)
	}
	return append(out, in...), true
}
