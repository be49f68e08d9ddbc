package cufile

import (
	"context"
	"errors"
	"sync"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/mapped"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// bytesMoved is the most that one part of a request moves: it bounds the memory of its pieces, and is so long that the bus
// does not notice the border.
const bytesMoved = 512 << 20

// part is spans of one file.
type part struct {
	file  *File
	spans []source.Span
}

// scatterUnseen moves spans that the GPU may not see yet, of all files at once. One that fails ends the others. The choice is that of the first bytes.
func scatterUnseen(ctx context.Context, to crew.Destination, parts []part) (total Result, err error) {
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
	return r.mapped != nil && r.mapped.PinnedBytes() > 0
}

// seenRows gives the rows of parts that the GPU may see, small ones of files of Readers that share registrations.
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
		of := p.file.r
		if !ok || !r.mapped.Shares(of.mapped) || of.opt.Path != Auto && of.opt.Path != Mapped || p.file.insideAll(p.spans) != nil { // the caller may have changed them
			return nil, mapped.ErrApart
		}
		places := placed.Map()
		if places == nil {
			return nil, mapped.ErrApart
		}
		rows[i] = mapped.Rows{Of: places, Watch: of.descriptors.Watch(), Spans: p.spans}
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
