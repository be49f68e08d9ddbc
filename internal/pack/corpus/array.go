package corpus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
)

// array yields the objects of a JSON array. With from.Item above 0 in begins behind an element.
func (r *reader) array(ctx context.Context, in io.Reader, from Position) error {
	a := &arrayReader{in: bufio.NewReaderSize(in, 256<<10), at: from.At, limit: r.corpus.limit}
	if from.Item == 0 {
		if mark, err := a.in.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
			n, err := a.in.Discard(len(mark))
			if err != nil {
				return err
			}
			a.at += int64(n)
		}
		if c, err := a.next(); err != nil || c != '[' {
			return fmt.Errorf("the JSON array does not begin: %w", orCut(err))
		}
	}
	for n, more := from.Item, true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		raw := r.buffer()
		var ends []int
		for len(raw) < blockBytes && len(ends) < blockDocuments {
			var err error
			before := len(raw)
			if raw, more, err = a.element(raw, n > 0); err != nil {
				return fmt.Errorf("element %d: %w", n+1, err)
			}
			if !more {
				break
			}
			if len(raw)-before > r.corpus.limit {
				return fmt.Errorf("element %d is too long: more than %d bytes", n+1, r.corpus.limit)
			}
			n++
			ends = append(ends, len(raw))
		}
		b := r.block(raw)
		b.first, b.Next = from, Position{File: r.span.File, At: a.at, Item: n}
		if !more {
			b.Next = r.over()
		}
		b.parse = func(yield func(Document) error) error { return b.parseArray(ends, yield) }
		from = b.Next
		if err := r.emit(b); err != nil {
			return err
		}
	}
	return nil
}

func orCut(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseArray yields the text of every element.
func (b *Block) parseArray(ends []int, yield func(Document) error) error {
	start := 0
	for i, end := range ends {
		text, repaired, err := textOf(b.raw[start:end], b.key)
		if err != nil {
			return fmt.Errorf("element %d: %w", b.first.Item+int64(i)+1, err)
		}
		if err := yield(Document{Text: text, Repaired: repaired}); err != nil {
			return err
		}
		start = end
	}
	return nil
}

// arrayReader finds the elements of an array.
type arrayReader struct {
	in    *bufio.Reader
	at    int64
	limit int
}

func (a *arrayReader) byte() (byte, error) {
	c, err := a.in.ReadByte()
	if err == nil {
		a.at++
	}
	return c, err
}

// next returns the next byte that is no space.
func (a *arrayReader) next() (byte, error) {
	for {
		c, err := a.byte()
		if err != nil || c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c, err
		}
	}
}

// element appends the next object to raw. more is false behind the last one, where nothing else may follow.
func (a *arrayReader) element(raw []byte, comma bool) (_ []byte, more bool, err error) {
	c, err := a.next()
	if err == nil && comma && c == ',' {
		c, err = a.next()
	} else if err == nil && c == ']' {
		if c, err := a.next(); !errors.Is(err, io.EOF) {
			if err != nil {
				return raw, false, err
			}
			return raw, false, fmt.Errorf("%q follows the end of the array at byte %d", c, a.at-1)
		}
		return raw, false, nil
	} else if err == nil && comma {
		return raw, false, fmt.Errorf("%q stands at byte %d, where a comma or the end of the array is expected", c, a.at-1)
	}
	switch {
	case errors.Is(err, io.EOF):
		return raw, false, fmt.Errorf("the array is cut off at byte %d: %w", a.at, io.ErrUnexpectedEOF)
	case err != nil:
		return raw, false, err
	case c != '{':
		return raw, false, fmt.Errorf("%q stands at byte %d, where an object is expected", c, a.at-1)
	}
	start := len(raw)
	raw = append(raw, c)
	for depth, inString := 1, false; depth > 0; {
		c, err := a.byte()
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the array is cut off at byte %d: %w", a.at, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return raw, false, err
		}
		raw = append(raw, c)
		switch {
		case len(raw)-start > a.limit:
			return raw, false, fmt.Errorf("it is too long: more than %d bytes", a.limit)
		case inString && c == '\\':
			if c, err = a.byte(); err == nil {
				raw = append(raw, c)
			}
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	return raw, true, nil
}
