package cufile

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/hbmfs/hbmfs/cufile/internal/copied"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/mapped"
	"github.com/hbmfs/hbmfs/cufile/internal/sequences"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// bytesMoved is the most that one part of a request moves: it bounds the memory of its pieces, and is so long that the bus
// does not notice the border.
const bytesMoved = 512 << 20

// part is spans of one file, which lie inside of it.
type part struct {
	file  *File
	spans []source.Span
	view  *View // whose memory they go to; nil for memory of the caller
}

// scattering is a request on its way. Where all of its rows are registered, the thread that launches kernels does all of it. Each other thread that
// is woken for a batch costs as much CPU as the batch.
type scattering struct {
	r      *Reader
	files  []*File
	locate func() ([]part, error) // finds parts; nil where they are known
	also   *sequences.Writing     // nil: nothing is said of tokens
	many   bool                   // there are manySpans, or more

	to     crew.Destination
	parts  []part
	rows   []source.Rows  // of parts
	shared []source.Rows  // of parts, those that threads copy beside the GPU; nil: none are
	table  *mapped.Table  // of the rows, where they are many
	beside chan outcome   // of rows that are moved beside those that the GPU sees; nil: none are
	room   *[]source.Span // memory of the parts' spans, which is used again; may be nil
}

// outcome is how moving spans went.
type outcome struct {
	Result
	err error
}

// memory is for n spans, until the request has ended.
func (s *scattering) memory(n int) []source.Span {
	if s.room, _ = s.r.spans.Get().(*[]source.Span); s.room == nil {
		s.room = new([]source.Span)
	}
	*s.room = slices.Grow((*s.room)[:0], n)
	return *s.room
}

// manySpans is from how many on a request's spans are looked at, and found, by a goroutine of its own. All requests wait for the thread that launches
// kernels, so that waking another one pays.
const manySpans = 1024

// look finds the spans, those that the device may see, and the request's other writes.
func (s *scattering) look() (err error) {
	if s.locate != nil {
		if s.parts, err = s.locate(); err != nil {
			return err
		}
	}
	for i := range s.parts {
		s.rows = append(s.rows, s.seen(&s.parts[i]))
	}
	if s.also == nil {
		s.divide()
		return nil
	}
	s.to.Also = s.also.Also
	return s.also.Check()
}

// launch starts moving the rows that the GPU sees, and others beside them.
func (s *scattering) launch(ctx context.Context, w *crew.Worker) error {
	written := s.copyShared(ctx, w)
	if err := s.r.mapped.MoveRows(w, &s.to, s.rows, s.table, written); err != nil {
		return err
	}
	if missing, n := s.missing(s.rows); n > 0 {
		s.beside = make(chan outcome, 1)
		go func() { s.beside <- scatterUnseen(ctx, s.to, missing) }() // ended by ctx, and awaited
	}
	return nil
}

// start moves all, without a goroutine of its own if it can. done is called once nothing is under way.
func (s *scattering) start(ctx context.Context, done func(Result, error)) {
	moved := func(err error) { // the rows that the device sees
		missing, n := s.parts, int64(0)
		if err == nil {
			missing, n = s.missing(s.rows, s.shared)
		} else {
			s.shared = nil // all rows are moved again
		}
		if n == 0 && err == nil && (s.also == nil || s.also.Begun()) && !s.news() {
			done(s.took(missing), nil)
			return
		}
		go func() { done(s.rest(ctx, missing, err)) }() // ended by ctx
	}
	switch {
	case s.copiedAtOnce():
		moved(s.copy(ctx))
	case s.r.copied != nil:
		go func() { moved(s.copy(ctx)) }() // likewise
	case s.many || !s.handed(ctx, s.look, moved):
		go func() { // likewise
			err := s.look()
			if err == nil && s.many {
				s.table = s.r.mapped.Find(&s.to, s.rows)
			}
			if err != nil || !s.many || !s.handed(ctx, nil, moved) {
				moved(cmp.Or(err, mapped.ErrApart))
			}
		}()
	}
}

