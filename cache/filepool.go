package cache

import (
	"container/list"
	"context"
	"math"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

// filePool keeps the files open that were read last. At most max are open that nobody uses; borrowed files are never
// closed under their user. It holds plain descriptors: an os.File costs two system calls more for each file, which
// shows when a hundred thousand shards are looked at.
type filePool struct {
	max  int
	open func(*layout.Object) (fd int, at stamp, err error)
	now  func(fd int) (stamp, error)

	mu     sync.Mutex // guards the fields below
	byObj  map[*layout.Object]*pooled
	idle   *list.List // of *pooled without users, the least recently used first
	closed bool
}

type pooled struct {
	object *layout.Object
	fd     int
	at     stamp // the file's stamp when it was opened
	users  int
	place  *list.Element // in idle, nil while in use
}

func newFilePool(max int, open func(*layout.Object) (int, stamp, error), now func(int) (stamp, error)) *filePool {
	return &filePool{max: max, open: open, now: now, byObj: map[*layout.Object]*pooled{}, idle: list.New()}
}

// get returns an open file of o that is the listed version at this moment. Two callers that miss at once both open it,
// and the second descriptor is closed: opening a local file is too cheap for a wait.
func (p *filePool) get(ctx context.Context, o *layout.Object) (*pooled, error) {
	if h := p.lookUp(o); h != nil {
		if now, err := p.now(h.fd); err != nil || now != h.at {
			p.put(h)
			return nil, changed(o, "it was written to")
		}
		return h, nil
	}
	var fd int
	var at stamp
	err := whenUnleased(ctx, math.MaxInt64, func() (err error) {
		fd, at, err = p.open(o)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.byObj[o]; h != nil {
		_ = unix.Close(fd) // opened for reading: nothing is lost
		p.use(h)
		return h, nil
	}
	h := &pooled{object: o, fd: fd, at: at, users: 1}
	p.byObj[o] = h
	return h, nil
}

func (p *filePool) lookUp(o *layout.Object) *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.byObj[o]
	if h != nil {
		p.use(h)
	}
	return h
}

func (p *filePool) use(h *pooled) {
	h.users++
	if h.place != nil {
		p.idle.Remove(h.place)
		h.place = nil
	}
}

// put gives back a file of get.
func (p *filePool) put(h *pooled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.users--; h.users > 0 {
		return
	}
	h.place = p.idle.PushBack(h)
	for p.idle.Len() > p.max || (p.closed && p.idle.Len() > 0) {
		p.drop(p.idle.Front().Value.(*pooled))
	}
}

func (p *filePool) drop(h *pooled) {
	p.idle.Remove(h.place)
	delete(p.byObj, h.object)
	_ = unix.Close(h.fd) // opened for reading: nothing is lost
}

// forget closes o's file if nobody uses it.
func (p *filePool) forget(o *layout.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.byObj[o]; h != nil && h.place != nil {
		p.drop(h)
	}
}

func (p *filePool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for p.idle.Len() > 0 {
		p.drop(p.idle.Front().Value.(*pooled))
	}
}
