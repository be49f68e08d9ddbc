package corpus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// pieceBytes is the size from which a text is cut into parts. So one long document keeps all workers busy and does not
// have to fit into memory. A cancelled run waits for one part per worker.
const pieceBytes = 256 << 10

// text yields in as one document.
func (r *reader) text(ctx context.Context, in io.Reader) error {
	c := cutter{r: in, piece: pieceBytes, limit: r.corpus.limit, last: r.corpus.opt.Cut}
	return c.parts(func(text []byte, more bool) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i := bytes.IndexByte(text, 0); i >= 0 {
			return fmt.Errorf("byte %d of the text is NUL, so it is no text: leave the file out, or take the NULs out of it", c.out-int64(len(text))+int64(i))
		}
		b := r.block(append(r.buffer(), text...))
		b.Next = r.over()
		if more {
			b.Next = Position{File: r.span.File, At: c.out, In: true}
		}
		continued := c.out > int64(len(text))
		b.parse = func(yield func(Document) error) error {
			return yield(Document{Text: b.raw, More: more, Continued: continued})
		}
		return r.emit(b)
	})
}

// cutter cuts a text into parts that give the same tokens apart as together.
type cutter struct {
	r     io.Reader
	piece int // bytes of a part, where there is a place to cut
	limit int // bytes that are searched for one
	last  func(text []byte) int
	out   int64 // bytes given out
	buf   []byte
	eof   bool
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

// parts yields the text.
func (c *cutter) parts(yield func(text []byte, more bool) error) error {
	for want := c.piece; ; {
		if err := c.fill(want); err != nil {
			return err
		}
		cut := len(c.buf)
		if !c.eof {
			cut = c.last(c.buf)
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
		if err := yield(c.buf[:cut], !c.eof); err != nil {
			return err
		}
		if c.eof {
			return nil
		}
		c.buf = c.buf[:copy(c.buf, c.buf[cut:])]
		want = c.piece
	}
}
