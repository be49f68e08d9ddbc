package cufile

import (
	"context"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/tally"
)

// Moved counts bytes by the path that they took. Bytes that exist only in the mount, such as a synthesized header,
// lie in no backing file. They count as Staged, or as Host without a GPU.
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

// account counts the bytes that a request moved. The daemon hears of them, for its status.
func (f *File) account(m Moved, c Choice) {
	f.r.mu.Lock()
	f.r.moved.Add(m)
	f.r.mu.Unlock()
	f.mu.Lock()
	f.moved.Add(m)
	f.mu.Unlock()
	if s, ok := f.source.(connected); ok {
		m.tell(&f.tally, c)
		if !f.gate.Enter() {
			return // release reports the rest
		}
		due := f.tally.Due()
		if len(due) == 0 {
			f.gate.Leave()
			return
		}
		f.r.stuck.Go(func() { // a daemon that hangs delays no read
			defer f.gate.Leave()
			tally.Report(s.Daemon, due)
		})
	}
}

// tell adds the bytes of one request.
func (m Moved) tell(t *tally.Tally, c Choice) {
	for _, p := range []struct {
		path  Path
		wire  control.PathNumber
		bytes int64
	}{
		{Direct, control.PathDirect, m.Direct}, {Mapped, control.PathMapped, m.Mapped}, {Staged, control.PathStaged, m.Staged},
		{Compat, control.PathCompat, m.Compat}, {Host, control.PathHost, m.Host},
	} {
		if p.bytes == 0 {
			continue
		}
		why := "it exists only in the mount, or its files had a choice of their own"
		if p.path == c.Path {
			why = c.Why
		}
		t.Add(p.wire, why, p.bytes)
	}
}

// readers is how many share the machine: as many as the caller said, or more where the daemon counts more.
func (f *File) readers(ctx context.Context) int {
	var daemon func() *control.Client
	if s, ok := f.source.(connected); ok {
		daemon = s.Daemon
	}
	return max(f.r.others.Count(ctx, daemon), f.r.opt.Readers)
}
