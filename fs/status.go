package fs

import (
	"encoding/json"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

// counters count what the daemon was asked for. What the kernel reads by passthrough it never hears of.
type counters struct {
	lookups, passthroughOpens, cachedOpens, reads, splicedBytes, copiedBytes atomic.Int64
	passthroughCloses, cachedCloses                                          atomic.Int64
}

// failures counts them, and remembers which nodes have been reported, so that a broken file that is read a million times
// is one line.
type failures struct {
	nodes sync.Map

	mu      sync.Mutex
	byErrno map[string]int64 // statusOf knows less than ten
}

func (f *failures) count(status fuse.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byErrno == nil {
		f.byErrno = map[string]int64{}
	}
	f.byErrno[unix.ErrnoName(unix.Errno(status))]++
}

// counted returns the failures by errno. Those that say what is wrong with a dataset are always there.
func (f *failures) counted() (byErrno map[string]int64, all int64) {
	byErrno = map[string]int64{"EIO": 0, "ESTALE": 0}
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(byErrno, f.byErrno)
	for _, n := range byErrno {
		all += n
	}
	return byErrno, all
}

// fail is where an error becomes an errno, and where it is logged: once for each file and errno.
func (m *Mount) fail(n *node, verb string, err error) fuse.Status {
	status := statusOf(err)
	if status == fuse.ENOENT || status == fuse.EINTR {
		return status
	}
	m.failed.count(status)
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
	Notes       []string      `json:"notes"` // what is wrong, one line each, the first few
	Counters    Counters      `json:"counters"`
	OpenFiles   OpenFiles     `json:"open_files"`
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

	ErrorsByErrno map[string]int64 `json:"errors_by_errno"`
}

// OpenFiles are the files that are open now, by who reads them.
type OpenFiles struct {
	Passthrough int64 `json:"passthrough"`
	Daemon      int64 `json:"daemon"`
}

// openFiles reads the closes first, so that no number is below zero.
func (c *counters) openFiles() OpenFiles {
	closed := OpenFiles{c.passthroughCloses.Load(), c.cachedCloses.Load()}
	return OpenFiles{c.passthroughOpens.Load() - closed.Passthrough, c.cachedOpens.Load() - closed.Daemon}
}

func (m *Mount) status() Status {
	s := Status{
		Version: m.opt.Version, PID: os.Getpid(), Source: m.opt.Source, MountPoint: m.point, Started: m.started,
		Objects: len(m.listing.Objects), Bytes: m.listing.Bytes(), Problems: len(m.listing.Problems), Indexing: !m.viewsMade.Load(), Notes: m.notesFor(m.access.toldOf), Sets: []SetStatus{}, Control: m.controlStatus(), RemoteStatus: m.opt.Remote.status(),
		Counters: Counters{
			Lookups: m.counters.lookups.Load(), PassthroughOpens: m.counters.passthroughOpens.Load(),
			CachedOpens: m.counters.cachedOpens.Load(), Reads: m.counters.reads.Load(),
			SplicedBytes: m.counters.splicedBytes.Load(), CopiedBytes: m.counters.copiedBytes.Load(),
		},
		OpenFiles: m.counters.openFiles(),
	}
	s.Counters.ErrorsByErrno, s.Counters.Errors = m.failed.counted()
	m.backing.mu.Lock()
	s.Passthrough = Passthrough{m.backing.off == "", m.backing.off, m.backing.failures, m.backing.lastErr}
	m.backing.mu.Unlock()
	if v := m.volume.Load(); v != nil {
		s.Views = len(v.Views)
		s.Problems += len(v.Problems())
		for _, set := range v.Sets {
			dir, split := set.Dir, set.Split
			if !m.access.listedByAll(dir) { // which everybody would read here
				dir, split = "(not for everybody)", ""
			}
			s.Sets = append(s.Sets, SetStatus{set.Format, dir, split, set.DType, len(set.Shards), set.Tokens(), set.Documents(), set.Samples()})
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
