package top

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// Row is a mount in one sample, compared with the sample before.
type Row struct {
	MountPoint string          `json:"mount_point"`
	AlsoAt     []string        `json:"also_at,omitempty"` // bind mounts of it
	State      aside.State     `json:"state"`
	Error      string          `json:"error,omitempty"`
	Rates      *Rates          `json:"rates,omitempty"`          // none where the mount did not answer twice
	Answers    *Latency        `json:"origin_answers,omitempty"` // between the samples, where there were any
	Status     json.RawMessage `json:"status,omitempty"`

	Told *status.Status `json:"-"` // Status, read; nil where it says nothing
	at   time.Time      // of the sample
}

// Rates are per second, between two samples.
type Rates struct {
	Seconds          float64  `json:"seconds"` // between the samples
	PassthroughOpens float64  `json:"passthrough_opens"`
	DaemonOpens      float64  `json:"daemon_opens"`
	Reads            float64  `json:"reads"`
	SplicedBytes     float64  `json:"spliced_bytes"`
	CopiedBytes      float64  `json:"copied_bytes"`
	ReaderBytes      float64  `json:"reader_bytes"` // past FUSE, by all readers
	Readers          []Reader `json:"readers"`
	OriginRequests   float64  `json:"origin_requests"`
	OriginBytes      float64  `json:"origin_bytes"`
	CacheHitBytes    float64  `json:"cache_hit_bytes"`
	FetchedBytes     float64  `json:"cache_fetched_bytes"`
	UncachedBytes    float64  `json:"cache_uncached_bytes"`
	Errors           float64  `json:"errors"`
}

// Reader has the bytes of the readers of one name by one path for one reason.
type Reader struct {
	Name   string  `json:"name"`
	Path   string  `json:"path"`
	Reason string  `json:"reason"`
	Bytes  float64 `json:"bytes"`
}

// Latency says how long answers took. Times are upper bounds: those of the histogram that the daemon keeps.
type Latency struct {
	Count   int64   `json:"count"`
	P50     float64 `json:"p50_seconds"`
	P99     float64 `json:"p99_seconds"`
	Slowest float64 `json:"slowest_seconds"` // the last bound for all that took longer
}

// Rows makes rows of samples, with rates where the row before is of the same daemon.
func Rows(samples []Sample, before []Row) []Row {
	rows := make([]Row, len(samples))
	for i, s := range samples {
		r := Row{MountPoint: s.Points[0], AlsoAt: s.Points[1:], State: s.State, Error: s.Error, at: s.At}
		if s.State == aside.OK {
			r.Status, r.Told = s.Text, new(status.Status)
			if err := json.Unmarshal(s.Text, r.Told); err != nil {
				r.Status, r.Told = nil, nil
				r.State, r.Error = aside.Unreadable, "the status is not that of this version of hbmfs"
			} else if why := degraded(r.Told); why != "" {
				r.State, r.Error = Degraded, why
			}
		}
		k := slices.IndexFunc(before, func(b Row) bool { return b.MountPoint == r.MountPoint })
		if k >= 0 {
			r.compare(&before[k])
		}
		rows[i] = r
	}
	return rows
}

// Degraded is the state of a mount that answers, while reads of it have failed, its files have changed, or its cache does not work.
const Degraded aside.State = "degraded"

// degraded says why a mount is, and nothing where it is well. Other errors than these come from requests of programs: for a missing file, or
// a right.
func degraded(s *status.Status) string {
	stale, failed := s.Counters.ErrorsByErrno["ESTALE"], s.Counters.ErrorsByErrno["EIO"]
	switch {
	case s.Cache != nil && s.Cache.Sick:
		return "the cache does not work: " + s.Cache.Why
	case s.Control.Changed > 0:
		return fmt.Sprintf("files of the source have changed under the mount (%d so far, and the log names the first): mount it again", s.Control.Changed)
	case stale > 0:
		return fmt.Sprintf("reads failed with ESTALE (%d so far): a file of the source changed under the mount, so mount it again", stale)
	case failed > 0:
		return fmt.Sprintf("reads failed with EIO (%d so far): the source did not give its bytes", failed)
	}
	return ""
}

