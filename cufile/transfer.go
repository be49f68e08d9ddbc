package cufile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/copied"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/mapped"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Read brings the file's [offset, offset+n) into memory. Bytes that the file does not have are refused with ErrOutOfRange.
func (f *File) Read(ctx context.Context, offset, n int64) (*View, error) {
	return f.Gather(ctx, []int64{offset}, n)
}

// Gather brings the spans of length bytes that begin at offsets into memory, one after the other: a [N, length]
// tensor. Spans may overlap and come in any order.
func (f *File) Gather(ctx context.Context, offsets []int64, length int64) (*View, error) {
	spans, err := f.rows(nil, offsets, length)
	if err != nil {
		return nil, err
	}
	return f.gather(ctx, spans)
}

// GatherSpans is Gather of spans of different lengths.
func (f *File) GatherSpans(ctx context.Context, spans []Span) (*View, error) {
	return f.gather(ctx, spansOf(spans))
}

func (f *File) gather(ctx context.Context, spans []source.Span) (*View, error) {
	v, err := f.reserve(ctx, spans)
	if err != nil {
		return nil, err
	}
	return f.fill(ctx, v, spans)
}

// reserve takes memory of the arena for spans that land there one after the other, after it has checked them. Nothing is under way when it fails.
func (f *File) reserve(ctx context.Context, spans []source.Span) (*View, error) {
	if err := f.insideAll(spans); err != nil {
		return nil, err
	}
	total, arena := int64(0), f.r.arena.Size()
	for i := range spans {
		if spans[i].N > arena-total {
			return nil, fmt.Errorf("read %s: %w: %d spans do not fit into the arena of %d: read less at a time, use Stream, or make the arena larger",
				f.name, ErrTooLarge, len(spans), arena)
		}
		spans[i].To = total
		total += spans[i].N
	}
	return f.r.view(ctx, total)
}

// view takes memory of the arena for n bytes, and for the pages around them where cuFile may read these, if that is not too much.
func (r *Reader) view(ctx context.Context, n int64) (v *View, err error) {
	if v = (&View{r: r, n: n}); n == 0 {
		return v, nil
	}
	v.reserved = driver.RoundUp(n, driver.PageSize)
	if o := &r.opt; o.Path == Direct || o.Path == Compat || o.Path == Auto && len(o.Probe) > 0 {
		v.reserved = max(v.reserved, min(v.reserved+driver.PageSize, r.arena.Size()))
	}
	v.at, err = r.arena.Reserve(ctx, v.reserved)
	return v, err
}

// fill brings spans into a view that was reserved. Where that fails it releases the view, once nothing writes there any more.
func (f *File) fill(ctx context.Context, v *View, spans []source.Span) (*View, error) {
	s := &scattering{r: f.r, files: []*File{f}, to: *v.destination(), parts: []part{{f, spans, v}}}
	q, err := s.begin(ctx, nil, nil)
	if err != nil {
		v.Release()
		return nil, err
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		select {
		case <-q.done:
		case <-time.After(crew.Grace):
			f.r.stuck.Go(func() {
				<-q.done
				v.Release()
			})
			return nil, ctx.Err()
		}
	}
	if q.err != nil {
		v.Release()
		return nil, q.err
	}
	v.moved, v.choice = q.result.Moved, q.result.Choice
	return v, nil
}

// transfer is spans of a file on their way, which may not be registered.
type transfer struct {
	Result

	f    *File
	to   crew.Destination
	view *View // whose memory that is; nil for memory of the caller
	cold bool  // the bytes that are moved now are not in the page cache
}

// run moves spans by groups of the files that hold them. When it returns, also with an error, nothing is under way.
func (t *transfer) run(ctx context.Context, spans []source.Span) error {
	err := t.f.eachGroup(ctx, spans, func(pieces []source.Piece, first, inMount bool) error {
		source.Announce(ctx, t.f.source, t.f.r.descriptors, pieces)
		if first {
			t.Result = Result{}
			if t.view != nil {
				t.view.skew = 0
				t.to = *t.view.destination()
			}
		}
		return t.moveGroup(ctx, pieces, first, inMount)
	})
	if err == nil {
		t.f.account(t.Moved, t.Choice)
	}
	return err
}

