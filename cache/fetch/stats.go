package fetch

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/internal/observe/status"
)

type counters struct {
	requests, bytes, retries, stalls, short, hedged, failed atomic.Int64
	latency                                                 histogram
}

func (c *counters) retried(err error) {
	c.retries.Add(1)
	switch {
	case errors.Is(err, ErrStalled), errors.Is(err, ErrSlow):
		c.stalls.Add(1)
	case errors.Is(err, ErrShort):
		c.short.Add(1)
	}
}

// Stats gives the totals so far.
func (c *Client) Stats() status.OriginTotals {
	s := &c.stats
	out := status.OriginTotals{
		Requests: s.requests.Load(), Bytes: s.bytes.Load(), Retries: s.retries.Load(), Stalls: s.stalls.Load(),
		Short: s.short.Load(), Hedges: s.hedged.Load(), Failed: s.failed.Load(), Waited: time.Duration(s.latency.sum.Load()),
	}
	for i := range s.latency.counts {
		out.Latency = append(out.Latency, s.latency.counts[i].Load())
	}
	return out
}

type histogram struct {
	counts [status.LatencyBuckets + 1]atomic.Int64
	sum    atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < status.LatencyBuckets && d > time.Millisecond<<i {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// FirstByte learns how long answers take as a rule: a moving mean and deviation, as TCP does for its retransmission
// timer (RFC 6298).
type FirstByte struct {
	mu        sync.Mutex
	seen      int
	mean, dev float64 // seconds
}

// Observe takes an answer in.
func (f *FirstByte) Observe(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen++
	x := d.Seconds()
	if f.seen == 1 {
		f.mean, f.dev = x, x/2
		return
	}
	f.dev += (math.Abs(x-f.mean) - f.dev) / 4
	f.mean += (x - f.mean) / 8
}

// Slow is how long to wait for an answer before it is late, once enough answers were seen to tell.
func (f *FirstByte) Slow() (time.Duration, bool) {
	const enough = 16                    // answers
	const least = 100 * time.Millisecond // so that a hedge follows no answer that is only jittery
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen < enough {
		return 0, false
	}
	return max(least, time.Duration((f.mean+6*f.dev)*float64(time.Second))), true
}
