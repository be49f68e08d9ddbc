package fs

import (
	"bytes"
	"fmt"

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

// write adds the metrics of a remote source.
func (s *RemoteStatus) write(b *bytes.Buffer) {
	one := func(name, kind, help string, value any) {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n%s %v\n", name, help, name, kind, name, value)
	}
	if o := s.Origin; o != nil {
		one("hbmfs_origin_requests_total", "counter", "Requests to the origin, retries among them.", o.Requests)
		one("hbmfs_origin_bytes_total", "counter", "Bytes that the origin gave.", o.Bytes)
		one("hbmfs_origin_retries_total", "counter", "Requests after one that failed.", o.Retries)
		one("hbmfs_origin_stalls_total", "counter", "Requests that were ended because nothing came.", o.Stalls)
		one("hbmfs_origin_short_total", "counter", "Answers that ended early.", o.Short)
		one("hbmfs_origin_hedges_total", "counter", "Second requests for slow first ones.", o.Hedges)
		one("hbmfs_origin_failed_total", "counter", "Ranges that were given up.", o.Failed)
		name := "hbmfs_origin_answer_seconds"
		fmt.Fprintf(b, "# HELP %s Time until the origin answers a request.\n# TYPE %s histogram\n", name, name)
		count := int64(0)
		for i, bound := range fetch.Bounds() {
			count += o.Latency[i]
			fmt.Fprintf(b, "%s_bucket{le=\"%g\"} %d\n", name, bound.Seconds(), count)
		}
		count += o.Latency[len(o.Latency)-1]
		fmt.Fprintf(b, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %g\n%s_count %d\n", name, count, name, o.Waited.Seconds(), name, count)
	}
	if c := s.Cache; c != nil {
		one("hbmfs_cache_limit_bytes", "gauge", "Bytes that the cache may take.", c.Limit)
		one("hbmfs_cache_bytes", "gauge", "Bytes that the cache takes.", c.Bytes)
		one("hbmfs_cache_pinned_bytes", "gauge", "Bytes of the cache that are in use and cannot be evicted.", c.Pinned)
		one("hbmfs_cache_segments", "gauge", "Published segments.", c.Segments)
		one("hbmfs_cache_filling_segments", "gauge", "Segments that are being filled.", c.Filling)
		one("hbmfs_cache_hit_bytes_total", "counter", "Bytes that the daemon read from published segments.", c.Hits)
		one("hbmfs_cache_fetched_bytes_total", "counter", "Bytes written into segments.", c.Fetched)
		one("hbmfs_cache_uncached_bytes_total", "counter", "Bytes read past the cache.", c.Uncached)
		one("hbmfs_cache_published_total", "counter", "Segments that were filled.", c.Published)
		one("hbmfs_cache_evicted_total", "counter", "Segments that were evicted.", c.Evicted)
		one("hbmfs_cache_refused_total", "counter", "Fetches for which no room could be made.", c.Refused)
		one("hbmfs_cache_corrupt_total", "counter", "Segments that were found damaged.", c.Corrupt)
		one("hbmfs_cache_scrubbed_bytes_total", "counter", "Bytes compared with their checksums.", c.Scrubbed)
		one("hbmfs_cache_disk_failures_total", "counter", "Failures of the cache's disk.", c.Failures)
		one("hbmfs_cache_sick", "gauge", "1 while the cache's disk is left alone after a failure.", map[bool]int{true: 1}[c.Sick])
	}
}
