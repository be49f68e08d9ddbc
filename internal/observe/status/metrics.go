package status

import (
	"maps"
	"slices"

	"github.com/hbmfs/hbmfs/internal/observe/promtext"
)

// Metrics is the status as Prometheus reads it.
func (s *Status) Metrics() string {
	var p promtext.Page
	p.Gauge("hbmfs_info", "What is mounted.").Add(1, "version", s.Version, "source", s.Source)
	p.Gauge("hbmfs_start_time_seconds", "When the mount was made, in seconds since the epoch.").Add(s.Started.Unix())
	p.Gauge("hbmfs_objects", "Files of the source.").Add(s.Objects)
	p.Gauge("hbmfs_source_bytes", "Bytes of all files of the source.").Add(s.Bytes)
	p.Gauge("hbmfs_indexing", "1 while formats are still being recognized.").Add(s.Indexing)
	p.Gauge("hbmfs_views", "Views of the dataset that exist, as far as they were built.").Add(s.Views)
	p.Gauge("hbmfs_problems", "Things found wrong in the dataset.").Add(s.Problems)
	p.Gauge("hbmfs_passthrough", "1 while the kernel may read whole files itself.").Add(s.Passthrough.On)
	if !s.Passthrough.On {
		p.Gauge("hbmfs_passthrough_off", "1, with the reason, while the kernel may not read whole files itself.").Add(1, "reason", s.Passthrough.Why)
	}
	p.Counter("hbmfs_passthrough_failures_total", "Files that the kernel would not take for passthrough.").Add(s.Passthrough.Failures)
	p.Counter("hbmfs_lookups_total", "Names that the kernel asked for.").Add(s.Counters.Lookups)
	p.Counter("hbmfs_opens_total", "Files opened, by who reads them.").
		Add(s.Counters.PassthroughOpens, "path", "passthrough").
		Add(s.Counters.CachedOpens, "path", "daemon")
	p.Gauge("hbmfs_open_files", "Files that are open now, by who reads them.").
		Add(s.OpenFiles.Passthrough, "path", "passthrough").
		Add(s.OpenFiles.Daemon, "path", "daemon")
	p.Counter("hbmfs_reads_total", "Reads that came to the daemon; passthrough reads do not.").Add(s.Counters.Reads)
	p.Counter("hbmfs_read_bytes_total", "Bytes that the daemon gave, by how.").
		Add(s.Counters.SplicedBytes, "path", "splice").
		Add(s.Counters.CopiedBytes, "path", "copy")
	failed := p.Counter("hbmfs_errors_total", "Requests that failed, by errno.")
	for _, errno := range slices.Sorted(maps.Keys(s.Counters.ErrorsByErrno)) {
		failed.Add(s.Counters.ErrorsByErrno[errno], "errno", errno)
	}
	p.Gauge("hbmfs_held", "1 while another daemon would go on with the mount.").Add(s.Handover.Holder != "")
	p.Counter("hbmfs_handovers_total", "Daemons that went on with the mount of another, by why that had ended.").
		Add(s.Handover.Crashes, "after", "crash").
		Add(s.Handover.Count-s.Handover.Crashes, "after", "upgrade")
	p.Counter("hbmfs_uncopied_total", "Changes of drafts that went on without a copy outside of the daemon's container.").Add(s.Handover.Uncopied)
	p.Gauge("hbmfs_standstill_seconds", "How long readers waited at the last hand-over.").Add(s.Handover.LastStandstill)
	s.Control.addTo(&p)
	if s.Origin != nil {
		addOrigin(&p, s.Origin)
	}
	if s.Cache != nil {
		addCache(&p, s.Cache)
	}
	if s.Checkpoints != nil && s.Checkpoints.Drain != nil {
		s.Checkpoints.Drain.addTo(&p)
	}
	if s.KV != nil {
		s.KV.addTo(&p)
	}
	return p.String()
}

func (s *Control) addTo(p *promtext.Page) {
	p.Gauge("hbmfs_control", "1 while readers find the control socket.").Add(s.On)
	p.Gauge("hbmfs_control_connections", "Connections of readers to the control socket.").Add(s.Connections)
	p.Gauge("hbmfs_control_readers", "Readers that share the machine, each with all of its connections.").Add(s.Readers)
	p.Gauge("hbmfs_control_leases", "Backing files that readers hold.").Add(s.Leases)
	p.Counter("hbmfs_control_tickets_total", "Tickets issued.").Add(s.Issued)
	p.Counter("hbmfs_control_refused_total", "Requests and connections on the control socket that were refused.").Add(s.Refused + s.TurnedAway)
	p.Counter("hbmfs_control_prefetched_bytes_total", "Bytes that readers had the daemon fetch ahead.").Add(s.PrefetchedBytes)
	p.Gauge("hbmfs_control_changed_objects", "Files of readers past FUSE that have changed at the source.").Add(s.Changed)
	connections := p.Gauge("hbmfs_client_connections", "Connections of the readers of one name.")
	bytes := p.Counter("hbmfs_client_bytes_total", "Bytes that readers moved past FUSE, as they reported.")
	reads := p.Counter("hbmfs_client_reads_total", "Reads of readers past FUSE, as they reported.")
	choices := p.Counter("hbmfs_client_choice_bytes_total", "The bytes of hbmfs_client_bytes_total, by why the path was taken as well.")
	fields := p.Counter("hbmfs_client_field_bytes_total", "The bytes of hbmfs_client_bytes_total that are values of fields of samples.")
	for _, c := range s.Clients {
		connections.Add(c.Connections, "client", c.Name)
		for _, path := range slices.Sorted(maps.Keys(c.Bytes)) {
			bytes.Add(c.Bytes[path], "client", c.Name, "path", path)
		}
		for _, path := range slices.Sorted(maps.Keys(c.Reads)) {
			reads.Add(c.Reads[path], "client", c.Name, "path", path)
		}
		for _, k := range c.Choices {
			choices.Add(k.Bytes, "client", c.Name, "path", k.Path, "reason", k.Reason)
		}
		for _, k := range c.Fields {
			fields.Add(k.Bytes, "client", c.Name, "field", k.Field, "path", k.Path)
		}
	}
}

