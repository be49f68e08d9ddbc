package kv

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// budget is the limit of a tier, in bytes, that all namespaces share. A disk's is a file, too: space that no slab has yet is allocated there,
// so that nobody else fills the disk meanwhile.
type budget struct {
	limit int64
	rest  *os.File // nil for memory

	// idle is a hint, of memory: a namespace that nobody uses has some.
	idle atomic.Bool

	mu   sync.Mutex // guards the fields below
	used int64
	rung uint64        // how often others may have had more to spare than before
	bell chan struct{} // closed when that is so again; nil: nobody listens
}

// take books n bytes, and gives them back to the filesystem, for a slab to have them the next moment.
func (b *budget) take(n int64) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.limit {
		return false, nil
	}
	if b.rest != nil {
		if err := b.rest.Truncate(max(b.limit-b.used-n, 0)); err != nil {
			return false, fmt.Errorf("make room for a slab: %w", err)
		}
	}
	b.used += n
	return true, nil
}

// give gives n bytes back, which no slab has any more.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	_ = b.fill()       // another program has taken the space: the next slab reports it
	if b.rest == nil { // of a disk, regions go one at a time
		b.wake()
	}
}

// ring says that others may have more to spare than before.
func (b *budget) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake()
}

// wake tells those who listen. The lock is held.
func (b *budget) wake() {
	b.rung++
	if b.bell != nil {
		close(b.bell)
		b.bell = nil
	}
}

// listen tells how often the bell has rung, and gives a channel that is closed when it rings again.
func (b *budget) listen() (rung uint64, bell <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bell == nil {
		b.bell = make(chan struct{})
	}
	return b.rung, b.bell
}

// rings tells how often the bell has rung.
func (b *budget) rings() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rung
}

// fill allocates the space that no slab has. The lock is held.
func (b *budget) fill() error {
	if b.rest == nil || b.limit <= b.used {
		return nil
	}
	return unix.Fallocate(int(b.rest.Fd()), 0, 0, b.limit-b.used)
}

// has tells whether n bytes are left.
func (b *budget) has(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used+n <= b.limit
}
