package fs

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/internal/promtext"
)

// metrics writes Prometheus' text exposition format 0.0.4.
type metrics struct{ bytes.Buffer }

// family begins a metric, whose samples follow.
func (w *metrics) family(name, kind, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes one value of the metric that was begun. Labels are names and values in turn.
func (w *metrics) sample(name string, value any, labels ...string) {
	w.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		fmt.Fprintf(w, "%c%s=%s", "{,"[min(i, 1)], labels[i], promtext.Quote(labels[i+1]))
	}
	if len(labels) > 0 {
		w.WriteByte('}')
	}
	fmt.Fprintf(w, " %v\n", value)
}

func (w *metrics) gauge(name, help string, value any, labels ...string) {
	w.family(name, "gauge", help)
	w.sample(name, value, labels...)
}

func (w *metrics) counter(name, help string, value int64) {
	w.family(name, "counter", help)
	w.sample(name, value)
}

func flag(on bool) int { return map[bool]int{true: 1}[on] }

// metricsText is the status as Prometheus reads it.
func (m *Mount) metricsText() []byte {
	var w metrics
	s := m.status()
	s.writeMetrics(&w)
	return w.Bytes()
}

func (s *Status) writeMetrics(w *metrics) {
	w.gauge("hbmfs_info", "What is mounted.", 1, "version", s.Version, "source", s.Source)
	w.gauge("hbmfs_start_time_seconds", "When the mount was made, in seconds since the epoch.", s.Started.Unix())
	w.gauge("hbmfs_objects", "Files of the source.", s.Objects)
	w.gauge("hbmfs_source_bytes", "Bytes of all files of the source.", s.Bytes)
	w.gauge("hbmfs_indexing", "1 while formats are still being recognized.", flag(s.Indexing))
	w.gauge("hbmfs_views", "Views that the dataset may have.", s.Views)
	w.gauge("hbmfs_problems", "Things found wrong in the dataset.", s.Problems)
	w.gauge("hbmfs_passthrough", "1 while the kernel may read whole files itself.", flag(s.Passthrough.On))
	if !s.Passthrough.On {
		w.gauge("hbmfs_passthrough_off", "1, with the reason, while the kernel may not read whole files itself.", 1, "reason", s.Passthrough.Why)
	}
	w.counter("hbmfs_passthrough_failures_total", "Files that the kernel would not take for passthrough.", s.Passthrough.Failures)
	w.counter("hbmfs_lookups_total", "Names that the kernel asked for.", s.Counters.Lookups)
	w.family("hbmfs_opens_total", "counter", "Files opened, by who reads them.")
	w.sample("hbmfs_opens_total", s.Counters.PassthroughOpens, "path", "passthrough")
	w.sample("hbmfs_opens_total", s.Counters.CachedOpens, "path", "daemon")
	w.family("hbmfs_open_files", "gauge", "Files that are open now, by who reads them.")
	w.sample("hbmfs_open_files", s.OpenFiles.Passthrough, "path", "passthrough")
	w.sample("hbmfs_open_files", s.OpenFiles.Daemon, "path", "daemon")
	w.counter("hbmfs_reads_total", "Reads that came to the daemon; passthrough reads do not.", s.Counters.Reads)
	w.family("hbmfs_read_bytes_total", "counter", "Bytes that the daemon gave, by how.")
	w.sample("hbmfs_read_bytes_total", s.Counters.SplicedBytes, "path", "splice")
	w.sample("hbmfs_read_bytes_total", s.Counters.CopiedBytes, "path", "copy")
	w.family("hbmfs_errors_total", "counter", "Requests that failed, by errno.")
	for _, errno := range slices.Sorted(maps.Keys(s.Counters.ErrorsByErrno)) {
		w.sample("hbmfs_errors_total", s.Counters.ErrorsByErrno[errno], "errno", errno)
	}
	s.Control.writeMetrics(w)
	if s.Origin != nil {
		writeOrigin(w, s.Origin)
	}
	if s.Cache != nil {
		writeCache(w, s.Cache)
	}
}

