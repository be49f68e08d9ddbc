package cufile

import (
	"context"
	"fmt"
	"sync"
)

// slotAlign is what arena slots are aligned to: the GPU's page (nvidia-fs pins HBM in units of it).
const slotAlign = 64 << 10

// arena hands out runs of 64 KiB slots of one block of memory.
type arena struct {
	mu    sync.Mutex
	used  []bool        // by slot
	freed chan struct{} // closed and replaced at every release
}

func newArena(size int64) *arena {
	return &arena{used: make([]bool, size/slotAlign), freed: make(chan struct{})}
}

func (a *arena) size() int64 { return int64(len(a.used)) * slotAlign }

// take finds n bytes and gives their offset. When the arena is full it waits for a release.
func (a *arena) take(ctx context.Context, n int64) (int64, error) {
	if n > a.size() {
		return 0, fmt.Errorf("%w: %d bytes at once do not fit into the arena of %d: read less at a time, use Stream, or make the arena larger", ErrTooLarge, n, a.size())
	}
	slots := int((n + slotAlign - 1) / slotAlign)
	for {
		a.mu.Lock()
		if first := a.find(slots); first >= 0 {
			for i := range slots {
				a.used[first+i] = true
			}
			a.mu.Unlock()
			return int64(first) * slotAlign, nil
		}
		freed := a.freed
		a.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// find gives the first run of so many free slots, -1 when there is none. The caller holds mu.
func (a *arena) find(slots int) int {
	run := 0
	for i, used := range a.used {
		if used {
			run = 0
			continue
		}
		if run++; run >= slots {
			return i - run + 1
		}
	}
	if slots == 0 {
		return 0
	}
	return -1
}

// release gives back what take gave.
func (a *arena) release(offset, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := offset / slotAlign; i < (offset+n+slotAlign-1)/slotAlign; i++ {
		a.used[i] = false
	}
	close(a.freed)
	a.freed = make(chan struct{})
}
