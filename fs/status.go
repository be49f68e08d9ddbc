package fs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/layout"
)

// counters count what the daemon was asked for. What the kernel reads by passthrough it never hears of.
type counters struct {
	lookups, passthroughOpens, cachedOpens, reads, splicedBytes, copiedBytes, errors atomic.Int64
}

// failures remembers which nodes have been reported, so that a broken file that is read a million times is one line.
type failures struct{ nodes sync.Map }

// fail is where an error becomes an errno, and where it is logged: once for each file and errno.
func (m *Mount) fail(n *node, verb string, err error) fuse.Status {
	status := statusOf(err)
	if status == fuse.ENOENT || status == fuse.EINTR {
		return status
	}
	m.counters.errors.Add(1)
	type report struct {
		ino    uint64
		status fuse.Status
	}
	if _, seen := m.failed.nodes.LoadOrStore(report{n.ino, status}, true); !seen {
		m.log.Error("cannot "+verb, "file", n.name, "errno", status.String(), "error", err)
	}
	return status
}

// Status is what .hbmfs/status shows.
type Status struct {
	Version     string        `json:"version"`
	PID         int           `json:"pid"`
	Source      string        `json:"source"`
	MountPoint  string        `json:"mount_point"`
	Started     time.Time     `json:"started"`
	Objects     int           `json:"objects"`
	Bytes       int64         `json:"bytes"`
	Passthrough Passthrough   `json:"passthrough"`
	Indexing    bool          `json:"indexing"` // recognition still runs, and sets and views are not known yet
	Sets        []SetStatus   `json:"sets"`
	Views       int           `json:"views"`
	Problems    int           `json:"problems"`
	Counters    Counters      `json:"counters"`
	Control     ControlStatus `json:"control"`
	RemoteStatus
}

// Passthrough says whether the kernel reads whole files itself, and if not, why.
type Passthrough struct {
	On       bool   `json:"on"`
	Why      string `json:"why,omitempty"`
	Failures int64  `json:"failures"` // files that the kernel would not take
	LastErr  string `json:"last_error,omitempty"`
}

// SetStatus is a set in a few words. Counts are -1 where they are not known.
type SetStatus struct {
	Format    string       `json:"format"`
	Dir       string       `json:"dir"`
	Split     string       `json:"split,omitempty"`
	DType     layout.DType `json:"dtype"`
	Shards    int          `json:"shards"`
	Tokens    int64        `json:"tokens"`
	Documents int64        `json:"documents"`
	Samples   int64        `json:"samples"`
}

// Counters are totals since the mount.
type Counters struct {
	Lookups          int64 `json:"lookups"`
	PassthroughOpens int64 `json:"passthrough_opens"`
	CachedOpens      int64 `json:"cached_opens"`
	Reads            int64 `json:"reads"`
	SplicedBytes     int64 `json:"spliced_bytes"`
	CopiedBytes      int64 `json:"copied_bytes"`
	Errors           int64 `json:"errors"`
}

func (m *Mount) status() Status {
	s := Status{
		Version: m.opt.Version, PID: os.Getpid(), Source: m.opt.Source, MountPoint: m.point, Started: m.started,
		Objects: len(m.listing.Objects), Bytes: m.listing.Bytes(), Problems: len(m.listing.Problems), Indexing: !m.viewsMade.Load(), Sets: []SetStatus{}, Control: m.controlStatus(), RemoteStatus: m.opt.Remote.status(),
		Counters: Counters{
			Lookups: m.counters.lookups.Load(), PassthroughOpens: m.counters.passthroughOpens.Load(),
			CachedOpens: m.counters.cachedOpens.Load(), Reads: m.counters.reads.Load(),
			SplicedBytes: m.counters.splicedBytes.Load(), CopiedBytes: m.counters.copiedBytes.Load(), Errors: m.counters.errors.Load(),
		},
	}
	m.backing.mu.Lock()
	s.Passthrough = Passthrough{m.backing.off == "", m.backing.off, m.backing.failures, m.backing.lastErr}
	m.backing.mu.Unlock()
	if v := m.volume.Load(); v != nil {
		s.Views = len(v.Views)
		s.Problems += len(v.Problems())
		for _, set := range v.Sets {
			s.Sets = append(s.Sets, SetStatus{set.Format, set.Dir, set.Split, set.DType, len(set.Shards), set.Tokens(), set.Documents(), set.Samples()})
		}
	}
	return s
}

