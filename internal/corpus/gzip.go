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

// header reads a member's header, and begins with what it holds.
func (g *gzipReader) header() error {
	crc := crc32.NewIEEE()
	next := func() (byte, error) {
		b, err := g.in.ReadByte()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		crc.Write([]byte{b})
		return b, err
	}
	var head [10]byte
	for i := range head {
		b, err := next()
		if err != nil {
			return err
		}
		head[i] = b
	}
	if string(head[:3]) != gzipMagic || head[3]&0xe0 != 0 {
		return errGzip
	}
	flags := head[3]
	if flags&4 != 0 { // FEXTRA
		low, err := next()
		if err != nil {
			return err
		}
		high, err := next()
		for n := int(high)<<8 | int(low); n > 0 && err == nil; n-- {
			_, err = next()
		}
		if err != nil {
			return err
		}
	}
	for _, flag := range []byte{8, 16} { // FNAME, FCOMMENT
		for flags&flag != 0 {
			b, err := next()
			if err != nil {
				return err
			}
			if b == 0 {
				break
			}
		}
	}
	if want := uint16(crc.Sum32()); flags&2 != 0 { // FHCRC
		low, err := next()
		if err != nil {
			return err
		}
		high, err := next()
		if err != nil {
			return err
		}
		if uint16(high)<<8|uint16(low) != want {
			return errGzip
		}
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