// compare fills in the fields that need two samples.
func (r *Row) compare(before *Row) {
	now, then := r.Told, before.Told
	seconds := r.at.Sub(before.at).Seconds()
	if now == nil || then == nil || now.PID != then.PID || !now.Started.Equal(then.Started) || seconds <= 0 {
		return
	}
	rate := func(now, then int64) float64 { return float64(max(0, now-then)) / seconds }
	r.Rates = &Rates{
		Seconds:          seconds,
		PassthroughOpens: rate(now.Counters.PassthroughOpens, then.Counters.PassthroughOpens),
		DaemonOpens:      rate(now.Counters.CachedOpens, then.Counters.CachedOpens),
		Reads:            rate(now.Counters.Reads, then.Counters.Reads),
		SplicedBytes:     rate(now.Counters.SplicedBytes, then.Counters.SplicedBytes),
		CopiedBytes:      rate(now.Counters.CopiedBytes, then.Counters.CopiedBytes),
		Errors:           rate(now.Counters.Errors, then.Counters.Errors),
		Readers:          readersOf(now.Control.Clients, then.Control.Clients, rate),
	}
	for _, c := range r.Rates.Readers {
		r.Rates.ReaderBytes += c.Bytes
	}
	if now.Origin != nil && then.Origin != nil {
		r.Rates.OriginRequests = rate(now.Origin.Requests, then.Origin.Requests)
		r.Rates.OriginBytes = rate(now.Origin.Bytes, then.Origin.Bytes)
		r.Answers = LatencyOf(now.Origin.Latency, then.Origin.Latency)
	}
	if now.Cache != nil && then.Cache != nil {
		r.Rates.CacheHitBytes = rate(now.Cache.Hits, then.Cache.Hits)
		r.Rates.FetchedBytes = rate(now.Cache.Fetched, then.Cache.Fetched)
		r.Rates.UncachedBytes = rate(now.Cache.Uncached, then.Cache.Uncached)
	}
}

// readersOf lists the rates of readers, the highest first.
func readersOf(now, then []status.Client, rate func(now, then int64) float64) []Reader {
	type key struct{ name, path, reason string }
	had := map[key]int64{}
	for _, c := range then {
		for _, k := range c.Choices {
			had[key{c.Name, k.Path, k.Reason}] = k.Bytes
		}
	}
	readers := []Reader{}
	for _, c := range now {
		for _, k := range c.Choices {
			readers = append(readers, Reader{c.Name, k.Path, k.Reason, rate(k.Bytes, had[key{c.Name, k.Path, k.Reason}])})
		}
	}
	slices.SortStableFunc(readers, func(a, b Reader) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return readers
}

// LatencyOf compares two histograms; then may be nil. It returns nothing where nothing was answered meanwhile.
func LatencyOf(now, then []int64) *Latency {
	bounds := status.LatencyBounds()
	counts := slices.Clone(now)
	l := Latency{}
	for i := range counts {
		if i < len(then) {
			counts[i] = max(0, counts[i]-then[i])
		}
		l.Count += counts[i]
	}
	if l.Count == 0 {
		return nil
	}
	sum := int64(0)
	for i, n := range counts {
		if n == 0 {
			continue
		}
		bound := bounds[min(i, len(bounds)-1)].Seconds()
		if 2*sum < l.Count {
			l.P50 = bound
		}
		if 100*sum < 99*l.Count {
			l.P99 = bound
		}
		sum += n
		l.Slowest = bound
	}
	return &l
}

// Bytes is the rate of all bytes that a mount moves, as far as its daemon knows.
func (r *Row) Bytes() float64 {
	if r.Rates == nil {
		return 0
	}
	return r.Rates.SplicedBytes + r.Rates.CopiedBytes + r.Rates.ReaderBytes
}

func (r *Row) errors() int64 {
	if r.Told == nil {
		return 0
	}
	return r.Told.Counters.Errors
}

// Orders of rows.
const (
	ByName   = "name"
	ByBytes  = "bytes"
	ByErrors = "errors"
)

// Orders lists them, in the order in which a key goes through them.
func Orders() []string { return []string{ByName, ByBytes, ByErrors} }

// Sort orders rows by name, or by the most of something.
func Sort(rows []Row, by string) {
	slices.SortStableFunc(rows, func(a, b Row) int {
		byName := cmp.Compare(a.MountPoint, b.MountPoint)
		switch by {
		case ByBytes:
			return cmp.Or(cmp.Compare(b.Bytes(), a.Bytes()), byName)
		case ByErrors:
			return cmp.Or(cmp.Compare(b.errors(), a.errors()), byName)
		}
		return byName
	})
}
