package store

import (
	"path"
	"sync"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// segments is the directory of published segments as an origin: what [Origin.Lies] gives is read through it.
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
	e := g.store.ledger.pin(k, nil)
	if e == nil { // it is gone already, and lives on in who has it open
		return func() {}
	}
	return sync.OnceFunc(func() { g.store.ledger.unpin(e) })
}

// ReadOnlyMount says whether segments are given to others through a read-only mount: see [cache.Dir.ReadOnlyMount].
func (x *Origin) ReadOnlyMount() error { return x.store.dir.ReadOnlyMount() }
