package cufile

import (
	"context"
	"slices"

	"github.com/hbmfs/hbmfs/cufile/internal/copied"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
	"github.com/hbmfs/hbmfs/cufile/internal/widen"
)

// A cold batch has more than one row of so many that waits for the disk. Of a file that gave one, so many requests are read by threads, which
// wait for several rows at once. Then one looks whether its rows are in the page cache by now.
const (
	coldRows     = 8
	coldRequests = 32
)

// quickBytes is what is copied while a request begins: waking another thread takes as much CPU time as copying some hundred kilobytes.
const quickBytes = 512 << 10

// copiedAtOnce says whether the thread that begins a request copies its rows: they are few bytes, and the last request of each file found all of its own
// in the page cache.
func (s *scattering) copiedAtOnce() bool {
	return s.r.copied != nil && len(s.to.Host) <= quickBytes && !slices.ContainsFunc(s.files, func(f *File) bool { return !f.seen.Load() })
}

// copyMapped copies the rows of mapped files to memory of the host, and gives the others: all of them on a GPU.
func (s *scattering) copyMapped(ctx context.Context) (total Result, missing []part, err error) {
	if err := s.look(); err != nil || s.r.copied == nil {
		return total, s.parts, err
	}
	for _, p := range s.parts {
		rest := p.file.copyRows(&s.to, p.spans, &total, &err)
		if err != nil {
			return total, nil, err
		}
		if len(rest) > 0 {
			missing = append(missing, part{p.file, rest, p.view})
		}
	}
	return total, missing, ctx.Err()
}

// copyRows copies small rows that are mapped, and gives the others.
func (f *File) copyRows(to *crew.Destination, spans []source.Span, total *Result, err *error) []source.Span {
	size := sizeOf(spans)
	placed, ok := f.source.(source.Placed)
	if !ok || size == 0 || size/int64(len(spans)) >= copied.SmallRow || f.insideAll(spans) != nil { // the caller may have changed them
		return spans
	}
	if f.cold.Load() > 0 {
		f.cold.Add(-1)
		return spans
	}
	of := placed.Map()
	if of == nil {
		return spans
	}
	element, write := int64(1), copied.Writer(nil)
	if to.Form != nil {
		element = to.Form.From
		write = func(place int64, from []byte) { widen.Write(to, place, from) }
	}
	rows := []copied.Rows{{Of: of, Spans: spans}}
	defer crew.OnFault(err)()
	cold, failed := f.r.copied.MoveRows(to.Host, element, write, rows)
	if *err = failed; failed != nil {
		return nil
	}
	if cold > int64(len(spans)/coldRows) {
		f.cold.Store(coldRequests)
	}
	f.seen.Store(len(rows[0].Missing) == 0 && cold == 0)
	if n := size - sizeOf(rows[0].Missing); n > 0 {
		moved, choice := Moved{}, Choice{Host, onHost}
		moved.count(Host, n)
		f.account(moved, choice)
		total.add(Result{moved, choice})
	}
	return rows[0].Missing
}

// onHost is why a request takes the host path.
const onHost = "the device is the host"
