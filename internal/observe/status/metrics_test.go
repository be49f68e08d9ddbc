package status

import (
	"strings"
	"testing"
	"time"
)

func TestMetricsOfARemoteSource(t *testing.T) {
	s := Status{Origin: &OriginTotals{Requests: 7, Latency: make([]int64, len(LatencyBounds())+1), Waited: 1500 * time.Millisecond}, Cache: &Cache{Sick: true}}
	s.Origin.Latency[0], s.Origin.Latency[len(LatencyBounds())] = 3, 4
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
	if n := strings.Count(page, "_bucket{"); n != len(LatencyBounds())+1 {
		t.Errorf("%d buckets, want %d", n, len(LatencyBounds())+1)
	}
}
