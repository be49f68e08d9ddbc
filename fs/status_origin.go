package fs

import (
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/layout"
)

// Remote is where a mount gets its bytes from when they do not lie in local files. Either may be nil.
type Remote struct {
	Origin func() fetch.Stats
	Cache  Cache
}

// Cache keeps what comes from elsewhere: from one origin or from several, such as the source and what decodes it.
type Cache interface {
	Stats() store.Stats
	// Plan says what a reader, any comparable value, will read next, after what it said before: runs of kept objects. It
	// reports whether there was room to remember that.
	Plan(reader any, runs []layout.Run) bool
	// EndPlan forgets what a reader has planned.
	EndPlan(reader any)
}

// RemoteStatus is what status shows of a remote source.
type RemoteStatus struct {
	Origin *fetch.Stats `json:"origin,omitempty"`
	Cache  *store.Stats `json:"cache,omitempty"`
}

func (r *Remote) status() RemoteStatus {
	var s RemoteStatus
	if r.Origin != nil {
		stats := r.Origin()
		s.Origin = &stats
	}
	if r.Cache != nil {
		stats := r.Cache.Stats()
		s.Cache = &stats
	}
	return s
}
