package store

import (
	"sync/atomic"

	"github.com/hbmfs/hbmfs/internal/observe/status"
)

type counters struct {
	hits, fetched, uncached, published, evicted, refused, corrupt, scrubbed, compared, mismatched atomic.Int64
}

// Stats gives the state and the totals.
func (s *Store) Stats() status.Cache {
	c := &s.stats
	out := status.Cache{
		Path: s.path, Limit: s.opt.Size, Hits: c.hits.Load(), Fetched: c.fetched.Load(), Uncached: c.uncached.Load(),
		Published: c.published.Load(), Evicted: c.evicted.Load(), Refused: c.refused.Load(), Corrupt: c.corrupt.Load(), Scrubbed: c.scrubbed.Load(),
		Compared: c.compared.Load(), Mismatched: c.mismatched.Load(),
	}
	out.Segments, out.Filling, out.Bytes, out.Pinned = s.ledger.sums()
	failures, why, left := s.health.state()
	out.Failures, out.Why, out.Sick = failures, why, left > 0
	return out
}
