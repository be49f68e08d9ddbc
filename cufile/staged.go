package cufile

import (
	"context"
	"runtime"
	"time"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// chunkSize gives each of so many threads something to do, without making chunks that cost more than they carry.
func (r *Reader) chunkSize(total int64, threads int) int64 {
	const least = 256 << 10
	return min(r.opt.Slot, max(least, driver.RoundUp(total/int64(threads), driver.PageSize)))
}

// stage reads pieces with pread: on a GPU into pinned memory that is copied while the next chunk is read, on the
// host into the destination.
func (t *transfer) stage(ctx context.Context, pieces []source.Piece) (<-chan struct{}, error) {
	r := t.f.r
	total := int64(0)
	for _, p := range pieces {
		total += p.N
	}
	threads := r.opt.Threads
	if r.pace != nil {
		threads = r.pace.Limit(crew.MostThreads(runtime.NumCPU(), t.f.readers(ctx)))
		r.crew.Allow(threads)
	}
	chunks := source.Cut(pieces, r.chunkSize(total, threads))
	finished, err := r.crew.Run(ctx, r.opt.Threads, int64(len(chunks)), func(w *crew.Worker, i int64) error {
		if r.cu == nil {
			return chunks[i].Read(t.to.Host[chunks[i].To:])
		}
		if err := t.to.Ready(w); err != nil {
			return err
		}
		return t.stageChunk(w, &chunks[i])
	})
	if err == nil {
		path := Staged
		if r.cu == nil {
			path = Host
		}
		t.moved.count(path, total)
	}
	return finished, err
}

// stageChunk moves one chunk through the next slot.
func (t *transfer) stageChunk(w *crew.Worker, c *source.Chunk) error {
	began := time.Now()
	s, err := w.Slot()
	if err != nil {
		return err
	}
	free := time.Now()
	skew := int64(0)
	if len(c.Pieces) == 1 && t.cold {
		skew, err = c.Pieces[0].ReadDirect(s.Memory)
	} else {
		err = c.Read(s.Memory)
	}
	if err != nil {
		return err
	}
	if err := w.CUDA.CopyIn(t.to.HBM+driver.Pointer(c.To), s.Memory[skew:skew+c.N], w.Stream); err != nil {
		return err
	}
	if pace := t.f.r.pace; pace != nil {
		t.f.r.crew.Allow(pace.Moved(c.N, time.Since(free), free.Sub(began)))
	}
	return w.Sent(s)
}
