package corpus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// errLongLine says that a line is longer than may be held.
var errLongLine = errors.New("the line is too long")

// lines yields the lines of r, which begins at from.At of the content. Lines that begin at end or behind it belong to
// another span; end is below 0 where there is none.
func (r *reader) lines(ctx context.Context, in io.Reader, from Position, end int64) error {
	next := r.buffer()
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		raw, cut, goesOn, err := fillLines(in, next, r.corpus.limit)
		if more = goesOn; err != nil {
			return fmt.Errorf("%s: %w", lineName(from, int64(bytes.Count(raw[:cut], []byte("\n")))), explainLong(err, r.corpus.limit))
		}
		if end >= 0 && from.At+int64(cut) >= end { // the line that begins before end is the last one
			if last := bytes.IndexByte(raw[max(end-1-from.At, 0):cut], '\n'); last >= 0 {
				cut, more = int(max(end-1-from.At, 0))+last+1, false
			}
		}
		next = append(r.buffer(), raw[cut:]...) // the parser of the block gives its memory to others
		b := r.block(raw[:cut])
		b.limit = r.corpus.limit
		b.first = from
		b.parse = b.parseLines
		count := int64(bytes.Count(raw[:cut], []byte("\n")))
		from.At += int64(cut)
		if from.Item >= 0 {
			from.Item += count
		}
		b.Next = from
		if !more {
			b.Next = r.over()
		}
		if err := r.emit(b); err != nil {
			return err
		}
	}
	return nil
}

func explainLong(err error, limit int) error {
	if errors.Is(err, errLongLine) {
		return fmt.Errorf("%w: more than %d bytes", errLongLine, limit)
	}
	return err
}

// fillLines reads until raw is full enough and holds a line end, at which cut is. At the end of in cut is all, and
// more is false.
func fillLines(in io.Reader, raw []byte, limit int) (_ []byte, cut int, more bool, err error) {
	for searched := 0; ; {
		if len(raw) >= blockBytes {
			if i := bytes.LastIndexByte(raw[searched:], '\n'); i >= 0 {
				return raw, searched + i + 1, true, nil
			}
			if searched = len(raw); searched > limit {
				return raw, 0, false, errLongLine
			}
		}
		if len(raw) == cap(raw) {
			raw = append(make([]byte, 0, 2*cap(raw)), raw...)
		}
		n, err := in.Read(raw[len(raw):cap(raw)])
		raw = raw[:len(raw)+n]
		if errors.Is(err, io.EOF) {
			return raw, len(raw), false, nil
		}
		if err != nil {
			return raw, max(bytes.LastIndexByte(raw, '\n')+1, 0), false, err
		}
	}
}

// lineName says which line after n others from a position on is meant.
func lineName(p Position, n int64) string {
	if p.Item < 0 {
		return fmt.Sprintf("the line %d lines behind byte %d", n, p.At)
	}
	return fmt.Sprintf("line %d", p.Item+n+1)
}

// parseLines yields the text of every line.
func (b *Block) parseLines(yield func(Document) error) error {
	rest := b.raw
	for n := int64(0); len(rest) > 0; n++ {
		line := rest
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			line = rest[:i+1]
		}
		rest = rest[len(line):]
		if n == 0 && b.first.At == 0 {
			line = bytes.TrimPrefix(line, []byte(byteOrderMark))
		}
		if len(line) > b.limit {
			return fmt.Errorf("%s: %w", lineName(b.first, n), explainLong(errLongLine, b.limit))
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		text, repaired, err := textOf(line, b.key)
		if err != nil {
			return fmt.Errorf("%s: %w", lineName(b.first, n), err)
		}
		if err := yield(Document{Text: text, Repaired: repaired}); err != nil {
			return err
		}
	}
	return nil
}
