package status

import "github.com/hbmfs/hbmfs/internal/observe/promtext"

// Drain says how far checkpoints are on their way to S3.
type Drain struct {
	Directory   string       `json:"directory"`
	Destination string       `json:"destination"`
	Bound       int64        `json:"bytes_per_second_bound"` // now; 0: none
	Trouble     string       `json:"trouble,omitempty"`      // why the drain does not go on: no request works, or the directory cannot be read
	TroubleFor  float64      `json:"trouble_seconds,omitempty"`
	Sent        int64        `json:"sent_bytes"`    // since the start
	Found       int64        `json:"found_bytes"`   // that were there already
	Requests    int64        `json:"requests"`      // retries among them
	Retries     int64        `json:"retries"`       // requests after one that failed
	Removed     int64        `json:"removed"`       // checkpoints that were removed here, being remote
	Mended      int64        `json:"mended"`        // that were damaged at the destination, and are whole again
	Pending     int64        `json:"pending_bytes"` // of checkpoints that are not remote
	PendingFor  float64      `json:"pending_seconds"`
	States      DrainStates  `json:"states"`
	Checkpoints []DrainEntry `json:"checkpoints"`
}

// DrainStates counts checkpoints by their state.
type DrainStates struct {
	Draft    int `json:"draft"`
	Local    int `json:"local"`
	Draining int `json:"draining"`
	Remote   int `json:"remote"`
	Failed   int `json:"failed"`
}

// DrainEntry is one checkpoint.
type DrainEntry struct {
	Name  string `json:"name"`
	State string `json:"state"` // draft, local, draining, remote, failed
	Why   string `json:"why,omitempty"`
	Part  int    `json:"part"` // from 0
	Parts int    `json:"parts"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
	Done  int64  `json:"done_bytes"` // that are there
}

func (d *Drain) addTo(p *promtext.Page) {
	p.Gauge("hbmfs_drain_checkpoints", "Checkpoints of the directory, by how far they are on their way to S3.").
		Add(d.States.Draft, "state", "draft").
		Add(d.States.Local, "state", "local").
		Add(d.States.Draining, "state", "draining").
		Add(d.States.Remote, "state", "remote").
		Add(d.States.Failed, "state", "failed")
	p.Gauge("hbmfs_drain_pending_bytes", "Bytes of published checkpoints that are not remote.").Add(d.Pending)
	p.Gauge("hbmfs_drain_pending_seconds", "How long the oldest checkpoint that is not remote has been published, as far as this process saw it.").Add(d.PendingFor)
	p.Gauge("hbmfs_drain_trouble_seconds", "How long no request to the destination has worked, or the directory could not be read; 0 while both work.").Add(d.TroubleFor)
	p.Gauge("hbmfs_drain_bound_bytes", "Bytes a second that the drain may take now; 0 for no bound.").Add(d.Bound)
	p.Counter("hbmfs_drain_sent_bytes_total", "Bytes that were sent.").Add(d.Sent)
	p.Counter("hbmfs_drain_requests_total", "Requests to the destination, retries among them.").Add(d.Requests)
	p.Counter("hbmfs_drain_retries_total", "Requests after one that failed.").Add(d.Retries)
	p.Counter("hbmfs_drain_removed_total", "Checkpoints that were removed here, being remote.").Add(d.Removed)
	p.Counter("hbmfs_drain_mended_total", "Checkpoints that were damaged at the destination, and were sent there again.").Add(d.Mended)
}
