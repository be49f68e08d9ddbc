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
const quickBytes = 1 << 20

// copiedAtOnce says whether the thread that begins a request copies its rows: they are few bytes, and the last request of each file found all of its own
// in the page cache.
func (s *scattering) copiedAtOnce() bool {
	return s.r.copied != nil && len(s.to.Host) <= quickBytes && !slices.ContainsFunc(s.files, func(f *File) bool { return !f.seen.Load() })
}

// scatterHost copies the rows of mapped files to memory of the host, and reads the others.
func scatterHost(ctx context.Context, to crew.Destination, parts []part) (total Result, err error) {
	var missing []part
	for _, p := range parts {
		rest := p.file.copyRows(&to, p.spans, &total, &err)
		if err != nil {
			return total, err
		}
		if len(rest) > 0 {
			missing = append(missing, part{p.file, rest, p.view})
		}
	}
	if len(missing) == 0 {
		return total, ctx.Err()
	}
	rest, err := scatterUnseen(ctx, to, missing)
	total.add(rest)
	return total, err
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
