package cufile

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/room"
)

// View is bytes of a file in the device's memory. Release gives the memory back.
type View struct {
	r        *Reader
	at       int64 // in the arena
	reserved int64
	skew     int64 // from at to the first byte
	n        int64
	moved    Moved
	choice   Choice
	once     sync.Once
}

// Len is the number of bytes.
func (v *View) Len() int64 { return v.n }

// Pointer is the address of the first byte in HBM (a CUdeviceptr); 0 on the host or when the view is empty.
func (v *View) Pointer() uintptr {
	if v.r.cu == nil || v.n == 0 {
		return 0
	}
	return uintptr(v.r.hbm) + uintptr(v.at+v.skew)
}

// Bytes is the memory on the host; nil on a GPU.
func (v *View) Bytes() []byte {
	if v.r.cu != nil {
		return nil
	}
	return v.r.host[v.at+v.skew:][:v.n:v.n]
}

// Moved says which paths the bytes took.
func (v *View) Moved() Moved { return v.moved }

// Choice is the path that the request was given, and why. A request of more backing files than may be open at once is
// moved in parts, each by its own choice: this is the first part's, and Moved has them all.
func (v *View) Choice() Choice { return v.choice }

// Release gives the memory back. The view must not be used after it; releasing twice does nothing.
func (v *View) Release() {
	v.once.Do(func() {
		if v.reserved > 0 {
			v.r.arena.free(v.at, v.reserved)
		}
	})
}

// CopyTo copies the view's bytes from offset on into p, which must lie inside the view.
func (v *View) CopyTo(ctx context.Context, p []byte, offset int64) error {
	if offset < 0 || offset > v.n || int64(len(p)) > v.n-offset {
		return fmt.Errorf("copy %d bytes at %d of a view of %d: %w", len(p), offset, v.n, ErrOutOfRange)
	}
	if v.r.cu == nil {
		copy(p, v.Bytes()[offset:])
		return ctx.Err()
	}
	// Each worker copies through its own pinned memory, so that p need not be pinned. A cancelled call may leave one
	// behind that waits for the GPU: it must not write to p any more.
	step := v.r.opt.Slot
	var mu sync.RWMutex
	over := false // guarded by mu
	_, err := v.r.crew.Run(ctx, v.r.opt.Threads, (int64(len(p))+step-1)/step, func(w *crew.Worker, i int64) error {
		part := p[i*step : min((i+1)*step, int64(len(p)))]
		s, err := w.Slot()
		if err != nil {
			return err
		}
		if err := w.CUDA.CopyOut(s.Memory[:len(part)], driver.Pointer(v.Pointer())+driver.Pointer(offset+i*step), w.Stream); err != nil {
			return err
		}
		if err := errors.Join(w.Sent(s), w.Settle(s)); err != nil {
			return err
		}
		mu.RLock()
		defer mu.RUnlock()
		if !over {
			copy(part, s.Memory)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	over = true
	return err
}

// Check reads the view back in blocks and hands each to verify with its place in the view. It costs one copy out of
// HBM, and is how the bytes that a GPU will compute on are compared with a manifest.
func (v *View) Check(ctx context.Context, block int64, verify func(offset int64, data []byte) error) error {
	if block <= 0 {
		return fmt.Errorf("check a view in blocks of %d bytes: there is no such block", block)
	}
	buffer := make([]byte, min(block, v.n))
	for at := int64(0); at < v.n; at += block {
		part := buffer[:min(block, v.n-at)]
		if err := v.CopyTo(ctx, part, at); err != nil {
			return err
		}
		if err := verify(at, part); err != nil {
			return err
		}
	}
	return nil
}

// arenaUnit is what the arena allocates in: the GPU's page (nvidia-fs pins HBM in units of it).
const arenaUnit = 64 << 10

// arena allocates units of one block of memory.
type arena struct {
	bytes int64

	mu    sync.Mutex // guards what follows
	room  room.Room
	freed chan struct{} // closed and replaced at every release
}

func newArena(size int64) *arena {
	return &arena{bytes: size, room: room.New(size), freed: make(chan struct{})}
}

// alloc finds n bytes and gives their offset. When the arena is full it waits for a release.
func (a *arena) alloc(ctx context.Context, n int64) (int64, error) {
	if n > a.bytes {
		return 0, fmt.Errorf("%w: %d bytes at once do not fit into the arena of %d: read less at a time, use Stream, or make the arena larger", ErrTooLarge, n, a.bytes)
	}
	for {
		a.mu.Lock()
		at, ok := a.room.Take(driver.RoundUp(n, arenaUnit))
		freed := a.freed
		a.mu.Unlock()
		if ok {
			return at, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// free gives back what alloc gave.
func (a *arena) free(at, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.room.Give(at, driver.RoundUp(n, arenaUnit))
	close(a.freed)
	a.freed = make(chan struct{})
}
