package parquet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// maxPageHeader bounds the header of a page, which has statistics: two values, as a rule cut short.
const maxPageHeader = 16 << 20

// The types of pages.
const (
	pageData       = 0
	pageIndex      = 1
	pageDictionary = 2
	pageDataV2     = 3
)

// The compressions that are read.
const (
	codecNone   = 0
	codecSnappy = 1
	codecGzip   = 2
	codecZstd   = 6
	codecLZ4    = 7
)

// pageHeader is the header of a page.
type pageHeader struct {
	kind               int64
	plain, stored      int64 // bytes
	crc                int64 // -1 for none
	values             int64
	encoding           int64
	defBytes, repBytes int64 // of a page of version 2
	isPlain            bool  // the values of version 2 are not compressed
}

// pages reads the pages of one chunk.
type pages struct {
	column *Column
	chunk  *place
	in     *bufio.Reader
	left   int64 // bytes of the chunk
	raw    []byte
	plain  []byte
}

// next reads a page: its header, and its bytes as they are stored. It gives io.EOF behind the last.
func (p *pages) next() (*pageHeader, []byte, error) {
	if p.left <= 0 {
		return nil, nil, io.EOF
	}
	h, n, err := p.header()
	if err != nil {
		return nil, nil, err
	}
	p.left -= n
	if err := p.check(h); err != nil {
		return nil, nil, err
	}
	if int64(cap(p.raw)) < h.stored {
		p.raw = make([]byte, h.stored)
	}
	p.raw = p.raw[:h.stored]
	if _, err := io.ReadFull(p.in, p.raw); err != nil {
		return nil, nil, err
	}
	p.left -= h.stored
	return h, p.raw, p.sum(h, p.raw)
}

// check compares the sizes in a header with the bytes that follow it.
func (p *pages) check(h *pageHeader) error {
	switch {
	case h.plain < 0 || h.stored < 0 || h.values < 0 || h.stored > p.left:
		return fmt.Errorf("%w: a page of column %q has %d bytes, %d follow", ErrBroken, p.column.Name(), h.stored, p.left)
	case h.plain > MaxPage || h.stored > MaxPage:
		return fmt.Errorf("%w: a page of column %q has %d bytes, at most %d are read: write it with smaller pages", ErrUnread,
			p.column.Name(), max(h.plain, h.stored), MaxPage)
	}
	return nil
}

// sum compares a page with the checksum in its header, if that has one.
func (p *pages) sum(h *pageHeader, raw []byte) error {
	if h.crc >= 0 && int64(crc32.ChecksumIEEE(raw)) != h.crc {
		return fmt.Errorf("%w: a page of column %q has another checksum than its header says", ErrBroken, p.column.Name())
	}
	return nil
}

// header reads a page's header, whose length nobody tells.
func (p *pages) header() (*pageHeader, int64, error) {
	for n := 64; ; n *= 4 {
		n = int(min(int64(n), p.left))
		head, err := p.in.Peek(min(n, p.in.Size()))
		if n > p.in.Size() { // of a value as statistics
			p.in = bufio.NewReaderSize(p.in, n)
			head, err = p.in.Peek(n)
		}
		if err != nil {
			return nil, 0, err
		}
		t := &thrift{buf: head}
		h := readPageHeader(t)
		if t.err == nil {
			_, err := p.in.Discard(t.at)
			return h, int64(t.at), err
		}
		if int64(n) == p.left || n >= maxPageHeader {
			return nil, 0, fmt.Errorf("%w: the header of a page of column %q: %w", ErrBroken, p.column.Name(), t.err)
		}
	}
}

func readPageHeader(t *thrift) *pageHeader {
	const none = 1 << 32 // no checksum is that
	h := &pageHeader{kind: -1, crc: -1}
	crc := int64(none)
	t.numbers(thriftStruct, map[int]*int64{1: &h.kind, 2: &h.plain, 3: &h.stored, 4: &crc}, func(id int, kind byte) bool {
		switch id {
		case 5, 7: // of a data page, of a dictionary
			t.numbers(kind, map[int]*int64{1: &h.values, 2: &h.encoding}, nil)
		case 8:
			t.numbers(kind, map[int]*int64{1: &h.values, 4: &h.encoding, 5: &h.defBytes, 6: &h.repBytes}, func(id int, kind byte) bool {
				if id == 7 {
					h.isPlain = kind == thriftFalse
				}
				return id == 7
			})
		default:
			return false
		}
		return true
	})
	if crc != none {
		h.crc = int64(uint32(crc))
	}
	return h
}

