// Package tally tells the daemon of a mount how many bytes a reader moved by which path, and why. It asks the daemon how many readers
// there are. It does either once a second at most, beside the reads. A daemon that hangs, or is gone, fails no read.
package tally

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
)

// every is the time between two reports to the daemon, and between two questions how many readers there are.
const every = time.Second

// Tally counts the bytes of one file since the last report. The zero value is ready.
type Tally struct {
	Field string // of samples, whose values the file has, as [FieldOf] gives it; it must not change

	mu    sync.Mutex // guards the fields below
	moved map[key]control.PathReport
	said  time.Time
}

type key struct {
	path   control.PathNumber
	reason string
}

// Add counts the bytes of one read that took a path. Figures in a reason stand in parentheses, and details after a semicolon: the daemon
// hears of neither.
func (t *Tally) Add(path control.PathNumber, reason string, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.moved == nil {
		t.moved = map[key]control.PathReport{}
	}
	k := key{path, kindOf(reason)}
	sum := t.moved[k]
	t.moved[k] = control.PathReport{Path: path, Reason: k.reason, Bytes: sum.Bytes + bytes, Reads: sum.Reads + 1, Field: t.Field}
}

// FieldOf gives the field of samples whose values a file of a mount has, by its name: fields/NAME.npy or fields/NAME.values.npy. It is
// "" for other files.
func FieldOf(file string) string {
	absolute, err := filepath.Abs(file)
	name, isArray := strings.CutSuffix(filepath.Base(absolute), ".npy")
	if err != nil || !isArray || filepath.Base(filepath.Dir(absolute)) != "fields" {
		return ""
	}
	return strings.TrimSuffix(name, ".values")
}

// Due gives the figures to report now, if there are any.
func (t *Tally) Due() []control.PathReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.said) < every {
		return nil
	}
	return t.drain()
}

// Rest gives all that was not reported.
func (t *Tally) Rest() []control.PathReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.drain()
}

// drain needs mu.
func (t *Tally) drain() (list []control.PathReport) {
	for _, sum := range t.moved {
		list = append(list, sum)
	}
	clear(t.moved)
	t.said = time.Now()
	return list
}

// kindOf cuts a reason at its semicolon, and takes out the figures, which stand in parentheses.
func kindOf(why string) string {
	why, _, _ = strings.Cut(why, ";")
	for {
		before, rest, found := strings.Cut(why, " (")
		_, after, closed := strings.Cut(rest, ")")
		if !found || !closed {
			return why
		}
		why = before + after
	}
}

// Report tells a daemon which bytes were moved. That the daemon may be gone by now is no reason for a reader to fail.
func Report(daemon func() *control.Client, list []control.PathReport) {
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), crew.Grace)
	defer cancel()
	_ = daemon().ReportStats(ctx, list...)
}

// Readers is how many readers a daemon counts. The zero value is ready.
type Readers struct {
	mu    sync.Mutex // guards the fields below
	known int        // the asking one included
	asked time.Time
}

// Count asks a daemon, if it was not asked lately. Without one it gives the last one's figure; 0 where there was
// none.
func (r *Readers) Count(ctx context.Context, daemon func() *control.Client) int {
	r.mu.Lock()
	known, due := r.known, daemon != nil && time.Since(r.asked) >= every
	if due {
		r.asked = time.Now()
	}
	r.mu.Unlock()
	if due {
		ctx, cancel := context.WithTimeout(ctx, crew.Grace) // a daemon that hangs delays no read of open files
		defer cancel()
		if n, err := daemon().Readers(ctx); err == nil { // else it is as it was
			known = n
			r.mu.Lock()
			r.known = n
			r.mu.Unlock()
		}
	}
	return known
}
