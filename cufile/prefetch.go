package cufile

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// prefetcher is a source whose daemon can fetch bytes ahead.
type prefetcher interface {
	Prefetch(ctx context.Context, spans []source.Span) error
}

// Prefetch says which spans will be read soon, in this order. The mount brings them into the page cache, or the kernel
// does where the file is in none. It does not wait for that, and may do nothing where there is too much to do already.
func (f *File) Prefetch(ctx context.Context, spans []Span) error {
	if err := f.enter(); err != nil {
		return err
	}
	defer f.gate.Leave()
	soon := spansOf(spans)
	if err := f.insideAll(soon); err != nil {
		return fmt.Errorf("prefetch: %w", err)
	}
	if f.seen.Load() { // the planned bytes are there
		return nil
	}
	if p, ok := f.source.(prefetcher); ok {
		return p.Prefetch(ctx, soon)
	}
	return f.eachGroup(ctx, soon, func(pieces []source.Piece, _, _ bool) error { return advise(ctx, pieces) })
}

// advise tells the kernel about pieces.
func advise(ctx context.Context, pieces []source.Piece) error {
	for i := range pieces {
		p := &pieces[i]
		if err := unix.Fadvise(p.File.FD, p.Offset, p.N, unix.FADV_WILLNEED); err != nil {
			return fmt.Errorf("prefetch %s: %w", p.File.Name, err)
		}
	}
	return ctx.Err()
}
