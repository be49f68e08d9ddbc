package cufile

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/mapped"
	"github.com/hbmfs/hbmfs/internal/source"
)

// bytesMoved is the most that one part of a request moves: it bounds the memory of its pieces, and is so long that the bus
// does not notice the border.
const bytesMoved = 512 << 20

// part is spans of one file.
type part struct {
	file  *File
	spans []source.Span
}

// scatterUnseen moves spans that the GPU may not see yet, of all files at once: by one launch where they are at hand, and else file by file. One that fails
// ends the others. The choice is that of the first bytes.
func scatterUnseen(ctx context.Context, to crew.Destination, parts []part) (total Result, err error) {
	if len(parts) > 1 && to.Form == nil {
		if total, err = scatterTogether(ctx, to, parts); !errors.Is(err, mapped.ErrApart) {
			return total, err
		}
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]Result, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		move := func() {
			var err error
			if results[i], err = p.file.scatter(inner, to, p.spans); err != nil {
				cancel(err) // which keeps the first reason
			}
		}
		if i < len(parts)-1 {
			wg.Go(move)
		} else {
			move()
		}
	}
	wg.Wait()
	if err := context.Cause(inner); err != nil {
		return Result{}, err
	}
	for _, result := range results {
		total.add(result)
	}
	return total, nil
}

// tookRows says what became of rows that the GPU may see, once err is how that went: what was moved, and the spans that were not.
func tookRows(parts []part, rows []mapped.Rows, err error) (total Result, missing []part) {
	for i, p := range parts {
		p.file.seen.Store(err == nil && len(rows[i].Missing) == 0)
	}
	if err != nil {
		return total, nil
	}
	choice := Choice{Mapped, seenWhy}
	for i, p := range parts {
		if len(rows[i].Missing) > 0 {
			missing = append(missing, part{p.file, rows[i].Missing})
		}
		if n := sizeOf(p.spans) - sizeOf(rows[i].Missing); n > 0 {
			moved := Moved{}
			moved.count(Mapped, n)
			p.file.account(moved, choice)
			total.add(Result{moved, choice})
		}
	}
	return total, missing
}

// seesRows says whether the GPU may see rows.
func (r *Reader) seesRows() bool {
	return r.mapped != nil && r.opt.Share == nil && (r.opt.Path == Auto || r.opt.Path == Mapped) && r.mapped.PinnedBytes() > 0
}

// seenRows gives the rows of parts that the GPU may see, small ones of files of one Reader.
func seenRows(parts []part) ([]mapped.Rows, error) {
	r := parts[0].file.r
	if !r.seesRows() {
		return nil, mapped.ErrApart
	}
	rows, size, count := make([]mapped.Rows, len(parts)), int64(0), 0
	for i, p := range parts {
		n := sizeOf(p.spans)
		if n == 0 {
			continue
		}
		placed, ok := p.file.source.(source.Placed)
		if !ok || p.file.r != r || p.file.insideAll(p.spans) != nil { // the caller may have changed them
			return nil, mapped.ErrApart
		}
		of := placed.Map()
		if of == nil {
			return nil, mapped.ErrApart
		}
		rows[i] = mapped.Rows{Of: of, Spans: p.spans}
		size, count = size+n, count+len(p.spans)
	}
	if count == 0 || size > bytesMoved || size/int64(count) >= r.device.CUDA.SmallPieces() {
		return nil, mapped.ErrApart
	}
	return rows, nil
}

// seenWhy is why a request takes the mapped path where nothing else is to be done.
const seenWhy = "its pages are registered with the GPU already"

func sizeOf(spans []source.Span) (n int64) {
	for i := range spans {
		n += spans[i].N
	}
	return n
}