func (s *ControlStatus) writeMetrics(w *metrics) {
	w.gauge("hbmfs_control", "1 while readers find the control socket.", flag(s.On))
	w.gauge("hbmfs_control_connections", "Connections of readers to the control socket.", s.Connections)
	w.gauge("hbmfs_control_readers", "Readers that share the host, each with all of its connections.", s.Readers)
	w.gauge("hbmfs_control_leases", "Backing files that readers hold.", s.Leases)
	w.counter("hbmfs_control_tickets_total", "Tickets issued.", s.Issued)
	w.counter("hbmfs_control_refused_total", "Requests and connections on the control socket that were refused.", s.Refused+s.TurnedAway)
	w.counter("hbmfs_control_prefetched_bytes_total", "Bytes that readers had the daemon fetch ahead.", s.PrefetchedBytes)
	w.family("hbmfs_client_connections", "gauge", "Connections of the readers of one name.")
	for _, c := range s.Clients {
		w.sample("hbmfs_client_connections", c.Connections, "client", c.Name)
	}
	for _, of := range []struct {
		name, help string
		amount     func(*ClientStatus) map[string]int64
	}{
		{"hbmfs_client_bytes_total", "Bytes that readers moved past FUSE, as they reported.", func(c *ClientStatus) map[string]int64 { return c.Bytes }},
		{"hbmfs_client_reads_total", "Reads of readers past FUSE, as they reported.", func(c *ClientStatus) map[string]int64 { return c.Reads }},
	} {
		w.family(of.name, "counter", of.help)
		for i := range s.Clients {
			amount := of.amount(&s.Clients[i])
			for _, path := range slices.Sorted(maps.Keys(amount)) {
				w.sample(of.name, amount[path], "client", s.Clients[i].Name, "path", path)
			}
		}
	}
	w.family("hbmfs_client_choice_bytes_total", "counter", "The bytes of hbmfs_client_bytes_total, by why the path was taken as well.")
	for _, c := range s.Clients {
		for _, k := range c.Choices {
			w.sample("hbmfs_client_choice_bytes_total", k.Bytes, "client", c.Name, "path", k.Path, "reason", k.Reason)
		}
	}
}

func writeOrigin(w *metrics, o *fetch.Stats) {
	w.counter("hbmfs_origin_requests_total", "Requests to the origin, retries among them.", o.Requests)
	w.counter("hbmfs_origin_bytes_total", "Bytes that the origin gave.", o.Bytes)
	w.counter("hbmfs_origin_retries_total", "Requests after one that failed.", o.Retries)
	w.counter("hbmfs_origin_stalls_total", "Requests that were ended because nothing came.", o.Stalls)
	w.counter("hbmfs_origin_short_total", "Answers that ended early.", o.Short)
	w.counter("hbmfs_origin_hedges_total", "Second requests for slow first ones.", o.Hedges)
	w.counter("hbmfs_origin_failed_total", "Ranges that were given up.", o.Failed)
	name, count := "hbmfs_origin_answer_seconds", int64(0)
	w.family(name, "histogram", "Time until the origin answers a request.")
	for i, bound := range fetch.Bounds() {
		count += o.Latency[i]
		w.sample(name+"_bucket", count, "le", fmt.Sprintf("%g", bound.Seconds()))
	}
	count += o.Latency[len(o.Latency)-1]
	w.sample(name+"_bucket", count, "le", "+Inf")
	w.sample(name+"_sum", o.Waited.Seconds())
	w.sample(name+"_count", count)
}

func writeCache(w *metrics, c *store.Stats) {
	w.gauge("hbmfs_cache_limit_bytes", "Bytes that the cache may take.", c.Limit)
	w.gauge("hbmfs_cache_bytes", "Bytes that the cache takes.", c.Bytes)
	w.gauge("hbmfs_cache_pinned_bytes", "Bytes of the cache that are in use and cannot be evicted.", c.Pinned)
	w.gauge("hbmfs_cache_segments", "Published segments.", c.Segments)
	w.gauge("hbmfs_cache_filling_segments", "Segments that are being filled.", c.Filling)
	w.counter("hbmfs_cache_hit_bytes_total", "Bytes that the daemon read from published segments.", c.Hits)
	w.counter("hbmfs_cache_fetched_bytes_total", "Bytes written into segments.", c.Fetched)
	w.counter("hbmfs_cache_uncached_bytes_total", "Bytes read past the cache.", c.Uncached)
	w.counter("hbmfs_cache_published_total", "Segments that were filled.", c.Published)
	w.counter("hbmfs_cache_evicted_total", "Segments that were evicted.", c.Evicted)
	w.counter("hbmfs_cache_refused_total", "Fetches for which no room could be made.", c.Refused)
	w.counter("hbmfs_cache_corrupt_total", "Segments that were found damaged.", c.Corrupt)
	w.counter("hbmfs_cache_scrubbed_bytes_total", "Bytes compared with their checksums.", c.Scrubbed)
	w.counter("hbmfs_cache_disk_failures_total", "Failures of the cache's disk.", c.Failures)
	w.gauge("hbmfs_cache_sick", "1 while the cache's disk is left alone after a failure.", flag(c.Sick))
}
