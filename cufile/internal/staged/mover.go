// Package staged moves bytes of files by pread. They go into pinned memory, which is copied to the GPU while the next chunk is read. In
// memory of the host they go into the destination.
//
// A [Mover] belongs to one reader. On a GPU it finds how many threads copy fastest while they do, unless it is told.
package staged

import (
	"context"
	"runtime"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Options configure a Mover.
type Options struct {
	Crew    *crew.Crew
	CUDA    *driver.CUDA // nil for the host
	Threads int
	Slot    int64 // most bytes that a thread moves at a time
	Adapt   bool  // Threads is the most of them: see crew.Pace
	Readers int   // that share the machine, where nobody has counted them yet
}

// Mover is a reader's use of its threads.
type Mover struct {
	opt  Options
	pace *crew.Pace // nil where Threads says how many they are, and for the host
}

// New makes a Mover.
func New(o Options) *Mover {
	m := &Mover{opt: o}
	if o.Adapt && o.CUDA != nil {
		m.pace = crew.NewPace(o.Threads, o.Readers)
	}
	return m
}

// Pieces that land here and there are read into a slot one behind the other, and the gather kernel brings them to their places, by a table behind them. There
// is room for two pages. No piece is longer than crew.LaunchBytes, so that no warp works long after the others.
const mostPacked = 2*driver.PageSize/driver.PieceBytes - 1

// Move reads pieces, and gives their bytes. cold says that they are not in the page cache. readers counts those that
// share the machine. When it returns, also with an error, nothing is under way.
func (m *Mover) Move(ctx context.Context, to *crew.Destination, pieces []source.Piece, cold bool, readers func() int) (moved int64, err error) {
	moved = source.BytesOf(pieces)
	threads := m.opt.Threads
	if m.pace != nil {
		threads = m.pace.Limit(crew.MostThreads(runtime.NumCPU(), readers()))
		m.opt.Crew.Allow(threads)
	}
	size := m.chunkSize(moved, threads)
	chunks := source.Cut(pieces, size)
	if cu := m.opt.CUDA; to.Host == nil && len(chunks) > 1 && moved/int64(len(chunks)) < cu.SmallPieces() {
		chunks = source.Pack(pieces, size, mostPacked, crew.LaunchBytes)
	}
	return moved, m.opt.Crew.RunQuiet(ctx, m.opt.Threads, int64(len(chunks)), func(w *crew.Worker, i int64) error {
		if to.Host != nil {
			if err := to.Await(w); err != nil {
				return err
			}
			return chunks[i].Read(to.Host[chunks[i].To:])
		}
		if err := to.Ready(w); err != nil {
			return err
		}
		return m.stage(w, to, &chunks[i], cold)
	})
}

// chunkSize gives each of so many threads something to do, without making chunks that cost more than they carry.
func (m *Mover) chunkSize(total int64, threads int) int64 {
	const least = 256 << 10
	return min(m.opt.Slot, max(least, driver.RoundUp(total/int64(threads), driver.PageSize)))
}

// stage moves one chunk through the next slot.
func (m *Mover) stage(w *crew.Worker, to *crew.Destination, c *source.Chunk, cold bool) error {
	began := time.Now()
	s, err := w.WarmSlot()
	if err != nil {
		return err
	}
	free := time.Now()
	skew := int64(0)
	if len(c.Pieces) == 1 && c.Places == nil && cold {
		skew, err = c.Pieces[0].ReadDirect(s.Memory)
	} else {
		err = c.Read(s.Memory)
	}
	if err != nil {
		return err
	}
	if c.Places == nil {
		err = w.CUDA.CopyIn(to.HBM+driver.Pointer(c.To), s.Memory[skew:skew+c.N], w.Stream)
	} else {
		err = scatter(w, to, s, c)
	}
	if err != nil {
		return err
	}
	if m.pace != nil {
		m.opt.Crew.Allow(m.pace.Moved(c.N, time.Since(free), free.Sub(began)))
	}
	return w.Sent(s)
}

// scatter starts the kernel that brings the pieces of a slot to their places.
func scatter(w *crew.Worker, to *crew.Destination, s *crew.Slot, c *source.Chunk) error {
	first := driver.RoundUp(c.N, 8)
	table := driver.Pieces(s.Memory[first:])
	for i := range c.Pieces {
		p := &c.Pieces[i]
		table[i] = to.Piece(s.Device()+driver.Pointer(p.To), c.Places[i], p.N)
	}
	return w.Launch(to, s.Device()+driver.Pointer(first), len(c.Pieces))
}
