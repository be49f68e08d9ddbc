package pack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// pieceBytes is the size from which a text is cut into parts. So one long document keeps all workers busy and does not
// have to fit into memory. A cancelled run waits for one part per worker.
const pieceBytes = batchBytes

// sniffBytes is how much of a file's start says whether it is text.
const sniffBytes = 8 << 10

// text yields r, which reads in, as one document.
func (s *fileSource) text(file inputFile, r io.Reader, in *inputStream, before int64, yield func(Document) error) error {
	c := cutter{r: r, piece: pieceBytes, limit: s.limit, lastCut: s.lastCut, progress: func() int64 { return before + in.offset() }}
	if file.sniff {
		head, err := c.peek(sniffBytes)
		if err != nil {
			return err
		}
		if !looksLikeText(head) {
			s.skipped++
			s.skippedBytes += file.size
			return nil
		}
	}
	return c.parts(yield)
}

// looksLikeText tells text from binaries by the start of a file: no NUL, and UTF-8 but for a rune cut at the end.
func looksLikeText(head []byte) bool {
	if bytes.IndexByte(head, 0) >= 0 {
		return false
	}
	for i := 0; i < utf8.UTFMax && len(head) > 0 && !utf8.Valid(head); i++ {
		head = head[:len(head)-1]
	}
	return utf8.Valid(head)
}

// cutter cuts a text into parts that give the same tokens apart as together.
type cutter struct {
	r        io.Reader
	piece    int                   // bytes of a part, where there is a place to cut
	limit    int                   // bytes that are searched for one
	lastCut  func(text []byte) int // see tokenizer.Tokenizer
	progress func() int64          // gives Document.Read
	out      int64                 // bytes given out
	buf      []byte
	eof      bool
}

// fill reads until buf holds n bytes or the text has ended.
func (c *cutter) fill(n int) error {
	for !c.eof && len(c.buf) < n {
		if cap(c.buf) < n {
			c.buf = append(make([]byte, 0, n), c.buf...)
		}
		m, err := c.r.Read(c.buf[len(c.buf):n])
		c.buf = c.buf[:len(c.buf)+m]
		if errors.Is(err, io.EOF) {
			c.eof = true
		} else if err != nil {
			return err
		}
	}
	return nil
}

// peek returns up to n bytes of the start.
func (c *cutter) peek(n int) ([]byte, error) {
	err := c.fill(n)
	return c.buf[:min(n, len(c.buf))], err
}

// parts yields the text.
func (c *cutter) parts(yield func(Document) error) error {
	for want := c.piece; ; {
		if err := c.fill(want); err != nil {
			return err
		}
		cut := len(c.buf)
		if !c.eof {
			cut = c.lastCut(c.buf)
			if cut == 0 && want < c.limit {
				want = min(2*want, c.limit)
				continue
			}
			if cut == 0 {
				return fmt.Errorf("no place within %d bytes after byte %d of the text is one where it can be cut for tokenizing, such as a space that follows a letter",
					c.limit, c.out)
			}
		}
		c.out += int64(cut)
		if err := yield(Document{Text: c.buf[:cut], More: !c.eof, Read: c.progress()}); err != nil {
			return err
		}
		if c.eof {
			return nil
		}
		c.buf = c.buf[:copy(c.buf, c.buf[cut:])]
		want = c.piece
	}
}
