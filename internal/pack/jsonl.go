package pack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// lineBuffer is the bytes that are read at once where lines are wanted. 1 MiB.
const lineBuffer = 1 << 20

// errLongLine says that a line is longer than may be held.
var errLongLine = errors.New("the line is too long")

// jsonl yields the text under s.key of every line of r, which reads in.
func (s *fileSource) jsonl(ctx context.Context, r *bufio.Reader, in *inputStream, before int64, yield func(Document) error) error {
	var line []byte
	for number := 1; ; number++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		var more bool
		var err error
		if line, more, err = readLine(r, line[:0], s.limit); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 {
			text, err := textOf(trimmed, s.key)
			if err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			// The decoder has put U+FFFD where the line was not UTF-8.
			if err := yield(Document{Text: text, Repaired: !utf8.Valid(trimmed), Read: before + in.offset()}); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// json yields a file whose name says JSON: its lines, if it is JSON Lines, or its text. A file is JSON Lines if its
// first line is a whole object, and the next line begins another or the object has a text under s.key.
func (s *fileSource) json(ctx context.Context, file inputFile, in *inputStream, before int64, yield func(Document) error) error {
	r := bufio.NewReaderSize(in, lineBuffer)
	first, _, err := readLine(r, nil, s.limit)
	if err != nil && !errors.Is(err, errLongLine) {
		return err
	}
	var object map[string]json.RawMessage
	isLines := err == nil && json.Unmarshal(first, &object) == nil && object != nil
	if isLines {
		next, err := r.Peek(1)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, noText := textOf(first, s.key)
		isLines = string(next) == "{" || noText == nil
	}
	whole := io.MultiReader(bytes.NewReader(first), r)
	if isLines {
		return s.jsonl(ctx, bufio.NewReaderSize(whole, lineBuffer), in, before, yield)
	}
	return s.text(file, whole, in, before, yield)
}

// readLine appends a line with its end to line. more is false at the end of r.
func readLine(r *bufio.Reader, line []byte, limit int) (_ []byte, more bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return line, false, fmt.Errorf("%w: more than %d bytes", errLongLine, limit)
		case err == nil:
			return line, true, nil
		case errors.Is(err, io.EOF):
			return line, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, false, err
		}
	}
}

// textOf returns the string under key of a JSON object.
func textOf(line []byte, key string) ([]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	value, ok := object[key]
	if !ok {
		return nil, fmt.Errorf("there is no key %q, name the one that holds the text with --text-key", key)
	}
	if len(value) == 0 || value[0] != '"' {
		return nil, fmt.Errorf("the value of %q is not a string", key)
	}
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		return nil, fmt.Errorf("the value of %q: %w", key, err)
	}
	return []byte(text), nil
}
