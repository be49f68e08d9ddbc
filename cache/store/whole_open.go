package store

import (
	"context"
	"errors"
	"sync"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// OpenWhole opens the one local file that has all of o, for the kernel to read itself; fd is -1 where there is none. It
// waits for an object that comes ahead of a reader that has come to o. The reader would wait for the first byte all the
// same, and then read everything through this process. The file stays until release. An object that is refused is an error, so that the kernel does
// not read its pages of it.
func (x *Cached) OpenWhole(ctx context.Context, o *layout.Object) (fd int, release func(), err error) {
	g, f := x.segment(o, 0), x.file(o)
	if err := f.refusal(o); err != nil {
		return -1, nil, err
	}
	if g.size != o.Size {
		return -1, nil, nil
	}
	e, p := x.complete(f, g)
	if p != nil && x.reached(o, false, false) {
		p.hurry()
		select {
		case <-p.over:
		case <-ctx.Done():
			return -1, nil, nil // an interrupted open is not to fail: reads wait
		}
		x.waited(o)
		e, _ = x.complete(f, g)
	}
	if e == nil {
		return -1, nil, nil
	}
	if p == nil {
		x.reached(o, false, false)
	}
	s := x.store
	s.ledger.unplan(e.key)
	s.touched(f, g) // the kernel reads where nobody sees it
	release = sync.OnceFunc(func() { s.ledger.unpin(e) })
	if fd, err = s.openEntry(ctx, e); err != nil {
		release()
		var local *localError
		if errors.Is(err, cache.ErrChanged) || errors.Is(err, errMoved) || errors.As(err, &local) { // evicted just now, or its disk fails: a read finds out
			err = nil
		}
		return -1, nil, err
	}
	return fd, release, nil
}

// complete pins the segment that is all of an object, nil where it is not here. Where it is on its way, it gives the pass.
func (x *Cached) complete(f *file, g segmentOf) (e *entry, p *pass) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pass != nil {
		return nil, f.pass
	}
	return x.store.ledger.pin(keyOf(f.identity, g.index), nil), nil
}

// openEntry opens a published segment for reading. Nobody who reads one by its file hears that the disk has lost its bytes. So one that is not synced
// yet is not opened, and is read through the store meanwhile.
func (s *Store) openEntry(ctx context.Context, e *entry) (fd int, err error) {
	if _, fill := s.ledger.look(e); fill != nil {
		return -1, errMoved
	}
	o, err := s.published(e)
	if err != nil {
		return -1, err
	}
	return s.dir.OpenObject(ctx, o)
}