// scatterTogether moves spans of several files whose bytes are open and registered with the GPU. Otherwise nothing was moved, and it
// fails with [mapped.ErrApart]: the way of each file waits for what is missing, and finds what has moved.
func scatterTogether(ctx context.Context, to crew.Destination, parts []part) (total Result, err error) {
	transfers, plans := make([]*transfer, 0, len(parts)), make([]*mapped.Plan, 0, len(parts))
	size := int64(0)
	for _, p := range parts {
		t := &transfer{f: p.file, spans: p.spans}
		if t.size() == 0 {
			continue
		}
		if size += t.size(); size > bytesMoved || p.file.r.mapped == nil {
			return total, mapped.ErrApart
		}
		if t.locate(ctx, false) != nil || t.choice.Path != Mapped || len(t.groups) > 1 || slices.ContainsFunc(t.groups[0].Pieces, inline) {
			return total, mapped.ErrApart
		}
		transfers = append(transfers, t)
		if t.plan == nil {
			t.plan = p.file.r.mapped.Plan(t.groups[0].Pieces)
		}
		plans = append(plans, t.plan)
	}
	if len(transfers) == 0 {
		return total, mapped.ErrApart
	}
	for i, t := range transfers {
		if err := t.holdOpen(); err != nil {
			dropAll(transfers[:i], nil)
			return total, mapped.ErrApart
		}
	}
	_, finished, err := mapped.MoveTogether(ctx, &to, plans)
	dropAll(transfers, finished)
	if err != nil {
		transfers[0].f.r.quiet(finished)
		return Result{}, err
	}
	for _, t := range transfers {
		moved := Moved{}
		moved.count(Mapped, t.size())
		t.f.account(moved, t.choice)
		total.add(Result{moved, t.choice})
	}
	return total, nil
}

// inline says whether the bytes of a piece exist only in the mount.
func inline(p source.Piece) bool { return p.File.Inline }

// holdOpen is hold for a transfer of one group, if its files are open.
func (t *transfer) holdOpen() error {
	return t.f.hold(func() error {
		if !t.f.r.descriptors.PinOpen(t.groups[0].Files) {
			return mapped.ErrApart
		}
		return nil
	})
}

func dropAll(transfers []*transfer, finished <-chan struct{}) {
	for _, t := range transfers {
		t.f.drop(t.groups[0].Files, finished)
	}
}

// scatter moves spans to their places, part by part. It returns when nothing writes to the target any more.
func (f *File) scatter(ctx context.Context, to crew.Destination, spans []source.Span) (Result, error) {
	total := Result{Choice: Choice{f.r.opt.Path, "there is nothing to move"}}
	straight := to.Form == nil && f.r.opt.Path != Direct && f.r.opt.Path != Compat
	for part := range parts(spans, bytesMoved) {
		result, err := Result{}, errArena
		if straight {
			result, err = f.moveTo(ctx, to, part)
		}
		if errors.Is(err, errArena) {
			result, err = f.scatterByArena(ctx, &to, part)
		}
		if err != nil {
			return Result{}, err
		}
		total.add(result)
	}
	return total, nil
}

// scatterByArena brings spans into the arena one after the other, and from there to their places, in the destination's form.
func (f *File) scatterByArena(ctx context.Context, to *crew.Destination, spans []source.Span) (total Result, err error) {
	for part := range parts(spans, f.r.opt.Arena/4/mostElement*mostElement) {
		t := &transfer{f: f, spans: make([]source.Span, len(part))}
		var places []source.Span // of what lies together there as well
		end := int64(0)
		for i, s := range part {
			t.spans[i] = source.Span{Offset: s.Offset, N: s.N, To: end}
			end += s.N
			if last := len(places) - 1; last >= 0 && places[last].To+places[last].N == s.To && (to.Form == nil || to.Form.Row == 0) {
				places[last].N += s.N
			} else {
				places = append(places, s)
			}
		}
		v, err := t.allocate(ctx)
		if err == nil {
			err = t.fill(ctx, v)
		}
		if err != nil {
			return Result{}, err
		}
		err = f.r.widen.Move(ctx, to, v.destination(), places)
		total.add(Result{v.Moved(), v.Choice()})
		v.Release()
		if err != nil {
			return Result{}, err
		}
	}
	return total, nil
}

// parts cuts spans into parts of at most limit bytes, and leaves empty ones out.
func parts(spans []source.Span, limit int64) func(yield func([]source.Span) bool) {
	return func(yield func([]source.Span) bool) {
		if within(spans, limit) {
			yield(spans)
			return
		}
		part, size := []source.Span(nil), int64(0)
		for _, s := range spans {
			for s.N > 0 {
				n := min(s.N, limit-size)
				part, size = append(part, source.Span{Offset: s.Offset, N: n, To: s.To}), size+n
				s = source.Span{Offset: s.Offset + n, N: s.N - n, To: s.To + n}
				if size == limit {
					if !yield(part) {
						return
					}
					part, size = nil, 0
				}
			}
		}
		if size > 0 {
			yield(part)
		}
	}
}

// within says whether spans, of which there are some, and none is empty, are one part.
func within(spans []source.Span, limit int64) bool {
	for i := range spans {
		if limit -= spans[i].N; limit < 0 || spans[i].N == 0 {
			return false
		}
	}
	return len(spans) > 0
}