// handed says whether the thread that launches kernels goes on with the request. It calls look before, if that is not nil.
func (s *scattering) handed(ctx context.Context, look func() error, moved func(err error)) bool {
	return s.r.mapped.PinnedBytes() > 0 && s.r.mapped.Thread.Start(ctx, func(w *crew.Worker) error {
		if look != nil {
			if err := look(); err != nil {
				return err
			}
		}
		return s.launch(ctx, w)
	}, moved)
}

// rest moves the spans that launch did not move, and does writes that were not begun. err is the error of moving
// spans that the device sees.
func (s *scattering) rest(ctx context.Context, missing []part, err error) (Result, error) {
	var more outcome
	unmoved, left := missing, true
	if s.beside != nil {
		more = <-s.beside
		var n int64
		unmoved, n = s.missing(s.shared)
		left = n > 0
	}
	if err != nil && !errors.Is(err, mapped.ErrApart) {
		return Result{}, err
	}
	total := s.took(missing)
	total.add(more.Result)
	if err = more.err; err == nil && left {
		more = scatterUnseen(ctx, s.to, unmoved)
		total.add(more.Result)
		err = more.err
	}
	if err == nil {
		err = s.changed(ctx)
	}
	if err == nil && s.also != nil {
		err = s.also.Finish(ctx, s.to.After)
	}
	return total, err
}

// news says whether a daemon has something to tell.
func (s *scattering) news() bool {
	return slices.ContainsFunc(s.parts, func(p part) bool { return p.file.r.descriptors.Watch().News() })
}

// changed says whether a file that the request has read is known to have changed by now.
func (s *scattering) changed(ctx context.Context) error {
	if !s.news() {
		return nil
	}
	for _, p := range s.parts {
		p.file.r.descriptors.Watch().Hear(ctx)
		pieces, err := source.Pieces(ctx, p.file.source, p.spans, false)
		if err == nil {
			err = source.Changed(pieces)
		}
		if err != nil && !errors.Is(err, source.ErrMoved) {
			return err
		}
	}
	return nil
}

// missing gives the spans of each part that are missing of rows of the parts, and their bytes. Rows may be nil.
func (s *scattering) missing(rows ...[]source.Rows) (list []part, n int64) {
	list = slices.Clone(s.parts)
	for i := range list {
		list[i].spans = nil
		for _, some := range rows {
			switch {
			case some == nil || len(some[i].Missing) == 0:
			case list[i].spans == nil: // a file whose rows are all missing has many: they are not copied
				list[i].spans = some[i].Missing
			default:
				list[i].spans = slices.Concat(list[i].spans, some[i].Missing)
			}
		}
		n += sizeOf(list[i].spans)
	}
	return list, n
}

// took counts the moved bytes: all but the missing ones.
func (s *scattering) took(missing []part) Result {
	total := Result{Choice: Choice{s.r.opt.Path, "there is nothing to move"}}
	choice := Choice{Mapped, seenWhy}
	switch {
	case s.r.copied != nil:
		choice = Choice{Host, onHost}
	case s.to.Host != nil:
		choice.Why += toHost
	}
	for i, p := range s.parts {
		left := sizeOf(missing[i].spans)
		if len(p.spans) > 0 {
			p.file.seen.Store(left == 0)
		}
		n, shared := sizeOf(p.spans)-left, int64(0)
		if s.shared != nil {
			shared = bytesOf(s.shared[i : i+1])
		}
		for _, half := range []struct {
			Choice
			n int64
		}{{choice, n - shared}, {Choice{Host, sharedWhy}, shared}} {
			if half.n > 0 {
				result := Result{Choice: half.Choice}
				result.Moved.count(half.Path, half.n)
				p.file.account(result.Moved, half.Choice)
				total.add(result)
			}
		}
	}
	return total
}

// seen gives the rows of a part that the device may see: those below seenRow (on the host, copied.SmallRow) of files of Readers that share registrations. All others are missing.
func (s *scattering) seen(p *part) source.Rows {
	of, n, most := p.file.r, sizeOf(p.spans), int64(copied.SmallRow)
	if s.r.mapped != nil {
		if most = s.r.device.CUDA.SmallPieces(); most > 0 && len(p.spans) > 1 { // one row may be of a sequence, whose next window is registered in time
			most = max(most, seenRow)
		}
	}
	placed, ok := p.file.source.(source.Placed)
	if !ok || s.r.mapped != nil && s.to.HBM == 0 || n == 0 || n > bytesMoved || n/int64(len(p.spans)) >= most || p.file.cooling() ||
		s.r.mapped != nil && (!s.r.mapped.Shares(of.mapped) || of.opt.Path != Auto && of.opt.Path != Mapped) {
		return source.Rows{Missing: p.spans}
	}
	places := placed.Map()
	if places == nil {
		return source.Rows{Missing: p.spans}
	}
	return source.Rows{Of: places, Watch: of.descriptors.Watch(), Spans: p.spans}
}

