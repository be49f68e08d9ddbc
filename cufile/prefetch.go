package cufile

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// prefetcher is a source whose daemon can fetch bytes ahead.
type prefetcher interface {
	Prefetch(ctx context.Context, ranges []control.Range) error
}

// Prefetch says which spans will be read soon, in this order: the mount brings them into the page cache, or the kernel
// does where the file is in none. It does not wait for that, and may do nothing where there is too much to do already.
func (f *File) Prefetch(ctx context.Context, spans []Span) error {
	for _, s := range spans {
		if err := f.inside([]int64{s.Offset}, s.Length); err != nil {
			return fmt.Errorf("prefetch: %w", err)
		}
	}
	if err := f.enter(); err != nil {
		return err
	}
	defer f.gate.Leave()
	if f.Seen() {
		return nil
	}
	if p, ok := f.source.(prefetcher); ok {
		ranges := make([]control.Range, len(spans))
		for i, s := range spans {
			ranges[i] = control.Range{Offset: s.Offset, Length: s.Length}
		}
		return p.Prefetch(ctx, ranges)
	}
	for _, s := range spans {
		if s.Length == 0 {
			continue
		}
		if err := f.eachGroup(ctx, s, func(pieces []source.Piece) error { return advise(ctx, pieces) }); err != nil {
			return err
		}
	}
	return nil
}

// Seen says whether the last request found all of its bytes registered: then what a plan names is there, and Prefetch does nothing.
func (f *File) Seen() bool { return f.seen.Load() }

// eachGroup calls fn with the pieces of a span, group by group, while their backing files are open.
func (f *File) eachGroup(ctx context.Context, s Span, fn func(pieces []source.Piece) error) error {
	return f.retryMoved(ctx, func(inMount bool) error {
		pieces, err := f.pieces(ctx, []source.Span{{Offset: s.Offset, N: s.Length}}, nil, inMount)
		if err != nil {
			return err
		}
		for _, g := range source.Split(pieces, f.r.descriptors.Share()) {
			if err := f.r.descriptors.Pinned(ctx, g.Files, func() error { return fn(g.Pieces) }); err != nil {
				return err
			}
		}
		return nil
	})
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
