package cufile

import (
	"context"
	"errors"
	"io"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// chunkSize gives every thread something to do, without making chunks that cost more than they carry.
func (r *Reader) chunkSize(total int64) int64 {
	const least = 256 << 10
	return min(r.opt.Slot, max(least, driver.RoundUp(total/int64(r.opt.Threads), driver.PageSize)))
}

// stage reads pieces with pread: on a GPU into pinned memory that is copied while the next chunk is read, on the
// host into the destination.
func (t *transfer) stage(ctx context.Context, pieces []source.Piece) (<-chan struct{}, error) {
	f := t.f
	total := int64(0)
	for _, p := range pieces {
		total += p.N
	}
	if f.r.cu != nil && f.r.opt.adapt {
		f.r.crew.Allow(stagers(f.r.opt.Threads, f.readers(ctx)))
	}
	chunks := source.Cut(pieces, f.r.chunkSize(total))
	finished, err := f.r.crew.Run(ctx, f.r.opt.Threads, int64(len(chunks)), func(w *crew.Worker, i int64) error {
		if f.r.cu == nil {
			return chunks[i].Read(t.to.Host[chunks[i].To:])
		}
		if err := t.to.Ready(w); err != nil {
			return err
		}
		return stageChunk(w, &chunks[i], t.to.HBM+driver.Pointer(chunks[i].To), t.cold)
	})
	if err == nil {
		path := Staged
		if f.r.cu == nil {
			path = Host
		}
		t.moved.count(path, total)
	}
	return finished, err
}

// stageChunk moves one chunk through the next slot.
func stageChunk(w *crew.Worker, c *source.Chunk, to driver.Pointer, cold bool) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	skew := int64(0)
	if len(c.Pieces) == 1 && cold {
		skew, err = readEnvelope(&c.Pieces[0], s.Memory)
	} else {
		err = c.Read(s.Memory)
	}
	if err != nil {
		return err
	}
	if err := w.CUDA.CopyIn(to, s.Memory[skew:skew+c.N], w.Stream); err != nil {
		return err
	}
	return w.Sent(s)
}

// readEnvelope reads the aligned pages around a piece with O_DIRECT, past the page cache, and gives the place of the
// piece's first byte in memory.
func readEnvelope(p *source.Piece, memory []byte) (skew int64, err error) {
	fd, ok := p.File.Direct()
	if !ok {
		return 0, p.File.ReadFull(memory[:p.N], p.Offset)
	}
	skew = p.Offset % driver.PageSize
	envelope := driver.RoundUp(skew+p.N, driver.PageSize)
	n, err := source.ReadAtLeast(fd, p.File.Name, memory[:envelope], p.Offset-skew, int(skew+p.N))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		// Some file systems take the flag at open and refuse the read. Then the page cache is the only way.
		return 0, p.File.ReadFull(memory[:p.N], p.Offset)
	}
	if int64(n) < skew+p.N {
		return 0, err
	}
	return skew, nil
}
