package corpus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/flate"
)

// gzipReader reads the members of a gzip file (RFC 1952). The library's own reader takes a member that ends within its
// name for a whole one, and the standard one inflates at half the speed.
type gzipReader struct {
	in   *bufio.Reader
	z    io.ReadCloser
	sum  hash.Hash32
	size uint32
}

var errGzip = errors.New("gzip: invalid header")
var errGzipSum = errors.New("gzip: invalid checksum")

func newGzip(in *bufio.Reader) (*gzipReader, error) {
	g := &gzipReader{in: in, sum: crc32.NewIEEE()}
	return g, g.header()
}

// headerReader reads the bytes of a header, and sums them. After an error it gives zeros.
type headerReader struct {
	in  *bufio.Reader
	crc hash.Hash32
	err error
}

func (h *headerReader) next() byte {
	if h.err != nil {
		return 0
	}
	b, err := h.in.ReadByte()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	h.err = err
	h.crc.Write([]byte{b})
	return b
}

func (h *headerReader) number() int { low := int(h.next()); return low | int(h.next())<<8 }

// header reads a member's header, and begins with its contents.
func (g *gzipReader) header() error {
	h := &headerReader{in: g.in, crc: crc32.NewIEEE()}
	var head [10]byte
	for i := range head {
		head[i] = h.next()
	}
	flags := head[3]
	if h.err == nil && (string(head[:3]) != gzipMagic || flags&0xe0 != 0) {
		return errGzip
	}
	if flags&4 != 0 { // FEXTRA
		for n := h.number(); n > 0 && h.err == nil; n-- {
			h.next()
		}
	}
	for _, flag := range []byte{8, 16} { // FNAME, FCOMMENT
		for flags&flag != 0 && h.next() != 0 {
		}
	}
	if want := int(uint16(h.crc.Sum32())); flags&2 != 0 && h.number() != want && h.err == nil { // FHCRC
		return errGzip
	}
	if h.err != nil {
		return h.err
	}
	g.sum.Reset()
	g.size = 0
	if g.z == nil {
		g.z = flate.NewReader(g.in)
		return nil
	}
	return g.z.(flate.Resetter).Reset(g.in, nil)
}

func (g *gzipReader) Read(p []byte) (int, error) {
	for {
		n, err := g.z.Read(p)
		g.sum.Write(p[:n])
		g.size += uint32(n)
		if !errors.Is(err, io.EOF) || err == io.ErrUnexpectedEOF {
			return n, err
		}
		if err := g.next(); err != nil || n > 0 {
			return n, err
		}
	}
}

// next checks a member that has ended, and begins the following one. It gives io.EOF where there is none.
func (g *gzipReader) next() error {
	var tail [8]byte
	if _, err := io.ReadFull(g.in, tail[:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if binary.LittleEndian.Uint32(tail[:]) != g.sum.Sum32() || binary.LittleEndian.Uint32(tail[4:]) != g.size {
		return errGzipSum
	}
	if _, err := g.in.Peek(1); err != nil {
		return err
	}
	return g.header()
}
