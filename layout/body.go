package layout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sort"
	"time"
)

// Extent is consecutive bytes of one object: where they are in the file and where they lie.
type Extent struct {
	Logical int64 // offset in the file, bytes
	Length  int64 // bytes
	Object  *Object
	Offset  int64 // offset in Object, bytes
}

// Body says where the bytes of a file lie: runs in order, without gaps or overlap. Equal pieces a stride apart
// (fixed-size samples between headers) take the room of one, so a body stays small where the layout is regular. Runs of
// many different lengths are packed into some bytes each.
// The zero value is empty. A Body is built by one goroutine and is immutable once others see it.
type Body struct {
	packed packedRuns
	runs   []Run // behind them
	size   int64
}

// Run is Count pieces of Length bytes each: piece k is at Logical + k*Length of the file, and at Offset + k*Stride of
// Object.
type Run struct {
	Logical int64
	Object  *Object
	Offset  int64
	Length  int64
	Stride  int64
	Count   int64
}

// decoded says whether bytes of the body are decoded ones, which lie in no file.
func (b *Body) decoded() bool {
	for _, r := range b.from(0) {
		if r.Object.Synthesized() {
			return true
		}
	}
	return false
}

// Size returns the bytes of the body.
func (b *Body) Size() int64 { return b.size }

// Runs returns how many runs the body takes. Its memory grows with them.
func (b *Body) Runs() int { return b.packed.count + len(b.runs) }

// Add appends the length bytes of o at offset. Bytes that continue the last run are merged into it. The caller has
// checked the range against o's size; Add panics on one that is out of it.
func (b *Body) Add(o *Object, offset, length int64) { b.AddStrided(o, offset, length, length, 1) }

// addWhole appends all of o.
func (b *Body) addWhole(o *Object) { b.Add(o, 0, o.Size) }

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
		if last := &b.runs[n-1]; last.Count == 1 && last.Object == o && last.Offset+last.Length == offset {
			last.Length += length
			last.Stride = last.Length
			b.size += length
			return
		}
	}
	if len(b.runs) == 2*runsApart { // all but the last, which may grow
		b.packed.add(b.runs[:2*runsApart-1])
		b.runs = append(b.runs[:0], b.runs[2*runsApart-1])
	}
	b.runs = append(b.runs, Run{b.size, o, offset, length, stride, count})
	b.size += length * count
}

// AddBody appends all of c.
func (b *Body) AddBody(c *Body) {
	for _, r := range c.from(0) {
		b.AddStrided(r.Object, r.Offset, r.Length, r.Stride, r.Count)
	}
}

// clip gives room back that no more runs will need.
func (b *Body) clip() {
	b.packed.bytes, b.packed.marks = slices.Clone(b.packed.bytes), slices.Clone(b.packed.marks)
}

// from yields the runs with their numbers, from the one that has the byte at off.
func (b *Body) from(off int64) iter.Seq2[int, Run] {
	return func(yield func(int, Run) bool) {
		first := sort.Search(len(b.runs), func(i int) bool { return b.runs[i].Logical > off }) - 1
		if first < 0 {
			for i, r := range b.packed.from(off) {
				if !yield(i, r) {
					return
				}
			}
		}
		for i := max(0, first); i < len(b.runs); i++ {
			if !yield(b.packed.count+i, b.runs[i]) {
				return
			}
		}
	}
}

// within yields the runs that touch [off, off+n), and where that range ends in the body.
func (b *Body) within(off, n int64) (runs iter.Seq2[int, Run], end int64) {
	if off < 0 || n <= 0 || off >= b.size {
		return func(func(int, Run) bool) {}, 0
	}
	end = off + min(n, b.size-off)
	return func(yield func(int, Run) bool) {
		for i, r := range b.from(off) {
			if r.Logical >= end || !yield(i, r) {
				return
			}
		}
	}, end
}

// Extents yields the extents that cover [off, off+n) of the body, cut to it, in order.
func (b *Body) Extents(off, n int64) iter.Seq[Extent] {
	return func(yield func(Extent) bool) {
		runs, end := b.within(off, n)
		for _, r := range runs {
			for k := (off - r.Logical) / r.Length; k < r.Count && off < end; k++ {
				skip := off - r.Logical - k*r.Length
				m := min(r.Length-skip, end-off)
				if !yield(Extent{off, m, r.Object, r.Offset + k*r.Stride + skip}) {
					return
				}
				off += m
			}
		}
	}
}

