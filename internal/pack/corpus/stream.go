package corpus

import (
	"bufio"
	"compress/bzip2"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

// The starts of compressed files: RFC 1952 with its only method, RFC 8878, and those of bzip2 and xz.
const (
	gzipMagic  = "\x1f\x8b\x08"
	zstdMagic  = "\x28\xb5\x2f\xfd"
	bzip2Magic = "BZh"
	xzMagic    = "\xfd7zXZ\x00"
)

// window bounds the memory that a compressed stream can ask for. zstd itself takes as much without --long, and xz -9
// half of it.
const window = 128 << 20

// stream is a file that is being read, decompressed if it is compressed. Errors do not name the file.
type stream struct {
	count  fileCounter
	buf    *bufio.Reader // the file's own bytes
	r      io.Reader     // decompressed
	format string        // gzip, zstd, bzip2, xz or empty
	zstd   *zstd.Decoder // to be closed
	err    error         // of the last read; it is given again
}

// fileCounter counts the bytes read of a file, and keeps the file's own error apart from a decompressor's.
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

// newStream reads a file of the given name. Its magic says whether it is compressed, so a misleading name does no harm.
// But a file with such a name that ends within the magic is cut off.
func newStream(name string, file io.Reader) (*stream, error) {
	s := &stream{count: fileCounter{r: file}}
	s.buf = bufio.NewReaderSize(&s.count, 1<<20)
	s.r = s.buf
	if err := s.decompress(name); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stream) decompress(name string) error {
	head, err := s.buf.Peek(10)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	start, named := string(head), compression(name)
	// Frames that decoders skip begin so, too. LZ4 has the same ones, so here the name must agree.
	skippable := len(head) >= 4 && head[0]&0xf0 == 0x50 && start[1:4] == "\x2a\x4d\x18"
	switch {
	case strings.HasPrefix(start, gzipMagic):
		s.format = "gzip"
		s.r, err = newGzip(s.buf)
		return s.explain(err)
	case strings.HasPrefix(start, zstdMagic), skippable && named == "zstd":
		s.format = "zstd"
		s.zstd, err = zstd.NewReader(s.buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(window), zstd.WithDecoderMaxMemory(window))
		s.r = s.zstd
		return s.explain(err)
	case isBzip2(start):
		s.format = "bzip2"
		s.r = bzip2.NewReader(s.buf)
		return nil
	case strings.HasPrefix(start, xzMagic):
		s.format = "xz"
		s.r, err = xz.NewReader(s.buf, window)
		return s.explain(err)
	case s.cutMagic(start, named):
		s.format = named
		return s.explain(io.ErrUnexpectedEOF)
	}
	return nil
}

// isBzip2 asks for more than the magic, which is text: the level, and the first block's or the end's own mark.
func isBzip2(start string) bool {
	if len(start) < 10 || !strings.HasPrefix(start, bzip2Magic) || start[3] < '1' || start[3] > '9' {
		return false
	}
	return start[4:] == "1AY&SY" || start[4:] == "\x17\x72\x45\x38\x50\x90"
}

// cutMagic reports whether a file that a name calls compressed ends within the first bytes of that format.
func (s *stream) cutMagic(start, named string) bool {
	full := map[string]string{"gzip": gzipMagic, "zstd": zstdMagic, "xz": xzMagic, "bzip2": bzip2Magic + "91AY&SY"}[named]
	if full == "" || len(start) >= len(full) {
		return false
	}
	if named == "bzip2" && len(start) > 3 { // any level
		return start[:3] == bzip2Magic && strings.HasPrefix(full[4:], start[4:])
	}
	return strings.HasPrefix(full, start)
}

// explain says where in the file a decompressor failed, and why.
func (s *stream) explain(err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF) || s.format == "":
		return err
	case s.count.err != nil:
		return s.count.err
	case (errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, xz.ErrBuf)) && s.count.ended: // zstd says so of broken blocks as well
		return fmt.Errorf("the %s stream is cut off at byte %d of the file: %w", s.format, s.count.n, err)
	case errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fmt.Errorf("the zstd stream at byte %d of the file needs more than %d MiB of memory: decompress it with zstd -d --long=31: %w",
			s.offset(), window>>20, err)
	case errors.Is(err, xz.ErrMemlimit):
		return fmt.Errorf("the xz stream at byte %d of the file needs more than %d MiB of memory: decompress it with xz -d: %w", s.offset(), window>>20, err)
	}
	return fmt.Errorf("the %s stream is broken near byte %d of the file: %w", s.format, s.offset(), err)
}

func (s *stream) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	s.err = s.explain(err)
	return n, s.err
}

// offset returns how many bytes of the file were used.
func (s *stream) offset() int64 { return s.count.n - int64(s.buf.Buffered()) }

func (s *stream) close() {
	if s.zstd != nil {
		s.zstd.Close()
	}
}

// compression returns the compression that a name tells: gzip, zstd, bzip2, xz or nothing.
func compression(name string) string {
	switch strings.ToLower(path.Ext(name)) {
	case ".gz":
		return "gzip"
	case ".zst", ".zstd":
		return "zstd"
	case ".bz2":
		return "bzip2"
	case ".xz":
		return "xz"
	}
	return ""
}

// contentExt returns the extension of a name in lower case, but for one that says that the file is compressed.
func contentExt(name string) string {
	if compression(name) != "" {
		name = strings.TrimSuffix(name, path.Ext(name))
	}
	return strings.ToLower(path.Ext(name))
}
