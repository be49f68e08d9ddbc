package host

import (
	"encoding/json"
	"time"

	"github.com/hbmfs/hbmfs/internal/pause"
)

// The last pod of a volume that drains may leave before its last checkpoint is at the destination. The volume then lingers: its daemon goes
// on without users until all is remote, or until it gets nothing there for DrainPatience. The record says so, so that the next host goes on.

const (
	lingerTick  = time.Second // between two questions how far the drain is
	lingerQuiet = 3           // how often in a row the answer is that nothing is left: a checkpoint that was just published is seen soon
)

// over tells whether nobody uses the volume, and it need not linger.
func (r *record) over() bool { return r.idle() && !r.Draining }

// mayLinger notes that a volume lingers whose last use has just ended. It needs mu.
func (r *record) mayLinger() { r.Draining = r.idle() && r.Spec.Drain != "" }

// endDrain has a volume that lingers end. It needs mu.
func (h *Host) endDrain(v *nodeVolume) {
	if !v.rec.Draining {
		return // it ends already
	}
	v.rec.Draining = false
	h.work.Go(func() { h.endQuietly(v) })
}

func (h *Host) endQuietly(v *nodeVolume) {
	if err := h.end(h.ctx, v); err != nil && h.ctx.Err() == nil {
		h.log.Error("cannot end a volume that nobody uses: the next host does", "volume", v.key, "error", err)
	}
}

// lingers tells whether a volume lingers.
func (v *nodeVolume) lingers() (does bool) {
	v.with(func(r *record) { does = r.idle() && r.Draining })
	return does
}

// linger ends a volume that nobody uses when its drain has nothing left to do.
func (v *nodeVolume) linger() {
	h, quiet := v.host, 0
	progress, since := drained{}, time.Now()
	for v.lingers() {
		if pause.For(h.ctx, lingerTick) != nil {
			return // the next host goes on
		}
		now, known := v.drained()
		switch {
		case known && now.left == 0:
			quiet++
		default:
			quiet = 0
		}
		if known && now != progress {
			progress, since = now, time.Now()
		}
		gaveUp := time.Since(since) > h.opt.DrainPatience
		if quiet < lingerQuiet && !gaveUp {
			continue
		}
		if gaveUp {
			h.log.Error("a volume ends although its drain has not sent all: the next pod that uses it on this node goes on", "volume", v.key, "bytes", progress.left, "patience", h.opt.DrainPatience)
		}
		ended := false
		if err := v.update(func(r *record) {
			if ended = r.idle() && r.Draining; ended {
				r.Draining = false
			}
		}); err != nil {
			h.log.Error("cannot write the record", "volume", v.key, "error", err)
		}
		if ended {
			h.endQuietly(v)
		}
		return
	}
}

// drained is how far a drain is.
type drained struct{ left, sent int64 }

// drained asks the daemon how far the drain is. known is false where it does not answer.
func (v *nodeVolume) drained() (d drained, known bool) {
	var t struct {
		Checkpoints *struct {
			Drain *struct {
				Sent    int64  `json:"sent_bytes"`
				Pending int64  `json:"pending_bytes"`
				Trouble string `json:"trouble"`
				States  struct{ Local, Draining, Failed int64 }
			} `json:"drain"`
		} `json:"checkpoints"`
	}
	text, err := v.ask(v.host.ctx, "status")
	if err != nil || json.Unmarshal(text, &t) != nil || t.Checkpoints == nil || t.Checkpoints.Drain == nil {
		return d, false
	}
	s := t.Checkpoints.Drain
	d = drained{left: s.Pending + s.States.Local + s.States.Draining + s.States.Failed, sent: s.Sent}
	if s.Trouble != "" {
		d.left++ // it cannot tell
	}
	return d, true
}
