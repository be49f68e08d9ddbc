package store

import "sync/atomic"

type counters struct {
	hits, fetched, uncached, published, evicted, refused, corrupt, scrubbed atomic.Int64
}

// Stats is the state of a store, and totals since Open.
type Stats struct {
	Path      string `json:"path"`
	Limit     int64  `json:"limit"`     // bytes that segments may take
	Bytes     int64  `json:"bytes"`     // that they take
	Pinned    int64  `json:"pinned"`    // of these in use, so that they cannot be evicted
	Segments  int    `json:"segments"`  // published
	Filling   int    `json:"filling"`   // segments that are being filled
	Hits      int64  `json:"hits"`      // bytes read from published segments by this process
	Fetched   int64  `json:"fetched"`   // bytes written into segments
	Uncached  int64  `json:"uncached"`  // bytes read from the origin, past the disk
	Published int64  `json:"published"` // segments
	Evicted   int64  `json:"evicted"`   // segments
	Refused   int64  `json:"refused"`   // fetches for which no room could be made
	Corrupt   int64  `json:"corrupt"`   // segments that were found damaged, and removed
	Scrubbed  int64  `json:"scrubbed"`  // bytes compared with their checksums
	Failures  int64  `json:"failures"`  // of the disk
	Sick      bool   `json:"sick"`      // the disk is left alone
	Why       string `json:"why,omitempty"`
}

// Stats gives the state and the totals.
func (s *Store) Stats() Stats {
	c := &s.stats
	out := Stats{
		Path: s.path, Limit: s.opt.Size, Hits: c.hits.Load(), Fetched: c.fetched.Load(), Uncached: c.uncached.Load(),
		Published: c.published.Load(), Evicted: c.evicted.Load(), Refused: c.refused.Load(), Corrupt: c.corrupt.Load(), Scrubbed: c.scrubbed.Load(),
	}
	out.Segments, out.Filling, out.Bytes, out.Pinned = s.ledger.sums()
	failures, why, left := s.health.state()
	out.Failures, out.Why, out.Sick = failures, why, left > 0
	return out
}