// decompress returns n bytes, which are valid until the next call.
func (p *pages) decompress(raw []byte, n int64) ([]byte, error) {
	if p.chunk.codec == codecNone {
		if int64(len(raw)) != n {
			return nil, fmt.Errorf("%w: a page of column %q has %d bytes, its header says %d", ErrBroken, p.column.Name(), len(raw), n)
		}
		return raw, nil
	}
	if int64(cap(p.plain)) < n {
		p.plain = scratchOf(n)
	}
	var err error
	out := p.plain[:0]
	switch p.chunk.codec {
	case codecSnappy:
		var size int
		if size, err = snappy.DecodedLen(raw); err == nil && int64(size) == n {
			out, err = snappy.Decode(p.plain[:n], raw)
		}
	case codecGzip:
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(raw)); err == nil {
			w := bytes.NewBuffer(out)
			_, err = io.Copy(w, io.LimitReader(z, n+1))
			out = w.Bytes()
		}
	case codecZstd:
		var z *zstd.Decoder
		if z, err = decoder(); err == nil {
			out, err = z.DecodeAll(raw, out)
			decoders.Put(z)
		}
	case codecLZ4:
		out, err = lz4Block(out, raw, int(n))
	default:
		return nil, p.chunk.unknownCodec(p.column)
	}
	if err == nil && int64(len(out)) != n {
		err = fmt.Errorf("%d bytes come out, the header says %d", len(out), n)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: decompress a page of column %q: %w", ErrBroken, p.column.Name(), err)
	}
	return out, nil
}

// decoders are kept: each takes long to make.
var decoders sync.Pool //nolint:gochecknoglobals // a pool, as in the standard library

func decoder() (*zstd.Decoder, error) {
	if z, ok := decoders.Get().(*zstd.Decoder); ok {
		return z, nil
	}
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxPage), zstd.WithDecoderLowmem(true))
}

var errLZ4 = errors.New("broken LZ4 block")

// lz4Block decompresses a block of at most n bytes (lz4, doc/lz4_Block_format.md).
func lz4Block(dst, src []byte, n int) ([]byte, error) {
	length := func(l int) (int, bool) {
		for more := l == 15; more; src = src[1:] {
			if len(src) == 0 || l > n {
				return 0, false
			}
			l += int(src[0])
			more = src[0] == 255
		}
		return l, true
	}
	for len(src) > 0 {
		token := src[0]
		src = src[1:]
		literals, ok := length(int(token >> 4))
		if !ok || literals > len(src) || literals > n-len(dst) {
			return dst, errLZ4
		}
		dst = append(dst, src[:literals]...)
		if src = src[literals:]; len(src) == 0 {
			return dst, nil
		}
		if len(src) < 2 {
			return dst, errLZ4
		}
		offset := int(src[0]) | int(src[1])<<8
		src = src[2:]
		match, ok := length(int(token & 15))
		if match += 4; !ok || offset == 0 || offset > len(dst) || match > n-len(dst) {
			return dst, errLZ4
		}
		for range match {
			dst = append(dst, dst[len(dst)-offset])
		}
	}
	return dst, nil
}

// newPages begins to read a chunk.
func (f *File) newPages(ctx context.Context, group, column int) (*pages, error) {
	c := &f.Groups[group].chunks[column].place
	if err := c.readable(&f.Columns[column]); err != nil {
		return nil, err
	}
	in := io.NewSectionReader(cancelReaderAt{ctx, f.r}, c.start, c.bytes)
	return &pages{column: &f.Columns[column], chunk: c, in: bufio.NewReaderSize(in, 256<<10), left: c.bytes}, nil
}

// readable says why a chunk cannot be read.
func (c *place) readable(column *Column) error {
	switch {
	case column.long:
		return fmt.Errorf("%w: the path of column %.80q has more than %d bytes", ErrUnread, column.Name(), maxPath)
	case c.elsewhere:
		return fmt.Errorf("%w: column %q lies in another file", ErrUnread, column.Name())
	case c.encrypted:
		return fmt.Errorf("%w: column %q is encrypted", ErrUnread, column.Name())
	}
	return nil
}

func (c *place) unknownCodec(column *Column) error {
	names := map[int32]string{3: "LZO", 4: "Brotli", 5: "Hadoop's LZ4"}
	name, known := names[c.codec]
	if !known {
		name = fmt.Sprintf("codec %d", c.codec)
	}
	return fmt.Errorf("%w: column %q is compressed by %s: write it with zstd or snappy", ErrUnread, column.Name(), name)
}

// cancelReaderAt ends a long read when ctx does.
type cancelReaderAt struct {
	ctx context.Context
	r   io.ReaderAt
}

func (c cancelReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.ReadAt(p, off)
}
