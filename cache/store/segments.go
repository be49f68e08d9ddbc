package store

import (
	"errors"
	"path"
	"sync"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// segments is the directory of published segments as an origin: the segments of [Cached.Lies] are read through it.
type segments struct {
	*cache.Dir
	store *Store
}

// own makes o, a file of the directory, a segment.
func (s *Store) own(o *layout.Object) *layout.Object {
	o.Origin = segments{s.dir, s}
	return o
}

// Hold keeps a segment from eviction until release: the kernel or another process has it open.
func (g segments) Hold(o *layout.Object) (release func()) {
	k, _ := parseName(path.Clean(o.Name))
	e := g.store.ledger.pin(k, nil) // before its reads are off the plans, so that it stays
	g.store.ledger.unplan(k)
	if e == nil { // it is gone already, and lives on where it is open
		return func() {}
	}
	if in := e.lies.Load(); in != nil { // its next opener reads it, and the store does not see that
		g.store.touched(in.origin.file(in.object), in.segmentOf)
	}
	return sync.OnceFunc(func() { g.store.ledger.unpin(e) })
}

// OpenForOthers opens a segment for another process. One that is gone, since another process evicted it, is taken off
// the books, so that nobody is sent there again.
func (g segments) OpenForOthers(o *layout.Object) (fd int, err error) {
	if fd, err = g.Dir.OpenForOthers(o); !errors.Is(err, cache.ErrChanged) {
		return fd, err
	}
	if k, ok := parseName(path.Clean(o.Name)); ok {
		e := g.store.ledger.find(k)
		if e == nil {
			return fd, err
		}
		if known, _ := g.store.ledger.look(e); known == o {
			g.store.ledger.drop(e)
			g.store.dir.Forget(o)
		}
	}
	return fd, err
}

// ReadOnlyMount says whether segments are given to others through a read-only mount: see [cache.Dir.ReadOnlyMount].
func (x *Cached) ReadOnlyMount() error { return x.store.dir.ReadOnlyMount() }
