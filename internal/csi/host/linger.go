package host

import (
	"encoding/json"
	"time"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// A volume lingers where its daemon goes on without users. The last pod of a volume that drains may leave before its last checkpoint is at
// the destination. It lingers until all is remote, or until it gets nothing there for DrainPatience. A KV volume lingers for a time that it
// says, so that a serving pod that is started again finds its blocks in memory. The record says so, and the next host goes on.

const (
	lingerTick  = time.Second // between two questions how far the drain is
	lingerQuiet = 3           // how often in a row the answer is that nothing is left: a checkpoint that was just published is seen soon
)

// over tells whether nobody uses the volume, and it need not linger.
func (r *record) over() bool { return r.idle() && !r.lingering() }

// lingering tells whether the volume lingers, or would if nobody used it.
func (r *record) lingering() bool { return r.Draining || !r.Kept.IsZero() }

// mayLinger notes that a volume lingers whose last use has just ended. It needs mu.
func (r *record) mayLinger() {
	r.noLinger()
	if !r.idle() {
		return
	}
	if r.Draining = r.Spec.Drain != ""; r.Spec.KeepFor > 0 {
		r.Kept = time.Now().Add(r.Spec.KeepFor).Round(0)
	}
}

// noLinger notes that a volume does not linger. It needs mu.
func (r *record) noLinger() { r.Draining, r.Kept = false, time.Time{} }

// endLinger has a volume end that nobody uses: one that lingers, or whose end has failed. It needs mu.
func (h *Host) endLinger(v *nodeVolume) {
	v.rec.noLinger()
	h.work.Go(func() { h.endQuietly(v) })
}

func (h *Host) endQuietly(v *nodeVolume) {
	if err := h.end(h.ctx, v); err != nil && h.ctx.Err() == nil {
		h.log.Error("cannot end a volume that nobody uses: the next host does", "volume", v.key, "error", err)
	}
}

// lingers tells whether a volume lingers.
func (v *nodeVolume) lingers() (does bool) {
	v.with(func(r *record) { does = r.idle() && r.lingering() })
	return does
}

// linger waits until a volume that nobody uses need not linger any more, and ends it.
func (v *nodeVolume) linger() {
	var drains bool
	v.with(func(r *record) { drains = r.Spec.Drain != "" })
	over := v.keeps
	if drains {
		over = v.drains()
	}
	for v.lingers() {
		if pause.For(v.host.ctx, lingerTick) != nil {
			return // the next host goes on
		}
		if over() {
			v.endLingering()
			return
		}
	}
}

// endLingering ends a volume, unless somebody uses it again.
func (v *nodeVolume) endLingering() {
	ended := false
	v.with(func(r *record) {
		if ended = r.idle() && r.lingering(); !ended {
			return
		}
		r.noLinger()
		if err := v.save(); err != nil { // it goes with the volume
			v.host.log.Error("cannot write the record", "volume", v.key, "error", err)
		}
	})
	if ended {
		v.host.endQuietly(v)
	}
}

// keeps tells whether the time of a KV volume that nobody uses is over. A clock that was set back keeps it no longer than it says.
func (v *nodeVolume) keeps() (over bool) {
	v.with(func(r *record) {
		left := time.Until(r.Kept)
		over = !r.Kept.IsZero() && (left <= 0 || left > r.Spec.KeepFor)
	})
	return over
}

// drains gives a function that tells whether the drain of a volume that nobody uses has nothing left to do, or gives up.
func (v *nodeVolume) drains() (over func() bool) {
	h, quiet := v.host, 0
	progress, since := drained{}, time.Now()
	return func() bool {
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
		if gaveUp && quiet < lingerQuiet {
			h.log.Error("a volume ends although its drain has not sent all: the next pod that uses it on this node goes on", "volume", v.key, "bytes", progress.left, "patience", h.opt.DrainPatience)
		}
		return quiet >= lingerQuiet || gaveUp
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
