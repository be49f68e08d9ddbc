package cufile

import (
	"context"
	"fmt"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/baseline"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Wall measures the rate of copies from pinned memory to HBM, in bytes per second: no path into this GPU is faster. It
// repeats one copy for at least the time given, and takes a quarter of the arena.
func (r *Reader) Wall(ctx context.Context, during time.Duration) (float64, error) {
	if r.device.CUDA == nil {
		return 0, fmt.Errorf("%w: the host has no such copy", ErrUnavailable)
	}
	return baseline.Wall(ctx, r.crew, r.arena, during)
}

// Plain reads a range as a program does that knows nothing of GPUs. One thread reads into ordinary memory and
// copies to HBM, block after block. The paths are compared with it. On the host there is no copy.
func (f *File) Plain(ctx context.Context, offset, n int64) error {
	spans, err := f.rows(nil, []int64{offset}, n)
	if err != nil || n == 0 {
		return err
	}
	size := min(baseline.Block, n)
	at, err := f.r.arena.Reserve(ctx, size)
	if err != nil {
		return err
	}
	defer f.r.arena.Free(at, size)
	buffer := make([]byte, size)
	return f.eachGroup(ctx, spans, func(pieces []source.Piece, _, _ bool) error {
		return baseline.Plain(ctx, f.r.crew, f.r.arena.HBM(at), buffer, pieces)
	})
}