// RunsWithin yields the runs that cover [off, off+n) of the body, cut to it, in order. A run of many pieces of which the
// range takes a part of the first or last comes as up to three.
func (b *Body) RunsWithin(off, n int64) iter.Seq[Run] {
	return func(yield func(Run) bool) {
		runs, end := b.within(off, n)
		for _, r := range runs {
			for piece := range r.pieces(off, end) {
				if !yield(piece) {
					return
				}
			}
		}
	}
}

// CountWithin returns how many runs RunsWithin yields. It takes no longer for more of them.
func (b *Body) CountWithin(off, n int64) (count int64) {
	runs, end := b.within(off, n)
	for first, r := range runs {
		for range r.pieces(off, end) {
			count++
		}
		for last, r := range b.from(end - 1) {
			if last > first { // those between are whole
				count += int64(last - first - 1)
				for range r.pieces(off, end) {
					count++
				}
			}
			break
		}
		break
	}
	return count
}

// pieces yields the parts of a run within [off, end): regular ones, up to three.
func (r Run) pieces(off, end int64) iter.Seq[Run] {
	return func(yield func(Run) bool) {
		for piece, rest := r.cut(off, end); piece.Count > 0; piece, rest = rest.cut(off, end) {
			if !yield(piece) {
				return
			}
		}
	}
}

// cut takes the first run off r that lies within [off, end) and is regular: part of a piece, or whole pieces. rest is
// the other pieces of r. Either may be empty, with no pieces.
func (r Run) cut(off, end int64) (piece, rest Run) {
	if skip := (off - r.Logical) / r.Length; skip > 0 { // pieces before the range
		skip = min(skip, r.Count)
		r = r.from(skip)
	}
	if r.Count == 0 || r.Logical >= end {
		return Run{}, Run{}
	}
	rest = r.from(1)
	if head := max(0, off-r.Logical); head > 0 || end-r.Logical < r.Length {
		length := min(r.Length, end-r.Logical) - head
		return Run{r.Logical + head, r.Object, r.Offset + head, length, length, 1}, rest
	}
	whole := min(r.Count, (end-r.Logical)/r.Length)
	piece, rest = r, r.from(whole)
	piece.Count = whole
	if whole == 1 {
		piece.Stride = piece.Length
	}
	return piece, rest
}

// from returns r without its first n pieces.
func (r Run) from(n int64) Run {
	r.Logical += n * r.Length
	r.Offset += n * r.Stride
	r.Count -= n
	return r
}

// Whole returns the object that the body presents from its first byte to its last, or nil when it is anything else.
func (b *Body) Whole() *Object {
	if b.Runs() == 1 && b.runs[0].Count == 1 && b.runs[0].Offset == 0 && b.runs[0].Length == b.runs[0].Object.Size {
		return b.runs[0].Object
	}
	return nil
}

// ErrShort says that an object has fewer bytes than it was listed with. A reader gets it instead of a short read.
var ErrShort = errors.New("the object is shorter than it was when it was listed")

// ReadAt fills p from off. Only the end of the body makes n < len(p), with io.EOF. An object that gives fewer bytes
// than it has is an error that wraps [ErrShort].
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

// File is a file of a mount: a name, a body, and the type of its elements.
type File struct {
	Name    string // slash-separated, relative to the directory that shows it
	Body    Body
	ModTime time.Time
	DType   DType // of the payload; DTypeUnknown where it has none
	Guessed bool  // the values of the source's files alone show DType
	Tokens  int64 // elements of the payload, -1 where unknown
}

// Size returns the file's bytes.
func (f *File) Size() int64 { return f.Body.Size() }

// Alignment returns the largest power of two, at most 1 MiB, that divides the offset of every extent in its object. A
// reader that wants aligned I/O can count on it. An empty body is aligned to 1 MiB.
func (b *Body) Alignment() int64 {
	const most = 1 << 20
	bits := int64(most)
	for _, r := range b.from(0) {
		bits |= r.Offset
		if r.Count > 1 {
			bits |= r.Stride
		}
	}
	return bits & -bits
}