// eachGroup calls fn with the pieces of spans, group by group, while their backing files are open. It begins again where they have moved meanwhile.
func (f *File) eachGroup(ctx context.Context, spans []source.Span, fn func(pieces []source.Piece, first, inMount bool) error) error {
	h := f.r.descriptors
	return f.retryMoved(ctx, func(inMount bool) error {
		if f.r.gate.IsShut() {
			return fmt.Errorf("read %s: %w", f.name, ErrClosed)
		}
		pieces, err := source.Pieces(ctx, f.source, spans, inMount)
		if err == nil {
			err = source.Changed(pieces)
		}
		if err != nil {
			return err
		}
		for i, g := range source.Split(pieces, h.Share()) {
			if err := h.Pinned(ctx, g.Files, func() error { return fn(g.Pieces, i == 0, inMount) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// retryMoved calls do, which needs to know where bytes lie, and calls it again where a cache has moved them meanwhile. Where
// that goes on, or no more files are lent, it says inMount: then do reads through the mount, which finds them anywhere. Nothing of do
// may be under way when it returns ErrMoved or ErrCrowded.
func (f *File) retryMoved(ctx context.Context, do func(inMount bool) error) error {
	const times = 3
	for range times {
		err := do(false)
		moved := errors.Is(err, source.ErrMoved)
		if !moved && errors.Is(err, source.ErrCrowded) {
			break
		}
		m, ok := f.source.(source.Movable)
		if !ok || !moved {
			return err
		}
		if err := m.Relocate(ctx); err != nil {
			return err
		}
	}
	return do(true)
}

// moveGroup moves pieces by the path that is chosen for them. It stages them where Auto chose to map files that CUDA does not register. The
// driver, the file system or a limit may be against that, and nothing tells before.
func (t *transfer) moveGroup(ctx context.Context, pieces []source.Piece, first, inMount bool) (err error) {
	choice, cold, err := t.f.chooseFor(ctx, &t.to, pieces)
	if err != nil {
		return err
	}
	t.cold = cold
	switch {
	case inMount:
		choice.Why += "; read through the mount: its backing files could not be had"
	case t.f.note != "":
		choice.Why += "; " + t.f.note
	}
	before := t.Moved
	err = t.move(ctx, choice.Path, pieces)
	if t.f.r.opt.Path == Auto && errors.Is(err, mapped.ErrUnmapped) {
		t.Moved, choice = before, Choice{t.byThreads(), "the GPU cannot be shown the page cache; " + err.Error()}
		err = t.move(ctx, choice.Path, pieces)
	}
	if first {
		t.Choice = choice
	}
	return err
}

// errArena says that a path cannot write to the caller's memory: cuFile wants memory that it was shown before.
var errArena = errors.New("cufile: internal error: this path moves by way of the arena")

// move brings pieces to the destination by a path, and counts them. Bytes that exist only in the mount can be read, but neither mapped for the
// GPU nor given to cuFile.
func (t *transfer) move(ctx context.Context, path Path, pieces []source.Piece) error {
	byCuFile := path == Direct || path == Compat
	if t.view == nil && byCuFile {
		return errArena
	}
	if path == Staged || path == Host {
		return t.stage(ctx, pieces)
	}
	here := pieces
	if slices.ContainsFunc(pieces, inline) {
		here = slices.DeleteFunc(slices.Clone(pieces), inline)
		mount := slices.DeleteFunc(slices.Clone(pieces), func(p source.Piece) bool { return !inline(p) })
		if err := t.stage(ctx, mount); err != nil {
			return err
		}
	}
	if byCuFile {
		n, err := t.f.r.direct.Move(ctx, &t.to, here, t.envelope(here))
		t.Moved.count(path, n)
		return err
	}
	o := &t.f.r.opt
	if o.Path == Auto && o.Reuse && t.f.r.mapped.Full(here) {
		return t.stage(ctx, here)
	}
	left, err := t.f.r.mapped.Move(ctx, &t.to, here, o.Path == Auto && o.Reuse)
	if err != nil {
		return err
	}
	t.Moved.count(Mapped, source.BytesOf(here)-source.BytesOf(left))
	return t.stage(ctx, left)
}

// envelope says that the one piece of a view is read as the aligned pages around it, which begin so many bytes before; -1 where there is no room.
func (t *transfer) envelope(pieces []source.Piece) int64 {
	v := t.view
	if len(pieces) != 1 || pieces[0].N != v.n {
		return -1
	}
	skew := pieces[0].Offset % driver.PageSize
	if driver.RoundUp(skew+v.n, driver.PageSize) > v.reserved {
		return -1
	}
	v.skew = skew
	t.to = *v.destination()
	return skew
}

// byThreads is the path of pieces that the reader's threads move.
func (t *transfer) byThreads() Path {
	if t.to.Host != nil {
		return Host
	}
	return Staged
}

// stage moves pieces by way of memory of the host, or to it.
func (t *transfer) stage(ctx context.Context, pieces []source.Piece) error {
	if len(pieces) == 0 {
		return nil
	}
	r, path := t.f.r, t.byThreads()
	n, err := r.staged.Move(ctx, &t.to, pieces, t.cold, func() int { return t.f.readers(ctx) })
	t.Moved.count(path, n) // with an error it counts for nothing
	if err == nil && r.copied != nil && n < copied.SmallRow*int64(len(pieces)) {
		err = r.copied.Map(pieces)
	}
	return err
}

// inline says whether the bytes of a piece exist only in the mount.
func inline(p source.Piece) bool { return p.File.Inline }

// rows appends spans of length bytes that land one after the other. It refuses a negative length with ErrOutOfRange, also where there are no offsets.
func (f *File) rows(list []source.Span, offsets []int64, length int64) ([]source.Span, error) {
	if length < 0 {
		return nil, fmt.Errorf("read %s: a length of %d bytes: %w", f.name, length, ErrOutOfRange)
	}
	for i, offset := range offsets {
		list = append(list, source.Span{Offset: offset, N: length, To: int64(i) * length})
	}
	return list, nil
}

// spansOf gives spans whose places are not known yet.
func spansOf(spans []Span) []source.Span {
	list := make([]source.Span, len(spans))
	for i, s := range spans {
		list[i] = source.Span{Offset: s.Offset, N: s.Length}
	}
	return list
}

// insideAll refuses spans that the file does not have, with ErrOutOfRange.
func (f *File) insideAll(spans []source.Span) error {
	size := f.Size()
	for i := range spans {
		if s := &spans[i]; s.Offset < 0 || s.N < 0 || s.Offset > size || s.N > size-s.Offset {
			return fmt.Errorf("read %s: %d bytes at %d are not inside its %d: %w", f.name, s.N, s.Offset, size, ErrOutOfRange)
		}
	}
	return nil
}