// seenRow is the mean length of registered rows in bytes below which one launch of the gather kernel moves a request. Copies of such rows are
// prepared anew for each request. On an H100 random rows of 50 to 250 kB, 512 at a time, came at 36 GB/s by copies and at 48 by the kernel; the link does 54.
const seenRow = 512 << 10

// seenWhy is why a request takes the mapped path where nothing else is to be done.
const seenWhy = "its pages are registered with the GPU already"

// toHost is added to the reason for the mapped path where the bytes end in memory of the host.
const toHost = ", and the GPU writes to memory of the host"

// sharedWhy is why threads copied bytes of a request that the GPU moved.
const sharedWhy = "threads copy a share of what goes to memory of the host"

func sizeOf(spans []source.Span) (n int64) {
	for i := range spans {
		n += spans[i].N
	}
	return n
}

// scatterUnseen moves spans that the GPU may not see yet, of all files at once. One that fails ends the others. The choice is that of the first bytes.
func scatterUnseen(ctx context.Context, to crew.Destination, parts []part) (total outcome) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]Result, len(parts))
	var wg sync.WaitGroup
	for i, p := range parts {
		wg.Go(func() {
			var err error
			if results[i], err = p.scatter(inner, to); err != nil {
				cancel(err) // which keeps the first reason
			}
		})
	}
	wg.Wait()
	total.err = context.Cause(inner)
	for _, result := range results {
		total.add(result)
	}
	return total
}

// scatter moves spans to their places. It returns when nothing writes to the target any more.
func (p *part) scatter(ctx context.Context, to crew.Destination) (Result, error) {
	r := p.file.r
	total := Result{Choice: Choice{r.opt.Path, "there is nothing to move"}}
	straight := p.view != nil || to.Form == nil && r.opt.Path != Direct && r.opt.Path != Compat
	limit := int64(bytesMoved)
	if p.view != nil {
		limit = max(limit, p.view.n) // cuFile reads it at once
	}
	for some := range cut(p.spans, limit) {
		t, err := transfer{f: p.file, to: to, view: p.view}, errArena
		if straight {
			err = t.run(ctx, some)
		}
		if errors.Is(err, errArena) {
			t.Result, err = p.file.scatterByArena(ctx, &to, some)
		}
		if err != nil {
			return Result{}, err
		}
		total.add(t.Result)
	}
	return total, nil
}

// scatterByArena brings spans into the arena one after the other, and from there to their places, in the destination's form.
func (f *File) scatterByArena(ctx context.Context, to *crew.Destination, spans []source.Span) (total Result, err error) {
	for some := range cut(spans, f.r.opt.Arena/4/mostElement*mostElement) {
		inside, end := make([]source.Span, len(some)), int64(0)
		var places []source.Span // of rows that lie together there as well
		for i, s := range some {
			inside[i] = source.Span{Offset: s.Offset, N: s.N, To: end}
			end += s.N
			if last := len(places) - 1; last >= 0 && places[last].To+places[last].N == s.To && (to.Form == nil || to.Form.Row == 0) {
				places[last].N += s.N
			} else {
				places = append(places, s)
			}
		}
		v, err := f.r.view(ctx, end)
		if err != nil {
			return Result{}, err
		}
		t := &transfer{f: f, view: v}
		if err = t.run(ctx, inside); err == nil {
			err = f.r.spread(ctx, to, v.destination(), places)
		}
		v.Release()
		if err != nil {
			return Result{}, err
		}
		total.add(t.Result)
	}
	return total, nil
}

// cut cuts spans into parts of at most limit bytes, and leaves empty ones out.
func cut(spans []source.Span, limit int64) func(yield func([]source.Span) bool) {
	return func(yield func([]source.Span) bool) {
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
