package fs

import (
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/store"
)

// Remote is where a mount gets its bytes from when they do not lie in local files. Either may be nil.
type Remote struct {
	Origin func() fetch.Stats
	Cache  func() store.Stats
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
		stats := r.Cache()
		s.Cache = &stats
	}
	return s
}
