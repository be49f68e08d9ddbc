package fs

import (
	"encoding/json"
	"os"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/internal/observe/status"
)

// counters count requests to the daemon. Passthrough reads do not reach it.
type counters struct {
	lookups, passthroughOpens, cachedOpens, reads, splicedBytes, copiedBytes atomic.Int64
	passthroughCloses, cachedCloses                                          atomic.Int64
}

// openFiles reads the closes first, so that no number is below zero.
func (c *counters) openFiles() status.OpenFiles {
	passthrough, daemon := c.passthroughCloses.Load(), c.cachedCloses.Load()
	return status.OpenFiles{Passthrough: c.passthroughOpens.Load() - passthrough, Daemon: c.cachedOpens.Load() - daemon}
}

func (m *Mount) status() status.Status {
	s := status.Status{
		Version: m.opt.Version, PID: os.Getpid(), Source: m.opt.Source, MountPoint: m.point, Started: m.started, Log: m.opt.LogFile,
		Objects: len(m.listing.Objects), Bytes: m.listing.Bytes(), Problems: len(m.listing.Problems), Indexing: !m.found.made.Load(),
		Notes: m.notesFor(m.access.toldOf), Sets: []status.Set{}, Control: m.control.Status(),
		Counters: status.Counters{
			Lookups: m.counters.lookups.Load(), PassthroughOpens: m.counters.passthroughOpens.Load(),
			CachedOpens: m.counters.cachedOpens.Load(), Reads: m.counters.reads.Load(),
			SplicedBytes: m.counters.splicedBytes.Load(), CopiedBytes: m.counters.copiedBytes.Load(),
		},
		OpenFiles: m.counters.openFiles(), Handover: handoverStatus(m.opt.Life, m.handles.head),
	}
	if origin := m.opt.Remote.Origin; origin != nil {
		stats := origin()
		s.Origin = &stats
	}
	if cache := m.opt.Remote.Cache; cache != nil {
		stats := cache.Stats()
		s.Cache = &stats
	}
	if m.opt.Top != nil {
		s.Checkpoints = m.opt.Top.Status()
	}
	if m.opt.KV != nil {
		s.KV = kvStatus(m.opt.KV)
	}
	s.Counters.ErrorsByErrno, s.Counters.Errors = m.failed.counted()
	m.backing.mu.Lock()
	s.Passthrough = status.Passthrough{On: m.backing.off == "", Why: m.backing.off, Failures: m.backing.failures, LastErr: m.backing.lastErr}
	m.backing.mu.Unlock()
	if v := m.found.volume.Load(); v != nil {
		s.Views = len(v.Views)
		s.Problems += len(v.Problems())
		for _, set := range v.Sets {
			dir, split := set.Dir, set.Split
			if !m.access.listedByAll(dir) { // which everybody would read here
				dir, split = "(not for everybody)", ""
			}
			s.Sets = append(s.Sets, status.Set{
				Format: set.Format, Dir: dir, Split: split, DType: set.DType, Shards: len(set.Shards),
				Tokens: set.Tokens(), Documents: set.Documents(), Samples: set.Samples(),
			})
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

func (m *Mount) metricsText() []byte {
	s := m.status()
	return []byte(s.Metrics())
}
