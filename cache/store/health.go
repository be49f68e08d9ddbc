package store

import (
	"log/slog"
	"sync"
	"time"
)

// health knows whether the disk is used. After a failure it is not used for a while, each time for longer.
type health struct {
	log *slog.Logger

	mu       sync.Mutex // guards the fields below
	failures int64
	why      string
	until    time.Time     // the disk is left alone
	pause    time.Duration // the last one
}

// A disk that has failed is left alone for firstPause, for twice as long after each further failure, and for lastPause at most.
const (
	firstPause = 5 * time.Second
	lastPause  = 5 * time.Minute
)

// sick reports whether the disk is to be left alone now.
func (h *health) sick() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.until)
}

// fail is told of each failure of the disk.
func (h *health) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	h.why = err.Error()
	now := time.Now()
	switch {
	case now.Before(h.until): // one of those that were under way
		return
	case now.Sub(h.until) > h.pause: // it was well for a while
		h.pause = firstPause
	default:
		h.pause = min(lastPause, 2*h.pause)
	}
	h.until = now.Add(h.pause)
	h.log.Error("the cache's disk fails: reading from the origin instead", "for", h.pause, "error", err)
}

// state gives the failures so far, the last one's reason, and how long the disk is left alone yet.
func (h *health) state() (failures int64, why string, left time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failures, h.why, max(0, time.Until(h.until))
}
