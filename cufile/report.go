package cufile

import (
	"context"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/crew"
)

// Moved counts bytes by the path that they took. Bytes that exist only in the mount, such as a synthesized header,
// lie in no backing file: they count as Staged, or as Host without a GPU.
type Moved struct {
	Direct int64 `json:"direct,omitempty"`
	Mapped int64 `json:"mapped,omitempty"`
	Staged int64 `json:"staged,omitempty"`
	Compat int64 `json:"compat,omitempty"`
	Host   int64 `json:"host,omitempty"`
}

// Total is all bytes.
func (m Moved) Total() int64 { return m.Direct + m.Mapped + m.Staged + m.Compat + m.Host }

// Add adds n to m.
func (m *Moved) Add(n Moved) {
	m.Direct += n.Direct
	m.Mapped += n.Mapped
	m.Staged += n.Staged
	m.Compat += n.Compat
	m.Host += n.Host
}

func (m *Moved) count(p Path, n int64) {
	switch p {
	case Direct:
		m.Direct += n
	case Mapped:
		m.Mapped += n
	case Staged:
		m.Staged += n
	case Compat:
		m.Compat += n
	case Host, Auto:
		m.Host += n
	}
}

// connected is a source that has a daemon to talk to.
type connected interface{ Daemon() *control.Client }

// tally counts the bytes that a File has moved since its last report to the daemon.
type tally struct {
	moved map[tallyKey]control.Moved
	said  time.Time
}

type tallyKey struct {
	path   control.Path
	reason string
}

// tellEvery is the time between two reports to the daemon, and between two questions how many readers there are.
const tellEvery = time.Second

// account counts the bytes that a request moved. The daemon hears of them, for its status.
func (f *File) account(m Moved, c Choice) {
	f.r.mu.Lock()
	f.r.moved.Add(m)
	f.r.mu.Unlock()
	f.mu.Lock()
	f.moved.Add(m)
	s, ok := f.source.(connected)
	var list []control.Moved
	if ok {
		f.tally.add(m, c)
		if time.Since(f.tally.said) >= tellEvery {
			list = f.tally.drain()
		}
	}
	f.mu.Unlock()
	if ok {
		report(s, list)
	}
}

func (t *tally) add(m Moved, c Choice) {
	if t.moved == nil {
		t.moved = map[tallyKey]control.Moved{}
	}
	for _, p := range []struct {
		path  Path
		wire  control.Path
		bytes int64
	}{
		{Direct, control.PathDirect, m.Direct}, {Mapped, control.PathMapped, m.Mapped}, {Staged, control.PathStaged, m.Staged},
		{Compat, control.PathCompat, m.Compat}, {Host, control.PathHost, m.Host},
	} {
		if p.bytes == 0 {
			continue
		}
		key := tallyKey{p.wire, "it exists only in the mount, or its files had a choice of their own"}
		if p.path == c.Path {
			key.reason = kindOf(c.Why)
		}
		sum := t.moved[key]
		t.moved[key] = control.Moved{Path: key.path, Reason: key.reason, Bytes: sum.Bytes + p.bytes, Reads: sum.Reads + 1}
	}
}

func (t *tally) drain() (list []control.Moved) {
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

// report tells the daemon which bytes were moved. That the daemon may be gone by now is no reason for a reader to fail.
func report(s connected, list []control.Moved) {
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), crew.Grace)
	defer cancel()
	_ = s.Daemon().ReportStats(ctx, list...)
}

// readers is how many share the machine: as many as the caller said, or more where the daemon counts more.
func (f *File) readers(ctx context.Context) int {
	r := f.r
	s, ok := f.source.(connected)
	r.mu.Lock()
	known, due := r.others, ok && time.Since(r.counted) >= tellEvery
	if due {
		r.counted = time.Now()
	}
	r.mu.Unlock()
	if due {
		ctx, cancel := context.WithTimeout(ctx, crew.Grace) // a daemon that hangs delays no read of open files
		defer cancel()
		if n, err := s.Daemon().Readers(ctx); err == nil { // else it is as it was
			known = n
			r.mu.Lock()
			r.others = n
			r.mu.Unlock()
		}
	}
	return max(known, r.opt.Readers)
}
