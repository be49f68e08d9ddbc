package status

import "time"

// OriginTotals has the totals of requests to a remote source since its start.
type OriginTotals struct {
	Requests int64 `json:"requests"` // retries and hedges among them
	Bytes    int64 `json:"bytes"`    // handed on
	Retries  int64 `json:"retries"`  // attempts after one that failed
	Stalls   int64 `json:"stalls"`   // attempts that were ended because nothing came, or too little
	Short    int64 `json:"short"`    // bodies that ended early
	Hedges   int64 `json:"hedges"`   // second requests for slow first ones
	Failed   int64 `json:"failed"`   // ranges that were given up
	// Latency counts requests by the time to the answer: bucket i holds those of up to LatencyBounds()[i], the last all others.
	Latency []int64       `json:"latency"`
	Waited  time.Duration `json:"waited_ns"` // the sum of these times

	Endpoints []Endpoint `json:"endpoints,omitempty"` // of a source that is read through caches, and last the source itself
}

// Endpoint counts bytes from one of several servers that give the same objects.
type Endpoint struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
	Bytes    int64  `json:"bytes"`
	Failed   int64  `json:"failed"` // requests that it did not answer, or not in time, or not to the end
	Late     int64  `json:"late"`   // requests that another one answered, since it took far longer than it does as a rule
	Wrong    int64  `json:"wrong"`  // answers of another version, length or range, of which no byte was taken
	Out      string `json:"out"`    // why it is passed over now, "" while it is not
}

// LatencyBuckets is the number of bounds of Origin.Latency.
const LatencyBuckets = 14

// LatencyBounds are the upper ends of Origin.Latency's buckets: 1 ms, doubling.
func LatencyBounds() []time.Duration {
	out := make([]time.Duration, LatencyBuckets)
	for i := range out {
		out[i] = time.Millisecond << i
	}
	return out
}

// Cache is the state of the cache of a remote source, and totals since its start.
type Cache struct {
	Path       string `json:"path"`
	Limit      int64  `json:"limit"`      // bytes that segments may take
	Bytes      int64  `json:"bytes"`      // that they take
	Pinned     int64  `json:"pinned"`     // of these in use, so that they cannot be evicted
	Segments   int    `json:"segments"`   // published
	Filling    int    `json:"filling"`    // segments that are being filled
	Hits       int64  `json:"hits"`       // bytes read from published segments by this process
	Fetched    int64  `json:"fetched"`    // bytes written into segments
	Uncached   int64  `json:"uncached"`   // bytes read from the origin, past the disk
	Published  int64  `json:"published"`  // segments
	Evicted    int64  `json:"evicted"`    // segments
	Refused    int64  `json:"refused"`    // fetches for which no room could be made
	Corrupt    int64  `json:"corrupt"`    // segments that were found damaged, and removed
	Scrubbed   int64  `json:"scrubbed"`   // bytes compared with their checksums
	Compared   int64  `json:"compared"`   // objects that have the hash of their source, once all of their bytes were here
	Mismatched int64  `json:"mismatched"` // times that one has not: it is fetched again, and refused the second time
	Failures   int64  `json:"failures"`   // of the disk
	Sick       bool   `json:"sick"`       // the disk is left alone
	Why        string `json:"why,omitempty"`
}
