package cufile

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/source"
)

// prefetcher is a source that can have its bytes brought near by somebody else.
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
		if err := source.Follow(ctx, f.source, func(inMount bool) error { return f.adviseSpan(ctx, s, inMount) }); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) adviseSpan(ctx context.Context, s Span, inMount bool) error {
	pieces, err := f.pieces(ctx, []int64{s.Offset}, s.Length, inMount)
	if err != nil {
		return err
	}
	for _, g := range source.Split(pieces, f.r.descriptors.Share()) {
		if err := f.advise(ctx, &g); err != nil {
			return err
		}
	}
	return nil
}

// advise tells the kernel about pieces.
func (f *File) advise(ctx context.Context, g *source.Group) error {
	if err := f.r.descriptors.Pin(ctx, g.Files); err != nil {
		return err
	}
	defer f.r.descriptors.Unpin(g.Files)
	for i := range g.Pieces {
		p := &g.Pieces[i]
		if err := unix.Fadvise(p.File.FD, p.Offset, p.N, unix.FADV_WILLNEED); err != nil {
			return fmt.Errorf("prefetch %s: %w", p.File.Name, err)
		}
	}
	return ctx.Err()
}
