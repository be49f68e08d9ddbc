package layout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sort"
	"time"
)

// Extent is one contiguous run of a file's bytes: where it is in the file and where it lies.
type Extent struct {
	Logical int64 // offset in the file, bytes
	Length  int64 // bytes
	Object  *Object
	Offset  int64 // offset in Object, bytes
}

// Body says where the bytes of a file lie: extents in order, without gaps or overlap. Equally spaced extents
// (fixed-size samples between headers) take the room of one, so a body stays small where the layout is regular.
// The zero value is empty. A Body is built by one goroutine and is immutable once others see it.
type Body struct {
	runs []run
	size int64
}

// run is count pieces of length bytes, stride bytes apart in obj.
type run struct {
	logical int64
	obj     *Object
	offset  int64
	length  int64
	stride  int64
	count   int64
}

// Size returns the bytes of the body.
func (b *Body) Size() int64 { return b.size }

// Runs returns how many runs the body takes, which is what its memory grows with.
func (b *Body) Runs() int { return len(b.runs) }

// Add appends the length bytes of o at offset. Bytes that continue the last extent are merged into it. The caller has
// checked the range against o's size; Add panics on one that is out of it.
func (b *Body) Add(o *Object, offset, length int64) { b.AddStrided(o, offset, length, length, 1) }

// AddStrided appends count pieces of length bytes each, the first at offset, each stride bytes after the one before.
// A stride below the length would overlap: AddStrided panics on it, as on a range outside o.
func (b *Body) AddStrided(o *Object, offset, length, stride, count int64) {
	if length == 0 || count == 0 {
		return
	}
	if offset < 0 || length < 0 || count < 0 || stride < length || offset > o.Size-length ||
		(count-1) > (o.Size-length-offset)/stride {
		panic(fmt.Sprintf("layout: internal error: %d x %d bytes at %d of %s, which has %d", count, length, offset, o.Name, o.Size))
	}
	if stride == length { // contiguous after all
		length, count = length*count, 1
		stride = length
	}
	if n := len(b.runs); n > 0 && count == 1 {
		if last := &b.runs[n-1]; last.count == 1 && last.obj == o && last.offset+last.length == offset {
			last.length += length
			last.stride = last.length
			b.size += length
			return
		}
	}
	b.runs = append(b.runs, run{b.size, o, offset, length, stride, count})
	b.size += length * count
}

// AddBody appends all of c.
func (b *Body) AddBody(c *Body) {
	for _, r := range c.runs {
		b.AddStrided(r.obj, r.offset, r.length, r.stride, r.count)
	}
}

// Extents yields the extents that cover [off, off+n) of the body, cut to it, in order.
func (b *Body) Extents(off, n int64) iter.Seq[Extent] {
	return func(yield func(Extent) bool) {
		end := min(b.size, off+n)
		if off < 0 || n <= 0 || off >= end {
			return
		}
		i := sort.Search(len(b.runs), func(i int) bool { return b.runs[i].logical > off }) - 1
		for ; off < end; i++ {
			r := &b.runs[i]
			for k := (off - r.logical) / r.length; k < r.count && off < end; k++ {
				skip := off - r.logical - k*r.length
				m := min(r.length-skip, end-off)
				if !yield(Extent{off, m, r.obj, r.offset + k*r.stride + skip}) {
					return
				}
				off += m
			}
		}
	}
}

// Whole returns the object that the body presents from its first byte to its last, or nil when it is anything else.
func (b *Body) Whole() *Object {
	if len(b.runs) == 1 && b.runs[0].count == 1 && b.runs[0].offset == 0 && b.runs[0].length == b.runs[0].obj.Size {
		return b.runs[0].obj
	}
	return nil
}

// ErrShort says that an object has fewer bytes than it was listed with. A reader gets it instead of a short read.
var ErrShort = errors.New("the object is shorter than it was when it was listed")

// ReadAt fills p from off. Only the end of the body makes n < len(p), with io.EOF: bytes that an object owes but
// does not give are an error that wraps [ErrShort].
func (b *Body) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at the negative offset %d", off)
	}
	n := 0
	for e := range b.Extents(off, int64(len(p))) {
		m, err := e.Object.ReadAt(ctx, p[n:n+int(e.Length)], e.Offset)
		n += m
		if int64(m) < e.Length {
			if err == nil || errors.Is(err, io.EOF) {
				err = ErrShort
			}
			return n, fmt.Errorf("read %q at %d: %w", e.Object.Name, e.Offset+int64(m), err)
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// File is what a mount shows: a name, a body, and what its elements are.
type File struct {
	Name    string // slash-separated, relative to the directory that shows it
	Body    Body
	ModTime time.Time
	DType   DType // of the payload; DTypeUnknown where it has none
	Tokens  int64 // elements of the payload, -1 where unknown
}

// Size returns the file's bytes.
func (f *File) Size() int64 { return f.Body.Size() }

// Alignment returns the largest power of two, at most 1 MiB, that divides the offset of every extent in its object: what
// a reader that wants aligned I/O can count on. An empty body is aligned to 1 MiB.
func (b *Body) Alignment() int64 {
	const most = 1 << 20
	bits := int64(most)
	for _, r := range b.runs {
		bits |= r.offset
		if r.count > 1 {
			bits |= r.stride
		}
	}
	return bits & -bits
}
