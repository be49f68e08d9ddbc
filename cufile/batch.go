package cufile

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hbmfs/hbmfs/cufile/internal/sequences"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Batch is spans of elements, of files of one device. The slices must stay until the request is done.
type Batch struct {
	Files   []*File
	Begins  []int64 // of each file: bytes before its first element; nil: none
	Element int64   // bytes

	Sources []int32 // of each span: the number of its file; nil: the first
	Starts  []int64 // of each: its first element; Unread: nothing is read, and what is there stays
	Lengths []int64 // of each: elements; nil: Length
	Places  []int64 // of each: the element of the memory that it goes to; nil: one behind the other. They must not overlap
	Length  int64
}

// Unread is the start of a span of which nothing is read.
const Unread = -1

// mostElement bounds the bytes of an element.
const mostElement = 16

// BeginBatch starts bringing the spans of a batch to memory of the caller, and writes what the sequences say, if they are not nil. The rest
// is as in BeginGather. Places and lengths count elements as they are read, also where they are widened. Closing one of the files ends the request. Spans and sequences that cannot be may be an error of
// the request.
func BeginBatch(ctx context.Context, to Target, b *Batch, s *Sequences) (*Request, error) {
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
	var also *sequences.Writing
	check := func() error {
		err := b.check(&to)
		if err == nil && s != nil {
			also, err = r.sequences.Prepare(s, to.Memory)
		}
		return err
	}
	locate := func(s *scattering) (err error) {
		s.also = also
		s.to = r.destination(to.Pointer, to.Length, s.after)
		if s.to.Form, err = r.form(&to, b.Element, b.row(&to), s.after); err != nil {
			return err
		}
		spans, _ := r.spans.Get().(*[]source.Span)
		if spans == nil {
			spans = new([]source.Span)
		}
		*spans = slices.Grow((*spans)[:0], len(b.Starts))
		s.end = func() { r.spans.Put(spans) }
		s.parts, err = b.parts(&to, *spans)
		return err
	}
	return begin(ctx, files, &to, check, locate)
}

// check refuses a batch that cannot be, before anything is written.
func (b *Batch) check(to *Target) error {
	r, n := b.Files[0].r, len(b.Starts)
	switch {
	case b.Element < 1 || b.Element > mostElement:
		return fmt.Errorf("%w: elements of %d bytes cannot be", ErrMemory, b.Element)
	case b.Begins != nil && len(b.Begins) != len(b.Files), b.Sources != nil && len(b.Sources) != n, b.Lengths != nil && len(b.Lengths) != n, b.Places != nil && len(b.Places) != n:
		return fmt.Errorf("%w: the arrays of %d spans of %d files have other lengths", ErrMemory, n, len(b.Files))
	}
	if to.Targets != (Memory{}) && (b.Lengths != nil || b.Places != nil) {
		return fmt.Errorf("%w: targets are of equal rows, one behind the other", ErrMemory)
	}
	form, err := r.form(to, b.Element, b.row(to), 0)
	if err != nil {
		return err
	}
	for _, f := range b.Files {
		if f.r.opt.Device != r.opt.Device {
			return fmt.Errorf("read %s: %w: it is of another device's reader than %s", f.name, ErrMemory, b.Files[0].name)
		}
	}
	if b.behind() {
		if n == 0 {
			return nil
		}
	} else if some, err := b.each(to, nil); err != nil || !some {
		return err
	}
	if form != nil && form.Row > 0 {
		if err := r.checkMemory(to.Targets); err != nil {
			return err
		}
	}
	return r.checkMemory(to.Memory)
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

// behind says whether spans are of one file, and lie one behind the other. The request looks at these: it would cost the caller's thread as much as
// all else that a begin does.
func (b *Batch) behind() bool { return b.Sources == nil && b.Places == nil && b.Lengths != nil }

// spans appends those of a batch that are one behind the other, in bytes. It gives false where some are not inside of their file and of the
// memory; each takes three times as long, and says which.
func (b *Batch) spans(to *Target, list []source.Span) ([]source.Span, bool) {
	limit, begin, left, wrong := b.limit(0), b.begin(0), b.room(to), int64(0)
	room, starts := left, b.Starts[:len(b.Lengths)]
	for i, n := range b.Lengths {
		start := starts[i]
		if start >= 0 && n > 0 {
			list = append(list, source.Span{Offset: begin + start*b.Element, N: n * b.Element, To: (room - left) * b.Element})
		}
		left -= n
		wrong |= n | left | (start - Unread) | (limit - n - start) // below 0 if one of them is
	}
	return list, wrong >= 0
}

// parts gives the spans of each file, in bytes. They go to all, which has room for as many as there are.
func (b *Batch) parts(to *Target, all []source.Span) ([]part, error) {
	if b.behind() {
		if spans, ok := b.spans(to, all); ok {
			return []part{{b.Files[0], spans}}, nil
		}
	}
	list := make([]part, len(b.Files))
	counts := make([]int, len(b.Files))
	for _, k := range b.Sources {
		if k >= 0 && int(k) < len(counts) { // else it was changed meanwhile, which each will find
			counts[k]++
		}
	}
	if b.Sources == nil {
		counts[0] = len(b.Starts)
	}
	for k, f := range b.Files {
		list[k], all = part{f, all[:0:counts[k]]}, all[counts[k]:counts[k]]
	}
	_, err := b.each(to, list)
	return list, err
}

// each refuses spans that are not inside of their file, or of the memory. With a list it appends the others to those of their file. It says whether
// there is something to read.
func (b *Batch) each(to *Target, list []part) (some bool, err error) {
	limits, room := make([]int64, len(b.Files)), b.room(to)
	for k := range limits {
		limits[k] = b.limit(k)
	}
	sources, lengths, places := b.Sources, b.Lengths, b.Places
	k, n, end, limit := int32(0), b.Length, int64(0), limits[0]
	for i, start := range b.Starts {
		place := end
		if sources != nil {
			if k = sources[i]; k < 0 || int(k) >= len(limits) {
				return false, fmt.Errorf("%w: a span is of file %d, of %d", ErrMemory, k, len(limits))
			}
			limit = limits[k]
		}
		if lengths != nil {
			n = lengths[i]
		}
		if places != nil {
			place = places[i]
		}
		if n < 0 || place < 0 || place > room-n {
			return false, fmt.Errorf("read %s: %w: %d elements do not fit at %d of %d", b.Files[k].name, ErrMemory, n, place, room)
		}
		if start != Unread && (start < 0 || start > limit-n) {
			return false, fmt.Errorf("read %s: %d elements from element %d on are not inside of it: %w", b.Files[k].name, n, start, ErrOutOfRange)
		}
		if end = place + n; start == Unread || n == 0 {
			continue
		}
		if some = true; list != nil {
			list[k].spans = append(list[k].spans, source.Span{Offset: b.begin(int(k)) + start*b.Element, N: n * b.Element, To: place * b.Element})
		}
	}
	return some, nil
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
