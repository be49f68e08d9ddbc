package pack

import (
	"bufio"
	"compress/gzip" // klauspost/compress takes a member that ends within its name for whole
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// The starts of compressed files: RFC 1952 with its only method, and RFC 8878.
const (
	gzipMagic = "\x1f\x8b\x08"
	zstdMagic = "\x28\xb5\x2f\xfd"
)

// zstdWindow bounds the memory that a zstd stream can ask for. zstd itself takes as much without --long.
const zstdWindow = 128 << 20

// inputStream is a file that is being read, decompressed if it is compressed. Errors do not name the file.
type inputStream struct {
	file   io.Closer
	count  fileCounter
	buf    *bufio.Reader // the file's own bytes
	r      io.Reader     // decompressed
	format string        // gzip, zstd or empty
	zstd   *zstd.Decoder // to be closed
}

// fileCounter counts what was read of a file, and keeps the file's own error apart from a decompressor's.
type fileCounter struct {
	r     io.Reader
	n     int64
	ended bool
	err   error
}

func (c *fileCounter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	switch {
	case errors.Is(err, io.EOF):
		c.ended = true
	case err != nil:
		c.err = err
	}
	return n, err
}

// openStream opens a file.
func openStream(name string) (*inputStream, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	s, err := newStream(name, file)
	if err != nil {
		file.Close() //nolint:errcheck // only read
	}
	return s, err
}

// newStream reads a file of the given name. Its magic says whether it is compressed, so a misleading name does no harm.
// But a file with such a name that ends within the magic is cut off.
func newStream(name string, file io.ReadCloser) (*inputStream, error) {
	s := &inputStream{file: file, count: fileCounter{r: file}}
	s.buf = bufio.NewReaderSize(&s.count, 256<<10)
	s.r = s.buf
	return s, s.decompress(name)
}

func (s *inputStream) decompress(name string) error {
	head, err := s.buf.Peek(len(zstdMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	named := compression(name)
	// Frames that decoders skip begin so, too. LZ4 has the same ones, so here the name must agree.
	skippable := len(head) == 4 && head[0]&0xf0 == 0x50 && string(head[1:]) == "\x2a\x4d\x18"
	switch {
	case strings.HasPrefix(string(head), gzipMagic):
		s.format = "gzip"
		s.r, err = gzip.NewReader(s.buf)
		return s.explain(err)
	case string(head) == zstdMagic || skippable && named == "zstd":
		s.format = "zstd"
		s.zstd, err = zstd.NewReader(s.buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(zstdWindow), zstd.WithDecoderMaxMemory(zstdWindow))
		s.r = s.zstd
		return s.explain(err)
	case named == "gzip" && strings.HasPrefix(gzipMagic, string(head)), named == "zstd" && strings.HasPrefix(zstdMagic, string(head)):
		s.format = named
		return s.explain(io.ErrUnexpectedEOF)
	}
	return nil
}

// explain says where in the file a decompressor failed, and why.
func (s *inputStream) explain(err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF) || s.format == "":
		return err
	case s.count.err != nil:
		return s.count.err
	case errors.Is(err, io.ErrUnexpectedEOF) && s.count.ended: // zstd says so of broken blocks as well
		return fmt.Errorf("the %s stream is cut off at byte %d of the file: %w", s.format, s.count.n, err)
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fmt.Errorf("the zstd stream at byte %d of the file needs more than %d MiB of memory: decompress it with zstd -d --long=31: %w",
			s.offset(), zstdWindow>>20, err)
	}
	return fmt.Errorf("the %s stream is broken near byte %d of the file: %w", s.format, s.offset(), err)
}

func (s *inputStream) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	return n, s.explain(err)
}

// offset returns how many bytes of the file were used.
func (s *inputStream) offset() int64 { return s.count.n - int64(s.buf.Buffered()) }

func (s *inputStream) close() {
	if s.zstd != nil {
		s.zstd.Close()
	}
	s.file.Close() //nolint:errcheck // only read
}

// compression returns what a name says that a file is: gzip, zstd or nothing.
func compression(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".gz":
		return "gzip"
	case ".zst", ".zstd":
		return "zstd"
	}
	return ""
}

// contentExt returns the extension of a name in lower case, but for one that says that the file is compressed.
func contentExt(name string) string {
	if compression(name) != "" {
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	return strings.ToLower(filepath.Ext(name))
}
