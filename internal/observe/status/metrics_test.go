package status

import (
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/store"
)

func TestMetricsOfARemoteSource(t *testing.T) {
	s := Status{Origin: &fetch.Stats{Requests: 7, Latency: make([]int64, len(fetch.Bounds())+1), Waited: 1500 * time.Millisecond}, Cache: &store.Stats{Sick: true}}
	s.Origin.Latency[0], s.Origin.Latency[len(fetch.Bounds())] = 3, 4
	page := s.Metrics()
	for _, line := range []string{
		"# TYPE hbmfs_origin_answer_seconds histogram",
		`hbmfs_origin_answer_seconds_bucket{le="+Inf"} 7`,
		"hbmfs_origin_answer_seconds_sum 1.5",
		"hbmfs_origin_answer_seconds_count 7",
		"hbmfs_origin_requests_total 7",
		"hbmfs_cache_sick 1",
		"# TYPE hbmfs_client_connections gauge",
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("no line %q in\n%s", line, page)
		}
	}
	if n := strings.Count(page, "_bucket{"); n != len(fetch.Bounds())+1 {
		t.Errorf("%d buckets, want %d", n, len(fetch.Bounds())+1)
	}
}
