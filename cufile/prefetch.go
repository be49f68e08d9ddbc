package cufile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// prefetcher is a source that can have its bytes brought near by somebody else.
type prefetcher interface {
	prefetch(ctx context.Context, spans []Span) error
}

// Prefetch says which spans will be read soon, in this order: the mount brings them into the page cache, or the kernel
// does where the file is in none. It does not wait for that, and may do nothing where there is too much to do already.
func (f *File) Prefetch(ctx context.Context, spans []Span) error {
	for _, s := range spans {
		if s.Offset < 0 || s.Length < 0 || s.Offset > f.Size() || s.Length > f.Size()-s.Offset {
			return fmt.Errorf("prefetch %d bytes at %d of %s, which has %d: %w", s.Length, s.Offset, f.name, f.Size(), io.ErrUnexpectedEOF)
		}
	}
	if p, ok := f.source.(prefetcher); ok {
		return p.prefetch(ctx, spans)
	}
	for _, s := range spans {
		if s.Length == 0 {
			continue
		}
		if err := f.follow(ctx, func(inMount bool) error { return f.adviseSpan(ctx, s, inMount) }); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) adviseSpan(ctx context.Context, s Span, inMount bool) error {
	q, err := f.plan(ctx, []int64{s.Offset}, s.Length, inMount)
	if err != nil {
		return err
	}
	pieces, err := q.allPieces(mostPieces)
	if err != nil {
		return err
	}
	for _, g := range split(pieces, f.r.handles.share()) {
		if err := f.advise(ctx, &g); err != nil {
			return err
		}
	}
	return nil
}

// advise tells the kernel about pieces.
func (f *File) advise(ctx context.Context, g *group) error {
	if err := f.r.handles.take(ctx, g.files); err != nil {
		return err
	}
	defer f.r.handles.give(g.files)
	for i := range g.pieces {
		p := &g.pieces[i]
		if err := unix.Fadvise(p.file.fd, p.offset, p.n, unix.FADV_WILLNEED); err != nil {
			return fmt.Errorf("prefetch %s: %w", p.file.name, err)
		}
	}
	return ctx.Err()
}

// prefetch tells the mount. What the kernel has pages of needs nothing fetched into a cache.
func (m *mountedFile) prefetch(ctx context.Context, spans []Span) error {
	var ranges []control.Range
	for _, s := range spans {
		switch {
		case s.Length > 0 && m.cached():
			ranges = appendMissing(ranges, m.inline, s.Offset, s.Length)
		case s.Length > 0:
			ranges = append(ranges, control.Range{Offset: s.Offset, Length: s.Length})
		}
	}
	for part := range slices.Chunk(ranges, control.MaxRanges) {
		err := control.Prefetch(m.file, part...)
		if errors.Is(err, unix.EAGAIN) {
			return nil // it was advice
		}
		if err = m.explain(ctx, err); err != nil {
			return err
		}
	}
	return nil
}
