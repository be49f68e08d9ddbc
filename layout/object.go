package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// Origin gives the bytes of objects. Package cache implements it for directories and remote stores; this package
// implements it for bytes that it synthesizes.
type Origin interface {
	// ReadAt fills p with o's bytes from off, under the rules of [io.ReaderAt]: n < len(p) comes with an error,
	// io.EOF at o's end. An object that is no longer the one that was listed gives an error, never other bytes.
	ReadAt(ctx context.Context, o *Object, p []byte, off int64) (n int, err error)
}

// Object is a thing at the origin: a file of a directory, an object of a bucket, or bytes that hbmfs synthesizes.
// It never changes: another version is another object.
type Object struct {
	Name    string    // slash-separated, relative to the dataset's root; empty for synthesized bytes
	Size    int64     // bytes
	ModTime time.Time // as the origin tells it
	Version string    // by which the origin pins it: an ETag, or inode, size and mtime
	Perm    uint16    // permission bits, as in stat(2)
	UID     uint32    // owner at the origin
	GID     uint32
	Whole   bool // the first bytes cost as much as all: it is decoded. No format looks into it unasked
	Origin  Origin
}

// ReadAt fills p from off, under the rules of [Origin].
func (o *Object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return o.Origin.ReadAt(ctx, o, p, off)
}

// Reader reads o from its start to its end under ctx, for parsers that want an [io.Reader] or [io.ReaderAt].
func (o *Object) Reader(ctx context.Context) *io.SectionReader {
	return io.NewSectionReader(boundReader{ctx, o}, 0, o.Size)
}

type boundReader struct {
	ctx context.Context
	o   *Object
}

func (r boundReader) ReadAt(p []byte, off int64) (int, error) { return r.o.ReadAt(r.ctx, p, off) }

// Synthesized reports whether o's bytes exist only in this process, so that no backing file holds them.
func (o *Object) Synthesized() bool { return o.Name == "" }

// Inline returns an object of the given bytes, which exist at no origin. The caller must not change data afterwards.
func Inline(data []byte) *Object {
	return &Object{Size: int64(len(data)), Origin: inline(data)}
}

// Bytes returns a named object of the given bytes, for tests and fuzz targets.
func Bytes(name string, data []byte) *Object {
	return &Object{Name: name, Size: int64(len(data)), Origin: inline(data)}
}

type inline []byte

func (b inline) ReadAt(_ context.Context, _ *Object, p []byte, off int64) (int, error) {
	return bytes.NewReader(b).ReadAt(p, off)
}

// computed makes an object whose bytes are worked out when they are read: fill writes the elements first,
// first+1, ... of an array of count elements of width bytes. dst is a whole number of elements.
func computed(count int64, width int, fill func(ctx context.Context, dst []byte, first int64) error) *Object {
	return &Object{Size: count * int64(width), Origin: array{width: width, fill: fill}}
}

// computedInt64 is computed for little-endian int64.
func computedInt64(count int64, fill func(ctx context.Context, part []int64, first int64) error) *Object {
	return computed(count, 8, func(ctx context.Context, dst []byte, first int64) error {
		part := make([]int64, len(dst)/8)
		if err := fill(ctx, part, first); err != nil {
			return err
		}
		for i, v := range part {
			binary.LittleEndian.PutUint64(dst[8*i:], uint64(v))
		}
		return nil
	})
}

type array struct {
	width int
	fill  func(ctx context.Context, dst []byte, first int64) error
}

func (a array) ReadAt(ctx context.Context, o *Object, p []byte, off int64) (int, error) {
	if off < 0 || off >= o.Size {
		return 0, io.EOF
	}
	n := min(int64(len(p)), o.Size-off)
	w := int64(a.width)
	first, last := off/w, (off+n+w-1)/w // elements that [off, off+n) touches
	if first*w == off && last*w == off+n {
		if err := a.fill(ctx, p[:n], first); err != nil {
			return 0, err
		}
	} else {
		whole := make([]byte, (last-first)*w)
		if err := a.fill(ctx, whole, first); err != nil {
			return 0, err
		}
		copy(p[:n], whole[off-first*w:])
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// readFull reads exactly n bytes of o at off. It checks the range against o's size before it allocates.
func readFull(ctx context.Context, o *Object, off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > o.Size-n {
		return nil, fmt.Errorf("%s: bytes %d to %d are asked for, the file has %d", o.Name, off, off+n, o.Size)
	}
	p := make([]byte, n)
	if err := fill(ctx, o, p, off); err != nil {
		return nil, err
	}
	return p, nil
}

// fill reads all of p, which lies inside o.
func fill(ctx context.Context, o *Object, p []byte, off int64) error {
	if m, err := o.ReadAt(ctx, p, off); m < len(p) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read %s at %d: %w", o.Name, off, err)
	}
	return nil
}
