package cufile

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Batch is spans of elements, of files of one device. The slices must stay until the request is done.
type Batch struct {
	Files   []*File
	Begins  []int64 // of each file: bytes before its first element; nil: none
	Element int64   // bytes

	Sources []int32 // of each span: the number of its file; nil: the first
	Starts  []int64 // of each: its first element; Unread: nothing is read, and the memory stays as it is
	Lengths []int64 // of each: elements; nil: Length
	Places  []int64 // of each: the element of the memory that it goes to; nil: one behind the other. They must not overlap
	Length  int64
}

// Unread is the start of a span of which nothing is read.
const Unread = -1

// mostElement bounds the bytes of an element.
const mostElement = 16

// BeginBatch starts bringing the spans of a batch to memory of the caller, and writes the sequences' outputs, if they are not nil. The rest is as in BeginGather. Places and lengths count elements as
// they are read, also where they are widened. Closing one of the files ends the request. Spans and sequences that cannot be are an error of the request.
func BeginBatch(ctx context.Context, to Target, b *Batch, said *Sequences) (*Request, error) {
	if len(b.Files) == 0 {
		return nil, fmt.Errorf("%w: no file is given", ErrMemory)
	}
	files := make([]*File, 0, len(b.Files))
	for _, f := range b.Files {
		if !slices.Contains(files, f) {
			files = append(files, f)
		}
	}
	r := files[0].r
	s := &scattering{r: r, files: files, many: len(b.Starts) >= manySpans}
	s.locate = func() ([]part, error) { return b.parts(&to, s.memory(len(b.Starts))) }
	return s.begin(ctx, to.Stream, func() (err error) {
		if s.to, err = b.check(&to); err != nil || said == nil {
			return err
		}
		if r.device.CUDA != nil && s.to.Host != nil { // pinned memory of the host, and sequences are written to the device's own
			if err = r.checkMemory(to.Memory); err != nil {
				return err
			}
		}
		s.also, err = r.sequences.Prepare(said, to.Memory)
		return err
	})
}

// check refuses a batch that cannot be, before anything is written. The request looks at its spans.
func (b *Batch) check(to *Target) (d crew.Destination, err error) {
	r, n := b.Files[0].r, len(b.Starts)
	switch {
	case b.Element < 1 || b.Element > mostElement:
		return d, fmt.Errorf("%w: elements of %d bytes cannot be", ErrMemory, b.Element)
	case b.Begins != nil && len(b.Begins) != len(b.Files), b.Sources != nil && len(b.Sources) != n, b.Lengths != nil && len(b.Lengths) != n, b.Places != nil && len(b.Places) != n:
		return d, fmt.Errorf("%w: the arrays of %d spans of %d files have other lengths", ErrMemory, n, len(b.Files))
	case to.Targets != (Memory{}) && (b.Lengths != nil || b.Places != nil):
		return d, fmt.Errorf("%w: targets are of equal rows, one behind the other", ErrMemory)
	}
	for _, f := range b.Files {
		if f.r.opt.Device != r.opt.Device {
			return d, fmt.Errorf("read %s: %w: it is of another device's reader than %s", f.name, ErrMemory, b.Files[0].name)
		}
	}
	if d, err = r.destination(to, b.Element, b.row(to)); err != nil || !slices.ContainsFunc(b.Starts, func(start int64) bool { return start != Unread }) {
		return d, err
	}
	if d.Form != nil && d.Form.Row > 0 {
		err = r.checkMemory(to.Targets)
	}
	if err == nil {
		err = r.checkOutput(&d, to.Memory)
	}
	return d, err
}

// row is how many elements of a row are read where there is a second output, else 0.
func (b *Batch) row(to *Target) int64 {
	if to.Targets == (Memory{}) {
		return 0
	}
	return b.Length
}

// room is how many elements may be read to the memory.
func (b *Batch) room(to *Target) int64 {
	size, row := to.Widen.Size(b.Element), b.row(to)
	if row == 0 {
		return to.Length / size
	}
	room := min(to.Length, to.Targets.Length) / size
	if row > 1 {
		room /= row - 1
	}
	if room > math.MaxInt64/row {
		return math.MaxInt64
	}
	return room * row
}

// parts gives the spans of each file that are to be read, in bytes. They go to all, which has room for as many as there are. It refuses spans that are
// not inside of their file, or of the memory.
func (b *Batch) parts(to *Target, all []source.Span) ([]part, error) {
	list, limits, room := make([]part, len(b.Files)), make([]int64, len(b.Files)), b.room(to)
	counts := make([]int, len(b.Files))
	for _, k := range b.Sources {
		if k < 0 || int(k) >= len(counts) {
			return nil, fmt.Errorf("%w: a span is of file %d, of %d", ErrMemory, k, len(counts))
		}
		counts[k]++
	}
	if b.Sources == nil {
		counts[0] = len(b.Starts)
	}
	for k, f := range b.Files {
		list[k], all, limits[k] = part{file: f, spans: all[:0:counts[k]]}, all[counts[k]:counts[k]], b.limit(k)
	}
	lengths, places, k, n, end := b.Lengths, b.Places, 0, b.Length, int64(0)
	spans, limit, begin := list[0].spans, limits[0], b.begin(0)
	for i, start := range b.Starts {
		if b.Sources != nil && int(b.Sources[i]) != k {
			list[k].spans = spans
			k = min(max(int(b.Sources[i]), 0), len(list)-1) // it may have been changed meanwhile
			spans, limit, begin = list[k].spans, limits[k], b.begin(k)
		}
		place := end
		if lengths != nil {
			n = lengths[i]
		}
		if places != nil {
			place = places[i]
		}
		if n < 0 || place < 0 || place > room-n {
			return nil, fmt.Errorf("read %s: %w: %d elements do not fit at %d of %d", b.Files[k].name, ErrMemory, n, place, room)
		}
		if start != Unread && (start < 0 || start > limit-n) {
			return nil, fmt.Errorf("read %s: %d elements from element %d on are not inside of it: %w", b.Files[k].name, n, start, ErrOutOfRange)
		}
		if end = place + n; start != Unread && n > 0 {
			spans = append(spans, source.Span{Offset: begin + start*b.Element, N: n * b.Element, To: place * b.Element})
		}
	}
	list[k].spans = spans
	return list, nil
}

// limit is how many elements a file has; -1 where it begins behind its end.
func (b *Batch) limit(k int) int64 {
	if begin, size := b.begin(k), b.Files[k].Size(); begin >= 0 && begin <= size {
		return (size - begin) / b.Element
	}
	return -1
}

// begin is how many bytes a file has before its first element.
func (b *Batch) begin(k int) int64 {
	if b.Begins == nil {
		return 0
	}
	return b.Begins[k]
}
