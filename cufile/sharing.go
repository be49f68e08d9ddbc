package cufile

import (
	"context"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/copied"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// sharing has threads copy a share of large requests whose bytes the GPU writes to memory of the host. The link carries both directions there. So the
// GPU alone reaches 0.7 of its rate into HBM. On an H100 with 16 CPUs the gather kernel alone moved 37 GB/s, and with 2, 3 and 4 threads beside the kernel
// both moved 44, 49 and 51.
type sharing struct {
	threads *copied.Mover
	least   int64 // bytes of a request that is shared

	mu   sync.Mutex // guards the fields below
	gpu  rate
	cpu  rate
	rest int // requests that the GPU moves alone
}

const (
	mostSharing = 4       // threads
	leastShared = 4 << 20 // bytes of a request

	firstShare = 1.0 / 8  // of a request's bytes, before the rates are known
	leastShare = 1.0 / 32 // a smaller one is not worth the CPU time: others use the CPUs then
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
	if m := copied.NewBounded(threads); m.Copies() {
		return &sharing{threads: m, least: leastShared}
	}
	return nil
}

// rate is how fast one half has moved bytes in its last requests.
type rate struct {
	bytes, seconds float64
	ended          time.Time
}

// moved counts n bytes that were begun at a time. Requests are moved one after the other, and two may be seen to have ended at once.
func (r *rate) moved(n int64, began time.Time) {
	const kept = 31.0 / 32
	now := time.Now()
	if began.Before(r.ended) {
		began = r.ended
	}
	r.bytes, r.seconds, r.ended = kept*r.bytes+float64(n), kept*r.seconds+now.Sub(began).Seconds(), now
}

// share is the part of a request's bytes with which threads end when the GPU does.
func (h *sharing) share() float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.rest > 0:
		h.rest--
		return 0
	case h.gpu.bytes == 0 || h.cpu.bytes == 0:
		return firstShare
	}
	gpu, cpu := h.gpu.bytes*h.cpu.seconds, h.cpu.bytes*h.gpu.seconds
	share := cpu / (cpu + gpu)
	if share < leastShare {
		h.rest, h.cpu = restShared, rate{}
		return 0
	}
	return min(share, mostShare)
}

// divide gives threads the first rows of parts. Where a part has none that is small enough, later parts give more.
func (s *scattering) divide() {
	h := s.r.sharing
	if h == nil || s.to.Host == nil || s.to.HBM == 0 || bytesOf(s.rows) < h.least {
		return
	}
	share := h.share()
	if share == 0 {
		return
	}
	shared, left := make([]source.Rows, len(s.rows)), int64(0)
	for i := range s.rows {
		r := &s.rows[i]
		if r.Of == nil || s.parts[i].file.r.opt.Path != Auto {
			continue
		}
		k := 0
		for left += int64(share * float64(sizeOf(r.Spans))); k < len(r.Spans) && r.Spans[k].N <= left; k++ {
			left -= r.Spans[k].N
		}
		shared[i] = *r
		shared[i].Spans, r.Spans = r.Spans[:k], r.Spans[k:]
	}
	if bytesOf(shared) > 0 {
		s.shared = shared
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cpu = rate{} // measured anew by the next request, or a share that is smaller than each row would stay so
}

// copyShared starts the threads' share as a part of the worker's job. It gives a function to be called once the GPU has written the rest. Both halves
// begin when the caller's stream is ready.
func (s *scattering) copyShared(ctx context.Context, w *crew.Worker) (written func()) {
	if s.shared == nil {
		return nil
	}
	h, began := s.r.sharing, time.Now() // guarded by h.mu
	s.r.mapped.Beside(w, s.shared, func(f *source.Finder) error {
		if err := s.r.device.Await(s.to.After); err != nil {
			return err
		}
		h.mu.Lock()
		began = time.Now()
		h.mu.Unlock()
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