func (m *Mount) statusJSON() []byte {
	out, err := json.MarshalIndent(m.status(), "", "  ")
	if err != nil {
		panic("fs: internal error: " + err.Error())
	}
	return append(out, '\n')
}

// metricsText is the status as Prometheus reads it (text exposition format 0.0.4).
func (m *Mount) metricsText() []byte {
	s := m.status()
	var b bytes.Buffer
	one := func(name, kind, help string, value any, labels string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s%s %v\n", name, help, name, kind, name, labels, value)
	}
	flag := map[bool]int{true: 1}
	one("hbmfs_info", "gauge", "What is mounted.", 1, fmt.Sprintf("{version=%q,source=%q}", s.Version, s.Source))
	one("hbmfs_start_time_seconds", "gauge", "When the mount was made, in seconds since the epoch.", s.Started.Unix(), "")
	one("hbmfs_objects", "gauge", "Files of the source.", s.Objects, "")
	one("hbmfs_source_bytes", "gauge", "Bytes of all files of the source.", s.Bytes, "")
	one("hbmfs_indexing", "gauge", "1 while formats are still being recognized.", flag[s.Indexing], "")
	one("hbmfs_views", "gauge", "Views that the dataset may have.", s.Views, "")
	one("hbmfs_problems", "gauge", "Things found wrong in the dataset.", s.Problems, "")
	one("hbmfs_passthrough", "gauge", "1 while the kernel may read whole files itself.", flag[s.Passthrough.On], "")
	one("hbmfs_passthrough_failures_total", "counter", "Files that the kernel would not take for passthrough.", s.Passthrough.Failures, "")
	one("hbmfs_lookups_total", "counter", "Names that the kernel asked for.", s.Counters.Lookups, "")
	b.WriteString("# HELP hbmfs_opens_total Files opened, by who reads them.\n# TYPE hbmfs_opens_total counter\n")
	fmt.Fprintf(&b, "hbmfs_opens_total{path=\"passthrough\"} %d\nhbmfs_opens_total{path=\"daemon\"} %d\n", s.Counters.PassthroughOpens, s.Counters.CachedOpens)
	one("hbmfs_reads_total", "counter", "Reads that came to the daemon; passthrough reads do not.", s.Counters.Reads, "")
	b.WriteString("# HELP hbmfs_read_bytes_total Bytes that the daemon gave, by how.\n# TYPE hbmfs_read_bytes_total counter\n")
	fmt.Fprintf(&b, "hbmfs_read_bytes_total{how=\"splice\"} %d\nhbmfs_read_bytes_total{how=\"copy\"} %d\n", s.Counters.SplicedBytes, s.Counters.CopiedBytes)
	one("hbmfs_control_connections", "gauge", "Readers that are connected to the control socket.", s.Control.Connections, "")
	one("hbmfs_control_leases", "gauge", "Backing files that readers hold.", s.Control.Leases, "")
	one("hbmfs_control_tickets_total", "counter", "Tickets issued.", s.Control.Issued, "")
	one("hbmfs_control_refused_total", "counter", "Requests and connections on the control socket that were refused.", s.Control.Refused+s.Control.TurnedAway, "")
	one("hbmfs_control_readers", "gauge", "Readers that share the host, each with all of its connections.", s.Control.Readers, "")
	writeClients(&b, s.Control.Clients)
	s.write(&b)
	one("hbmfs_errors_total", "counter", "Requests that failed.", s.Counters.Errors, "")
	return b.Bytes()
}
