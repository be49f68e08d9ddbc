package pack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"
)

// jsonl yields the text under s.key of every line of a file.
func (s *fileSource) jsonl(ctx context.Context, file inputFile, before int64, yield func(Document) error) error {
	f, err := os.Open(file.path)
	if err != nil {
		return fmt.Errorf("read JSONL: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	r := bufio.NewReaderSize(f, 1<<20)
	var line []byte
	for number := 1; ; number++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		var more bool
		if line, more, err = readLine(r, line[:0], s.limit); err != nil {
			return fmt.Errorf("read %s, line %d: %w", file.path, number, err)
		}
		before += int64(len(line))
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 {
			text, err := textOf(trimmed, s.key)
			if err != nil {
				return fmt.Errorf("read %s, line %d: %w", file.path, number, err)
			}
			// The decoder has put U+FFFD where the line was not UTF-8.
			if err := yield(Document{Text: text, Repaired: !utf8.Valid(trimmed), Read: before}); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// readLine appends a line with its end to line. more is false at the end of r.
func readLine(r *bufio.Reader, line []byte, limit int) (_ []byte, more bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return line, false, fmt.Errorf("the line is longer than %d bytes", limit)
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
