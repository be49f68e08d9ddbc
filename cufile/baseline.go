package cufile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/arena"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Wall measures the rate of copies from pinned memory to HBM, in bytes per second: no path into this GPU is faster. It
// repeats one copy for at least the time given, and takes a quarter of the arena.
func (r *Reader) Wall(ctx context.Context, during time.Duration) (float64, error) {
	if r.device.CUDA == nil {
		return 0, fmt.Errorf("%w: the host has no such copy", ErrUnavailable)
	}
	const most = 256 << 20
	size := min(most, r.arena.Size()/4/arena.Unit*arena.Unit)
	at, err := r.arena.Reserve(ctx, size)
	if err != nil {
		return 0, err
	}
	defer r.arena.Free(at, size)
	memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, fmt.Errorf("allocate %d bytes of host memory: %w", size, err)
	}
	defer func() { _ = unix.Munmap(memory) }() // a mapping that cannot be undone ends with the process
	rate := 0.0
	err = r.crew.Do(context.WithoutCancel(ctx), func(w *crew.Worker) error {
		if err := w.CUDA.Register(memory, driver.HostPortable); err != nil {
			return err
		}
		err := repeatCopy(ctx, w, memory, r.arena.HBM(at), during, &rate)
		return errors.Join(err, w.CUDA.Unregister(memory))
	})
	return rate, err
}

// repeatCopy keeps two copies under way, so that the bus never waits for the CPU.
func repeatCopy(ctx context.Context, w *crew.Worker, memory []byte, to driver.Pointer, during time.Duration, rate *float64) error {
	for range crew.SlotsPerWorker { // the first copies wake the bus up
		if err := w.CUDA.CopyIn(to, memory, w.Stream); err != nil {
			return err
		}
	}
	if err := w.CUDA.Synchronize(w.Stream); err != nil {
		return err
	}
	start, copied := time.Now(), 0
	for time.Since(start) < during && ctx.Err() == nil {
		s, err := w.Slot()
		if err != nil {
			return err
		}
		if err := errors.Join(w.CUDA.CopyIn(to, memory, w.Stream), w.Sent(s)); err != nil {
			return err
		}
		copied++
	}
	w.Drain() // a copy that failed fails the job
	*rate = float64(copied) * float64(len(memory)) / time.Since(start).Seconds()
	return ctx.Err()
}

// Plain reads a range as a program does that knows nothing of GPUs. One thread reads into ordinary memory and
// copies to HBM, block after block. The paths are compared with it. On the host there is no copy.
func (f *File) Plain(ctx context.Context, offset, n int64) error {
	spans := []source.Span{{Offset: offset, N: n}}
	if err := f.insideAll(spans); err != nil || n == 0 {
		return err
	}
	const block = 16 << 20
	size := min(block, n)
	at, err := f.r.arena.Reserve(ctx, size)
	if err != nil {
		return err
	}
	defer f.r.arena.Free(at, size)
	buffer := make([]byte, size)
	return f.eachGroup(ctx, spans, func(pieces []source.Piece, _, _ bool) error {
		chunks := source.Cut(pieces, size)
		return f.r.crew.Do(context.WithoutCancel(ctx), func(w *crew.Worker) error {
			for i := 0; i < len(chunks) && ctx.Err() == nil; i++ {
				if err := chunks[i].Read(buffer); err != nil {
					return err
				}
				if w.CUDA == nil {
					continue
				}
				if err := w.CUDA.CopyPageable(f.r.arena.HBM(at), buffer[:chunks[i].N]); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	})
}
