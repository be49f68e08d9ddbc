package cufile

import (
	"context"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/copied"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// sharing has threads copy a share of large requests whose bytes the GPU writes to memory of the host. The link carries both directions there, so that the
// GPU copies 0.7 of what it reads into HBM. On an H100 with 16 CPUs the gather kernel alone wrote 36 GB/s, and 44, 49 and 51 with 2, 3 and 4 threads beside it.
type sharing struct {
	threads *copied.Mover
	least   int64      // bytes of a request that is shared
	turn    sync.Mutex // held while threads copy: those of two requests would be twice as many

	mu   sync.Mutex // guards the fields below
	gpu  rate
	cpu  rate
	rest int // requests that the GPU moves alone
}

const (
	mostSharing = 4       // threads
	leastShared = 4 << 20 // bytes of a request

	firstShare = 1.0 / 8  // of a request's bytes, before the rates are known
	leastShare = 1.0 / 32 // a smaller one is not worth the CPU time; others use the CPUs then
	mostShare  = 1.0 / 2
	restShared = 256 // requests until threads of busy CPUs are tried again
)

// sharingThreads is at most a quarter of the CPUs, which users need for decoders, divided by the readers of the host.
func sharingThreads(cpus, readers int) int { return min(mostSharing, cpus/4/readers) }

// newSharing gives nil where there are too few CPUs, or the kernel does not copy.
func newSharing(threads int) *sharing {
	if threads == 0 {
		return nil
	}
	if m := copied.New(threads); m.Copies() {
		return &sharing{threads: m, least: leastShared}
	}
	return nil
}

// rate is how fast one half has moved bytes lately.
type rate struct {
	bytes float64 // a second; 0 if unknown
	ended time.Time
}

func (r *rate) moved(n int64, began time.Time) {
	now := time.Now()
	if began.IsZero() || n == 0 {
		return
	}
	if began.Before(r.ended) { // the request before was under way
		began = r.ended
	}
	r.ended = now
	last := float64(n) / max(now.Sub(began), time.Microsecond).Seconds()
	if r.bytes == 0 {
		r.bytes = last
	}
	r.bytes += (last - r.bytes) / 8
}

// share is the part of n bytes with which threads end when the GPU does.
func (h *sharing) share(n int64) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case n < h.least:
		return 0
	case h.rest > 0:
		h.rest--
		return 0
	case h.gpu.bytes == 0 || h.cpu.bytes == 0:
		return firstShare
	}
	share := h.cpu.bytes / (h.cpu.bytes + h.gpu.bytes)
	if share < leastShare {
		h.rest, h.cpu.bytes = restShared, 0
		return 0
	}
	return min(share, mostShare)
}

// divide gives threads the first rows of each part.
func (s *scattering) divide() {
	h, n := s.r.sharing, int64(0)
	if h == nil || s.to.Host == nil || s.to.HBM == 0 {
		return
	}
	for i := range s.rows {
		if s.rows[i].Of != nil {
			n += sizeOf(s.rows[i].Spans)
		}
	}
	share := h.share(n)
	if share == 0 {
		return
	}
	s.shared = make([]source.Rows, len(s.rows))
	for i := range s.rows {
		r := &s.rows[i]
		if r.Of == nil || s.parts[i].file.r.opt.Path != Auto {
			continue
		}
		k, left := 0, int64(share*float64(sizeOf(r.Spans)))
		for ; k < len(r.Spans) && r.Spans[k].N <= left; k++ {
			left -= r.Spans[k].N
		}
		s.shared[i] = *r
		s.shared[i].Spans, r.Spans = r.Spans[:k], r.Spans[k:]
	}
}

// copyShared starts the threads' share as a part of the worker's job. It gives a function to be called once the GPU has written the rest.
func (s *scattering) copyShared(ctx context.Context, w *crew.Worker) (written func()) {
	if s.shared == nil {
		return nil
	}
	h, began := s.r.sharing, time.Time{} // when the caller's stream was ready; guarded by h.mu
	s.r.mapped.Beside(w, s.shared, func(f *source.Finder) error {
		if err := s.r.device.Await(s.to.After); err != nil {
			return err
		}
		h.mu.Lock()
		began = time.Now()
		h.mu.Unlock()
		h.turn.Lock()
		defer h.turn.Unlock()
		if err := ctx.Err(); err != nil {
			return err
		}
		h.threads.MoveFound(s.to.Host, nil, f)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.cpu.moved(bytesOf(s.shared), began)
		return nil
	})
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.gpu.moved(bytesOf(s.rows), began)
	}
}

// bytesOf counts those that are not missing.
func bytesOf(rows []source.Rows) (n int64) {
	for i := range rows {
		if r := &rows[i]; r.Of != nil {
			n += sizeOf(r.Spans) - sizeOf(r.Missing)
		}
	}
	return n
}
