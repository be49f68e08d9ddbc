// Package status owns the status of a mount: its schema in JSON, and the page of metrics that is made of it. Package fs fills it in.
package status

import (
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// Status is the content of .hbmfs/status.
type Status struct {
	Version     string        `json:"version"`
	PID         int           `json:"pid"`
	Source      string        `json:"source"`
	MountPoint  string        `json:"mount_point"`
	Started     time.Time     `json:"started"`
	Log         string        `json:"log,omitempty"` // file that the daemon logs to; none in the foreground
	Objects     int           `json:"objects"`
	Bytes       int64         `json:"bytes"`
	Passthrough Passthrough   `json:"passthrough"`
	Indexing    bool          `json:"indexing"` // recognition still runs, and sets and views are not known yet
	Sets        []Set         `json:"sets"`
	Views       int           `json:"views"`                   // that exist
	Unbuilt     int           `json:"views_unbuilt,omitempty"` // that may exist: nobody has built them yet
	Problems    int           `json:"problems"`
	Hints       []layout.Hint `json:"hints,omitempty"` // the first files that may hold tokens and have no views
	Notes       []string      `json:"notes"`           // the first findings, one line each
	Counters    Counters      `json:"counters"`
	OpenFiles   OpenFiles     `json:"open_files"`
	Control     Control       `json:"control"`
	Handover    Handover      `json:"handover"`
	Origin      *OriginTotals `json:"origin,omitempty"` // of a remote source
	Cache       *Cache        `json:"cache,omitempty"`
	Checkpoints *Checkpoints  `json:"checkpoints,omitempty"` // of a checkpoint volume
	KV          *KV           `json:"kv,omitempty"`          // of a KV volume
}

// Checkpoints are the drafts of a checkpoint volume, and its published checkpoints.
type Checkpoints struct {
	Directory string       `json:"directory"`
	Free      int64        `json:"free_bytes"` // of its filesystem
	Drafts    []DraftState `json:"drafts"`
	Published []Published  `json:"published"`
	Drain     *Drain       `json:"drain,omitempty"` // where checkpoints are copied to S3
	Refused   []string     `json:"refused"`         // the last refusals, a sentence each: an errno has no room for them
}

// DraftState is a checkpoint that is being written.
type DraftState struct {
	Name    string    `json:"name"` // in the root of the mount
	UID     uint32    `json:"uid"`
	PID     int       `json:"pid,omitempty"` // of its writer, where that is known
	Past    bool      `json:"past"`          // it is written past the kernel, through the control channel
	Since   time.Time `json:"since"`
	Idle    float64   `json:"idle_seconds"` // since the last change through the mount
	Open    int       `json:"open_files"`
	Sealing bool      `json:"sealing"` // it is being published
	Done    int64     `json:"sealed_bytes,omitempty"`
	Total   int64     `json:"bytes,omitempty"`
	Refused string    `json:"refused,omitempty"` // why the last attempt to publish it failed
}

// Published is a checkpoint of the volume.
type Published struct {
	Name    string    `json:"name"`
	State   string    `json:"state"`
	Why     string    `json:"why,omitempty"`
	Files   int       `json:"files"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created,omitzero"`
}

// Passthrough says whether the kernel reads whole files itself, and if not, why.
type Passthrough struct {
	On       bool   `json:"on"`
	Why      string `json:"why,omitempty"`
	Failures int64  `json:"failures"` // files that the kernel has refused
	LastErr  string `json:"last_error,omitempty"`
}

// Set is a set in a few words. Counts are -1 where they are not known.
type Set struct {
	Format    string       `json:"format"`
	Dir       string       `json:"dir"`
	Split     string       `json:"split,omitempty"`
	DType     layout.DType `json:"dtype"`
	Guessed   bool         `json:"dtype_guessed,omitempty"` // from the values alone
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

// OpenFiles are the files that are open now, by the reader of their bytes: the kernel, or the daemon.
type OpenFiles struct {
	Passthrough int64 `json:"passthrough"`
	Daemon      int64 `json:"daemon"`
}

// Handover says how the mount goes on when its daemon goes.
type Handover struct {
	Holder          string  `json:"holder"`             // keeper, systemd, host; "" where the mount ends with its daemon
	PID             int     `json:"pid,omitempty"`      // of the holder
	Next            int     `json:"next_pid,omitempty"` // the daemon that waits for its turn; 0: none is started yet
	Why             string  `json:"why,omitempty"`      // nobody holds the mount
	Count           int64   `json:"count"`              // daemons that took over from another
	Crashes         int64   `json:"crashes"`            // those whose predecessor had died
	Uncopied        int64   `json:"uncopied"`           // changes of drafts that went on without a copy outside of the daemon's container
	LastStandstill  float64 `json:"last_standstill_seconds"`
	WorstStandstill float64 `json:"worst_standstill_seconds"`
}

// Control is the control channel in the status.
type Control struct {
	On              bool     `json:"on"` // the socket: ioctls are answered without it
	Why             string   `json:"why,omitempty"`
	ReadOnly        bool     `json:"read_only_descriptors"` // opening a given descriptor again for writing is EROFS
	WhyNot          string   `json:"read_only_why_not,omitempty"`
	Connections     int      `json:"connections"`
	Readers         int      `json:"readers"`     // that share the machine; one may have many connections
	TurnedAway      int64    `json:"turned_away"` // connections over the limits
	Refused         int64    `json:"refused"`     // requests
	Leases          int64    `json:"leases"`
	Tickets         int      `json:"tickets"`
	Issued          int64    `json:"tickets_issued"`
	PrefetchedBytes int64    `json:"prefetched_bytes"`
	Changed         int      `json:"changed_objects"` // files of readers past FUSE that have changed at the source
	Clients         []Client `json:"clients"`
}

// Client sums up the reports of the clients of one name.
type Client struct {
	Name        string           `json:"name"`
	Connections int              `json:"connections"`
	Bytes       map[string]int64 `json:"bytes"` // by path
	Reads       map[string]int64 `json:"reads"`
	Choices     []PathUse        `json:"choices"` // the same, by path and reason: the most bytes first
	Fields      []FieldUse       `json:"fields"`  // those of samples, by field and path: the most bytes first
}

// FieldUse is the bytes of one field of samples that took one path.
type FieldUse struct {
	Field string `json:"field"` // as the names of its files have it
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// PathUse is the part of it that took one path for one reason.
type PathUse struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Reads  int64  `json:"reads"`
	Bytes  int64  `json:"bytes"`
}
