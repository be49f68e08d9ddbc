package main

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/aside"
)

// topStatus is the part of a mount's status that top shows. A daemon of another version may leave parts out.
type topStatus struct {
	PID         int            `json:"pid"`
	Source      string         `json:"source"`
	Started     time.Time      `json:"started"`
	Notes       []string       `json:"notes"`
	Passthrough fs.Passthrough `json:"passthrough"`
	Counters    fs.Counters    `json:"counters"`
	OpenFiles   fs.OpenFiles   `json:"open_files"`
	Control     struct {
		On      bool              `json:"on"`
		Why     string            `json:"why"`
		Readers int               `json:"readers"`
		Leases  int64             `json:"leases"`
		Clients []fs.ClientStatus `json:"clients"`
	} `json:"control"`
	fs.RemoteStatus
}

// topRow is a mount in one sample, compared with the sample before.
type topRow struct {
	MountPoint string          `json:"mount_point"`
	AlsoAt     []string        `json:"also_at,omitempty"` // bind mounts of it
	State      aside.State     `json:"state"`
	Error      string          `json:"error,omitempty"`
	Rates      *topRates       `json:"rates,omitempty"`          // none where the mount did not answer twice
	Answers    *topLatency     `json:"origin_answers,omitempty"` // between the samples, where there were any
	Status     json.RawMessage `json:"status,omitempty"`

	status *topStatus
	at     time.Time
}

// topRates are per second, between two samples.
type topRates struct {
	Seconds          float64     `json:"seconds"` // between the samples
	PassthroughOpens float64     `json:"passthrough_opens"`
	DaemonOpens      float64     `json:"daemon_opens"`
	Reads            float64     `json:"reads"`
	SplicedBytes     float64     `json:"spliced_bytes"`
	CopiedBytes      float64     `json:"copied_bytes"`
	ReaderBytes      float64     `json:"reader_bytes"` // past FUSE, by all readers
	Readers          []topReader `json:"readers"`
	OriginRequests   float64     `json:"origin_requests"`
	OriginBytes      float64     `json:"origin_bytes"`
	CacheHitBytes    float64     `json:"cache_hit_bytes"`
	FetchedBytes     float64     `json:"cache_fetched_bytes"`
	UncachedBytes    float64     `json:"cache_uncached_bytes"`
	Errors           float64     `json:"errors"`
}

// topReader is what the readers of one name moved by one path for one reason.
type topReader struct {
	Name   string  `json:"name"`
	Path   string  `json:"path"`
	Reason string  `json:"reason"`
	Bytes  float64 `json:"bytes"`
}

// topLatency says how long answers took. Times are upper bounds: those of the histogram that the daemon keeps.
type topLatency struct {
	Count   int64   `json:"count"`
	P50     float64 `json:"p50_seconds"`
	P99     float64 `json:"p99_seconds"`
	Slowest float64 `json:"slowest_seconds"` // the last bound for all that took longer
}

// rowsOf makes rows of samples, with rates where the row before is of the same daemon.
func rowsOf(samples []mountSample, before []topRow) []topRow {
	rows := make([]topRow, len(samples))
	for i, s := range samples {
		r := topRow{MountPoint: s.points[0], AlsoAt: s.points[1:], State: s.State, Error: s.Error, at: s.at}
		if s.State == aside.OK {
			r.Status, r.status = s.Text, new(topStatus)
			if err := json.Unmarshal(s.Text, r.status); err != nil {
				r.Status, r.status = nil, nil
				r.State, r.Error = aside.Unreadable, "the status is not that of this version of hbmfs"
			}
		}
		k := slices.IndexFunc(before, func(b topRow) bool { return b.MountPoint == r.MountPoint })
		if k >= 0 {
			r.compare(&before[k])
		}
		rows[i] = r
	}
	return rows
}

// compare fills in what needs two samples.
func (r *topRow) compare(before *topRow) {
	now, then := r.status, before.status
	seconds := r.at.Sub(before.at).Seconds()
	if now == nil || then == nil || now.PID != then.PID || !now.Started.Equal(then.Started) || seconds <= 0 {
		return
	}
	rate := func(now, then int64) float64 { return float64(max(0, now-then)) / seconds }
	r.Rates = &topRates{
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
		r.Answers = latencyOf(now.Origin.Latency, then.Origin.Latency)
	}
	if now.Cache != nil && then.Cache != nil {
		r.Rates.CacheHitBytes = rate(now.Cache.Hits, then.Cache.Hits)
		r.Rates.FetchedBytes = rate(now.Cache.Fetched, then.Cache.Fetched)
		r.Rates.UncachedBytes = rate(now.Cache.Uncached, then.Cache.Uncached)
	}
}

// readersOf lists what readers move, most first.
func readersOf(now, then []fs.ClientStatus, rate func(now, then int64) float64) []topReader {
	type key struct{ name, path, reason string }
	had := map[key]int64{}
	for _, c := range then {
		for _, k := range c.Choices {
			had[key{c.Name, k.Path, k.Reason}] = k.Bytes
		}
	}
	readers := []topReader{}
	for _, c := range now {
		for _, k := range c.Choices {
			readers = append(readers, topReader{c.Name, k.Path, k.Reason, rate(k.Bytes, had[key{c.Name, k.Path, k.Reason}])})
		}
	}
	slices.SortStableFunc(readers, func(a, b topReader) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return readers
}

// latencyOf compares two histograms; then may be nil. It returns nothing where nothing was answered meanwhile.
func latencyOf(now, then []int64) *topLatency {
	bounds := fetch.Bounds()
	counts := slices.Clone(now)
	l := topLatency{}
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

// bytes is what a mount moves in all, per second, as far as its daemon knows.
func (r *topRow) bytes() float64 {
	if r.Rates == nil {
		return 0
	}
	return r.Rates.SplicedBytes + r.Rates.CopiedBytes + r.Rates.ReaderBytes
}

func (r *topRow) errors() int64 {
	if r.status == nil {
		return 0
	}
	return r.status.Counters.Errors
}

// Orders of rows.
const (
	sortName   = "name"
	sortBytes  = "bytes"
	sortErrors = "errors"
)

// topOrders lists them, in the order in which a key goes through them.
func topOrders() []string { return []string{sortName, sortBytes, sortErrors} }

// sortRows orders rows by name, or by the most of something.
func sortRows(rows []topRow, by string) {
	slices.SortStableFunc(rows, func(a, b topRow) int {
		byName := cmp.Compare(a.MountPoint, b.MountPoint)
		switch by {
		case sortBytes:
			return cmp.Or(cmp.Compare(b.bytes(), a.bytes()), byName)
		case sortErrors:
			return cmp.Or(cmp.Compare(b.errors(), a.errors()), byName)
		}
		return byName
	})
}
