// Package arena lends memory of one device: HBM, or memory of the host where that is the device.
//
//	at, err := a.Reserve(ctx, n) // waits until that much is free
//	copy into a.HBM(at), or into a.Host(at)
//	err = a.CopyOut(ctx, p, at)
//	a.Free(at, n)
//
// Pitfalls. Memory that a hanging call may still write to must not be freed. On a GPU the memory is there from the first Reserve
// on.
package arena

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/room"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Unit is the granularity of an arena: the GPU's page (nvidia-fs pins HBM in units of it).
const Unit = 64 << 10

// Options configure an Arena.
type Options struct {
	Device  *device.Device
	Crew    *crew.Crew // its threads allocate, and copy out
	Threads int        // of the crew, that copy out at once
	Step    int64      // bytes that one of them copies at a time: a slot has so many
	Bytes   int64      // a multiple of Unit
}

// Arena is one block of memory, of which units are lent.
type Arena struct {
	opt  Options
	host []byte // the memory, for the host

	growing sync.Mutex     // while Reserve allocates; guards the fields below, which stay once they are set
	hbm     driver.Pointer // the memory on a GPU, aligned to Unit
	block   driver.Pointer // the allocation that hbm lies in, 0 before the first use

	mu    sync.Mutex // guards the fields below
	room  room.Room
	freed chan struct{} // closed and replaced at every Free
}

// New takes memory of the host. Of a GPU it only looks whether there is so much. HBM is allocated when it is first wanted: a reader that
// only writes into memory of its callers never has any.
func New(ctx context.Context, o Options) (*Arena, error) {
	a := &Arena{opt: o, freed: make(chan struct{})}
	a.room.Give(0, o.Bytes)
	if cu := o.Device.CUDA; cu != nil {
		return a, o.Crew.Do(context.WithoutCancel(ctx), func(*crew.Worker) error {
			if _, total, err := cu.MemInfo(); err != nil || uint64(o.Bytes) <= total {
				return err
			}
			return a.allocate() // which tells why it cannot
		})
	}
	var err error
	if a.host, err = unix.Mmap(-1, 0, int(o.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, fmt.Errorf("allocate %d bytes of host memory: %w", o.Bytes, err)
	}
	return a, nil
}

// Size is the bytes of the arena.
func (a *Arena) Size() int64 { return a.opt.Bytes }

// HBM is the place on a GPU of reserved memory.
func (a *Arena) HBM(at int64) driver.Pointer { return a.hbm + driver.Pointer(at) }

// Host is the memory of the host from a reserved place on; nil on a GPU.
func (a *Arena) Host(at int64) []byte {
	if a.host == nil {
		return nil
	}
	return a.host[at:]
}

// Reserve gives the place of n bytes, which are the caller's until Free. When the arena is full it waits for a Free.
func (a *Arena) Reserve(ctx context.Context, n int64) (at int64, err error) {
	if at, err = a.take(ctx, n); err != nil || a.opt.Device.CUDA == nil {
		return at, err
	}
	a.growing.Lock()
	defer a.growing.Unlock()
	if a.block != 0 {
		return at, nil
	}
	if err = a.opt.Crew.Do(context.WithoutCancel(ctx), func(*crew.Worker) error { return a.allocate() }); err != nil {
		a.Free(at, n)
	}
	return at, err
}

func (a *Arena) take(ctx context.Context, n int64) (int64, error) {
	if n > a.opt.Bytes {
		return 0, fmt.Errorf("%w: %d bytes at once do not fit into the arena of %d: read less at a time, use Stream, or make the arena larger", source.ErrTooLarge, n, a.opt.Bytes)
	}
	for {
		a.mu.Lock()
		at, ok := a.room.Take(driver.RoundUp(n, Unit))
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

// allocate runs on a thread with the context.
func (a *Arena) allocate() (err error) {
	cu := a.opt.Device.CUDA
	if a.block, err = cu.Alloc(a.opt.Bytes + Unit); err != nil {
		free, total, infoErr := cu.MemInfo()
		if infoErr != nil {
			return err
		}
		return fmt.Errorf("arena of %d bytes on %s, which has %d of %d bytes free: %w", a.opt.Bytes, a.opt.Device.GPU.Name, free, total, err)
	}
	a.hbm = driver.Pointer(driver.RoundUp(int64(a.block), Unit))
	return nil
}

// Free gives back reserved memory.
func (a *Arena) Free(at, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.room.Give(at, driver.RoundUp(n, Unit))
	close(a.freed)
	a.freed = make(chan struct{})
}

// CopyOut copies the bytes at a place of the arena into p.
func (a *Arena) CopyOut(ctx context.Context, p []byte, at int64) error {
	if a.opt.Device.CUDA == nil {
		copy(p, a.host[at:])
		return ctx.Err()
	}
	// Each worker copies through its own pinned memory, so that p need not be pinned. A cancelled call may leave one
	// behind that waits for the GPU: it must not write to p any more.
	step := a.opt.Step
	var mu sync.RWMutex
	over := false // guarded by mu
	_, err := a.opt.Crew.Run(ctx, a.opt.Threads, (int64(len(p))+step-1)/step, func(w *crew.Worker, i int64) error {
		part := p[i*step : min((i+1)*step, int64(len(p)))]
		s, err := w.Slot()
		if err != nil {
			return err
		}
		if err := w.CUDA.CopyOut(s.Memory[:len(part)], a.HBM(at+i*step), w.Stream); err != nil {
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

// Close gives the memory back, which nothing uses any more. Closing twice does nothing.
func (a *Arena) Close() error {
	var errs []error
	if a.host != nil {
		errs = append(errs, unix.Munmap(a.host))
		a.host = nil
	}
	if a.block != 0 {
		errs = append(errs, a.opt.Device.Within(func() error { return a.opt.Device.CUDA.Free(a.block) }))
		a.block, a.hbm = 0, 0
	}
	return errors.Join(errs...)
}
