package fetch

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Stats are totals since New.
type Stats struct {
	Requests int64 `json:"requests"` // retries and hedges among them
	Bytes    int64 `json:"bytes"`    // handed on
	Retries  int64 `json:"retries"`  // attempts after one that failed
	Stalls   int64 `json:"stalls"`   // attempts that were ended because nothing came, or too little
	Short    int64 `json:"short"`    // bodies that ended early
	Hedges   int64 `json:"hedges"`   // second requests for slow first ones
	Failed   int64 `json:"failed"`   // ranges that were given up
	// Latency counts requests by the time to the answer: bucket i holds those of up to Bounds()[i], the last all others.
	Latency []int64       `json:"latency"`
	Waited  time.Duration `json:"waited_ns"` // the sum of these times

	Endpoints []Endpoint `json:"endpoints,omitempty"` // of a source that is read through caches, and last the source itself
}

// Endpoint is what came from one of several servers that give the same objects.
type Endpoint struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Bytes    int64  `json:"bytes"`
	Failed   int64  `json:"failed"` // requests that it did not answer, or not in time, or not to the end
	Late     int64  `json:"late"`   // requests that another one answered, since it took far longer than it does as a rule
	Wrong    int64  `json:"wrong"`  // answers of another version, length or range, of which no byte was taken
	Out      string `json:"out"`    // why it is passed over now, "" while it is not
}

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
func (c *Client) Stats() Stats {
	s := &c.stats
	out := Stats{
		Requests: s.requests.Load(), Bytes: s.bytes.Load(), Retries: s.retries.Load(), Stalls: s.stalls.Load(),
		Short: s.short.Load(), Hedges: s.hedged.Load(), Failed: s.failed.Load(), Waited: time.Duration(s.latency.sum.Load()),
	}
	for i := range s.latency.counts {
		out.Latency = append(out.Latency, s.latency.counts[i].Load())
	}
	return out
}

const latencyBuckets = 14

// Bounds are the upper ends of Stats.Latency's buckets: 1 ms, doubling.
func Bounds() []time.Duration {
	out := make([]time.Duration, latencyBuckets)
	for i := range out {
		out[i] = time.Millisecond << i
	}
	return out
}

type histogram struct {
	counts [latencyBuckets + 1]atomic.Int64
	sum    atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < latencyBuckets && d > time.Millisecond<<i {
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
	const enough, least = 16, 100 * time.Millisecond
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen < enough {
		return 0, false
	}
	return max(least, time.Duration((f.mean+6*f.dev)*float64(time.Second))), true
}
