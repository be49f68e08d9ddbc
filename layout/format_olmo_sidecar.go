package layout

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/gzip"
)

// A sidecar, X.csv.gz, has no header and a row for each document: start, end, and more columns (id, source, line).
// start and end count tokens, the end exclusive. Source: allenai/dolma python/dolma/tokenizer/memmap_writer.py;
// allenai/OLMo-core writes start and end alone. Documents follow one another without gaps from 0.

// errRow says that a row of a sidecar has another form.
var errRow = errors.New("a row must begin with start,end in decimal digits")

// sidecarRows reads rows one at a time, in bounded memory and, however well they are compressed, bounded time.
type sidecarRows struct {
	r     *bufio.Reader
	rows  int64
	bytes int64 // decompressed so far
	end   int64 // of the last document read
}

func newSidecarRows(r io.Reader) (*sidecarRows, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	return &sidecarRows{r: bufio.NewReader(z)}, nil
}

// next reads a row and checks that it follows the one before. It returns io.EOF after the last.
func (s *sidecarRows) next() error {
	start, sep, err := s.number()
	if err != nil {
		if errors.Is(err, io.EOF) && sep == 0 {
			return io.EOF
		}
		return s.fail(err)
	}
	if sep != ',' {
		return s.fail(errRow)
	}
	end, sep, err := s.number()
	if err != nil && (!errors.Is(err, io.EOF) || sep != '0') { // the last row may lack its newline
		return s.fail(err)
	}
	switch {
	case err != nil:
	case sep == ',':
		err = s.skipRow()
	case sep == '\r':
		if sep, err = s.byte(); err == nil && sep != '\n' {
			err = errRow
		}
	case sep != '\n':
		err = errRow
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return s.fail(err)
	}
	if start != s.end || end < start {
		return s.fail(fmt.Errorf("the document has the tokens %d to %d, the one before ends at %d", start, end, s.end))
	}
	s.rows, s.end = s.rows+1, end
	return nil
}

func (s *sidecarRows) fail(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("row %d: %w", s.rows+1, err)
}

// number reads decimal digits and the byte after them. With io.EOF, sep is '0' if there were digits and 0 if not.
func (s *sidecarRows) number() (n int64, sep byte, err error) {
	for digits := 0; ; digits++ {
		c, err := s.byte()
		if err != nil {
			if digits > 0 {
				return n, '0', err
			}
			return 0, 0, err
		}
		if c < '0' || c > '9' {
			if digits == 0 {
				return 0, c, errRow
			}
			return n, c, nil
		}
		if n > (math.MaxInt64-9)/10 {
			return 0, c, errRow
		}
		n = 10*n + int64(c-'0')
	}
}

// skipRow reads to the end of the row. A newline inside quotes belongs to the row.
func (s *sidecarRows) skipRow() error {
	quoted := false
	for {
		c, err := s.byte()
		if err != nil {
			return err
		}
		if c == '"' {
			quoted = !quoted
		}
		if c == '\n' && !quoted {
			return nil
		}
	}
}

// byte counts its reads: rows of more than 1 KiB on average, past the first MiB, are no rows but a bomb.
func (s *sidecarRows) byte() (byte, error) {
	c, err := s.r.ReadByte()
	if err != nil {
		return 0, err
	}
	if s.bytes++; s.bytes > 1<<20+1<<10*s.rows {
		return 0, errors.New("the rows have more than 1 KiB on average")
	}
	return c, nil
}

// eachDocument calls visit with the end of each document of the sidecar, in order. The data has tokens of them: a
// sidecar that counts others, or more rows than tokens, is an error.
func eachDocument(ctx context.Context, sidecar *Object, tokens int64, visit func(end int64) error) (last int64, err error) {
	const buffer = 1 << 20
	s, err := newSidecarRows(bufio.NewReaderSize(sidecar.Reader(ctx), int(min(buffer, sidecar.Size+16))))
	if err != nil {
		return 0, sidecarError(ctx, sidecar, err)
	}
	for {
		if s.rows&0xffff == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err := s.next(); errors.Is(err, io.EOF) {
			return s.end, nil
		} else if err != nil {
			return 0, sidecarError(ctx, sidecar, err)
		}
		if s.end > tokens || s.rows > tokens+1024 {
			return 0, corruptf(sidecar, 0, "row %d: the document ends at token %d, the data has %d", s.rows, s.end, tokens)
		}
		if err := visit(s.end); err != nil {
			return 0, err
		}
	}
}

func sidecarError(ctx context.Context, sidecar *Object, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return corruptf(sidecar, 0, "the list of documents cannot be read: %v", err)
}

// sidecarHead is the content of the first bytes of a sidecar.
type sidecarHead struct {
	rows int64 // about how many there are
	end  int64 // where the last document ends, -1 where the head does not hold the whole sidecar
}

// readSidecarHead decompresses the head. ok is false for another file: no gzip, or no rows that begin with 0 and follow
// one another.
func readSidecarHead(head []byte, size int64) (h sidecarHead, ok bool) {
	s, err := newSidecarRows(bytes.NewReader(head))
	if err != nil {
		return h, false
	}
	for err == nil && s.rows < 1<<16 {
		err = s.next()
	}
	whole := int64(len(head)) == size && errors.Is(err, io.EOF)
	switch {
	case whole:
		return sidecarHead{s.rows, s.end}, true
	case s.rows == 0, err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return h, false
	}
	return sidecarHead{min(s.rows*(min(size/int64(len(head)), 1<<40)+1), 1<<40), -1}, true
}
