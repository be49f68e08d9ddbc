package cufile

import (
	"context"
	"errors"
	"io"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// chunk is pieces that land one after the other: n bytes at to.
type chunk struct {
	pieces []source.Piece
	to, n  int64
}

// cut makes chunks of at most size bytes. Pieces are cut where a chunk is full.
func cut(pieces []source.Piece, size int64) []chunk {
	var parts []source.Piece
	for _, p := range pieces {
		// Inner cuts lie on pages of the file, so that each part is an aligned envelope of its own.
		for p.N > size {
			n := size
			if odd := (p.Offset + n) % driver.PageSize; odd < n {
				n -= odd
			}
			parts = append(parts, source.Piece{File: p.File, Offset: p.Offset, To: p.To, N: n})
			p.Offset, p.To, p.N = p.Offset+n, p.To+n, p.N-n
		}
		parts = append(parts, p)
	}
	var chunks []chunk
	first := 0
	for i := range parts {
		if i > first && (parts[i].To != parts[i-1].To+parts[i-1].N || parts[i].To+parts[i].N-parts[first].To > size) {
			chunks = append(chunks, newChunk(parts[first:i]))
			first = i
		}
	}
	if first < len(parts) {
		chunks = append(chunks, newChunk(parts[first:]))
	}
	return chunks
}

func newChunk(pieces []source.Piece) chunk {
	last := pieces[len(pieces)-1]
	return chunk{pieces, pieces[0].To, last.To + last.N - pieces[0].To}
}

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
	chunks := cut(pieces, f.r.chunkSize(total))
	finished, err := f.r.crew.Run(ctx, f.r.opt.Threads, int64(len(chunks)), func(w *crew.Worker, i int64) error {
		if f.r.cu == nil {
			return readChunk(&chunks[i], t.to.Host, chunks[i].to)
		}
		if err := t.to.Ready(w); err != nil {
			return err
		}
		return stageChunk(w, &chunks[i], t.to.HBM+driver.Pointer(chunks[i].to), t.cold)
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

// readChunk reads a chunk into p from at on.
func readChunk(c *chunk, p []byte, at int64) error {
	for _, part := range c.pieces {
		where := at + part.To - c.to
		if err := part.File.ReadFull(p[where:where+part.N], part.Offset); err != nil {
			return err
		}
	}
	return nil
}

// stageChunk moves one chunk through the next slot.
func stageChunk(w *crew.Worker, c *chunk, to driver.Pointer, cold bool) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	skew := int64(0)
	if len(c.pieces) == 1 && cold {
		skew, err = readEnvelope(&c.pieces[0], s.Memory)
	} else {
		err = readChunk(c, s.Memory, 0)
	}
	if err != nil {
		return err
	}
	if err := w.CUDA.CopyIn(to, s.Memory[skew:skew+c.n], w.Stream); err != nil {
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