func addOrigin(p *promtext.Page, o *OriginTotals) {
	p.Counter("hbmfs_origin_requests_total", "Requests to the origin, retries among them.").Add(o.Requests)
	p.Counter("hbmfs_origin_bytes_total", "Bytes that the origin gave.").Add(o.Bytes)
	p.Counter("hbmfs_origin_retries_total", "Requests after one that failed.").Add(o.Retries)
	p.Counter("hbmfs_origin_stalls_total", "Requests that were ended because nothing came.").Add(o.Stalls)
	p.Counter("hbmfs_origin_short_total", "Answers that ended early.").Add(o.Short)
	p.Counter("hbmfs_origin_hedges_total", "Second requests for slow first ones.").Add(o.Hedges)
	p.Counter("hbmfs_origin_failed_total", "Ranges that were given up.").Add(o.Failed)
	p.Histogram("hbmfs_origin_answer_seconds", "Time until the origin answers a request.", LatencyBounds(), o.Latency, o.Waited)
	if len(o.Endpoints) == 0 {
		return
	}
	requests := p.Counter("hbmfs_endpoint_requests_total", "Requests to a cache before the source, or to the source behind caches.")
	bytes := p.Counter("hbmfs_endpoint_bytes_total", "Bytes that it gave.")
	failed := p.Counter("hbmfs_endpoint_failed_total", "Requests that it did not answer, or not in time, or not to the end.")
	late := p.Counter("hbmfs_endpoint_late_total", "Requests that another server answered, since it took far longer than it does as a rule.")
	wrong := p.Counter("hbmfs_endpoint_wrong_total", "Answers of another version, length or range, of which no byte was taken.")
	out := p.Gauge("hbmfs_endpoint_out", "1 while it is passed over.")
	for _, e := range o.Endpoints {
		requests.Add(e.Requests, "endpoint", e.Name)
		bytes.Add(e.Bytes, "endpoint", e.Name)
		failed.Add(e.Failed, "endpoint", e.Name)
		late.Add(e.Late, "endpoint", e.Name)
		wrong.Add(e.Wrong, "endpoint", e.Name)
		out.Add(e.Out != "", "endpoint", e.Name)
	}
}

func addCache(p *promtext.Page, c *Cache) {
	p.Gauge("hbmfs_cache_limit_bytes", "Bytes that the cache may take.").Add(c.Limit)
	p.Gauge("hbmfs_cache_bytes", "Bytes that the cache takes.").Add(c.Bytes)
	p.Gauge("hbmfs_cache_pinned_bytes", "Bytes of the cache that are in use and cannot be evicted.").Add(c.Pinned)
	p.Gauge("hbmfs_cache_segments", "Published segments.").Add(c.Segments)
	p.Gauge("hbmfs_cache_filling_segments", "Segments that are being filled.").Add(c.Filling)
	p.Counter("hbmfs_cache_hit_bytes_total", "Bytes that the daemon read from published segments.").Add(c.Hits)
	p.Counter("hbmfs_cache_fetched_bytes_total", "Bytes written into segments.").Add(c.Fetched)
	p.Counter("hbmfs_cache_uncached_bytes_total", "Bytes read past the cache.").Add(c.Uncached)
	p.Counter("hbmfs_cache_published_total", "Segments that were filled.").Add(c.Published)
	p.Counter("hbmfs_cache_evicted_total", "Segments that were evicted.").Add(c.Evicted)
	p.Counter("hbmfs_cache_refused_total", "Fetches for which no room could be made.").Add(c.Refused)
	p.Counter("hbmfs_cache_corrupt_total", "Segments that were found damaged.").Add(c.Corrupt)
	p.Counter("hbmfs_cache_scrubbed_bytes_total", "Bytes compared with their checksums.").Add(c.Scrubbed)
	p.Counter("hbmfs_cache_compared_total", "Objects that have the hash of their source, once all of their bytes were here.").Add(c.Compared)
	p.Counter("hbmfs_cache_mismatched_total", "Times that an object did not have the hash of its source. It is fetched again, and refused the second time.").Add(c.Mismatched)
	p.Counter("hbmfs_cache_disk_failures_total", "Failures of the cache's disk.").Add(c.Failures)
	p.Gauge("hbmfs_cache_sick", "1 while the cache's disk is left alone after a failure.").Add(c.Sick)
}
