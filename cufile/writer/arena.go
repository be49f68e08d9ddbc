package writer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/room"
)

// arena is memory for snapshots. Its pages come, and are registered with CUDA, in the background, from the first on. A copy waits
// only for the pages that it goes to.
type arena struct {
	memory  []byte       // begins with a huge page
	whole   []byte       // the mapping that it lies in
	cu      *driver.CUDA // nil for the host
	context driver.Handle
	piece   int64 // bytes that are registered at a time: no copy may cross their borders

	filled []atomic.Int64 // bytes of each piece whose pages are there
	fills  chan struct{}  // has a token whenever a piece was filled
	quit   chan struct{}
	last   sync.Once     // closes quit
	gone   chan struct{} // closed when nothing is brought or registered any more
	ready  chan struct{} // closed when all is pinned, or failed to be

	mu      sync.Mutex // guards the fields below
	room    room.Room
	pinned  int64         // bytes from the first on that copies may go to
	err     error         // why there are not more
	changed chan struct{} // closed and replaced when one of them changes
	users   int           // that hold room
	closed  bool
}

// The sizes with which an arena comes up. A registration holds up other calls into CUDA for milliseconds, so it is short.
const (
	arenaPiece = 1 << 30
	fillStep   = 32 << 20 // of pages that are brought at a time
	hugePage   = 2 << 20
)

// newArena begins to bring the memory by so many threads, which run near the GPU: near is nil where that is not known.
func newArena(cu *driver.CUDA, context driver.Handle, size, piece int64, threads int, near *unix.CPUSet) (*arena, error) {
	size = driver.RoundUp(size, driver.PageSize)
	if most, what := available(); size > most {
		return nil, fmt.Errorf("%w for snapshots: %d bytes are asked for, and %s is %d: give the writer less memory", ErrNoMemory, size, what, most)
	}
	whole, err := unix.Mmap(-1, 0, int(size+hugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%w for snapshots: mmap of %d bytes: %w; give the writer less memory", ErrNoMemory, size, err)
	}
	skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(whole))) % hugePage)
	a := &arena{memory: whole[skip : skip+size : skip+size], whole: whole, cu: cu, context: context, piece: piece,
		quit: make(chan struct{}), gone: make(chan struct{}), ready: make(chan struct{}), changed: make(chan struct{})}
	a.room.Give(0, size)
	_ = unix.Madvise(a.memory, unix.MADV_HUGEPAGE) // small ones do, too
	a.filled = make([]atomic.Int64, (size+piece-1)/piece)
	a.fills = make(chan struct{}, 1)
	go a.comeUp(threads, near) // ended by close
	return a, nil
}

// comeUp brings the pages by several threads, and registers each piece as soon as its pages are there.
func (a *arena) comeUp(threads int, near *unix.CPUSet) {
	defer close(a.gone)
	var next atomic.Int64
	var fillers sync.WaitGroup
	for range threads {
		fillers.Go(func() {
			if near != nil {
				runtime.LockOSThread() // for good: the thread ends with the goroutine, its affinity with it
				_ = unix.SchedSetaffinity(0, near)
			}
			for at := next.Add(fillStep) - fillStep; at < int64(len(a.memory)) && !a.isOver(); at = next.Add(fillStep) - fillStep {
				a.fill(at, min(fillStep, int64(len(a.memory))-at))
			}
		})
	}
	defer fillers.Wait()
	defer close(a.ready)
	for i := range a.filled {
		part := a.pieceAt(i)
		for a.filled[i].Load() < int64(len(part)) {
			select {
			case <-a.fills:
			case <-a.quit:
				return
			}
		}
		if err := a.register(part); err != nil {
			a.update(func() {
				a.err = fmt.Errorf("%w for snapshots: CUDA pinned %d bytes of %d: %w; give the writer less memory, or allow the process to lock more (ulimit -l)", ErrNoMemory, a.pinned, len(a.memory), err)
			})
			a.stop()
			return
		}
		a.update(func() { a.pinned += int64(len(part)) })
	}
}

// fill brings pages; a range may lie in two pieces.
func (a *arena) fill(at, n int64) {
	_ = unix.Madvise(a.memory[at:at+n], unix.MADV_POPULATE_WRITE) // otherwise registering does it, or the first copy
	for n > 0 {
		i := at / a.piece
		part := min(n, (i+1)*a.piece-at)
		a.filled[i].Add(part)
		at, n = at+part, n-part
	}
	select {
	case a.fills <- struct{}{}:
	default:
	}
}

func (a *arena) pieceAt(i int) []byte {
	first := int64(i) * a.piece
	return a.memory[first:min(first+a.piece, int64(len(a.memory)))]
}

func (a *arena) register(part []byte) error {
	if a.cu == nil {
		return nil
	}
	return a.cu.Within(a.context, func() error { return a.cu.Register(part, driver.HostPortable|driver.HostDeviceMap) })
}

func (a *arena) isOver() bool {
	select {
	case <-a.quit:
		return true
	default:
		return false
	}
}

func (a *arena) stop() { a.last.Do(func() { close(a.quit) }) }

// update changes fields that mu guards, and wakes their waiters.
func (a *arena) update(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

// take gives the place of n bytes that are pinned. It waits for room that others give back.
func (a *arena) take(ctx context.Context, n int64) (at int64, err error) {
	n = driver.RoundUp(n, driver.PageSize)
	if n > int64(len(a.memory)) {
		return 0, fmt.Errorf("%w: a snapshot of %d bytes does not fit into an arena of %d: give the writer more memory, or snapshot less at a time", ErrTooLarge, n, len(a.memory))
	}
	held := false
	for {
		a.mu.Lock()
		err := a.err
		if a.closed {
			err = ErrClosed
		}
		if !held && err == nil {
			if at, held = a.room.Take(n); held {
				a.users++
			}
		}
		there, changed := held && at+n <= a.pinned, a.changed
		a.mu.Unlock()
		if there && err == nil {
			return at, nil
		}
		if err == nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if held {
			err = errors.Join(err, a.give(at, n))
		}
		return 0, err
	}
}

// give gives room back. After close the memory goes with the last of it.
func (a *arena) give(at, n int64) (err error) {
	a.update(func() {
		a.room.Give(at, driver.RoundUp(n, driver.PageSize))
		if a.users--; a.closed && a.users == 0 {
			err = unix.Munmap(a.whole)
		}
	})
	return err
}

// bytes is memory that was taken.
func (a *arena) bytes(at, n int64) []byte { return a.memory[at : at+n : at+n] }

// isReady says whether all of it is pinned, or why not.
func (a *arena) isReady() (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pinned == int64(len(a.memory)), a.err
}

// close unregisters the memory. Nothing copies any more. Memory of snapshots stays mapped until they give it back. It fails with
// ErrUnderWay where a call into CUDA does not end; then close waits again.
func (a *arena) close() error {
	a.stop()
	if err := crew.Await(a.gone); err != nil {
		return err
	}
	var errs []error
	a.update(func() {
		if a.closed {
			return
		}
		a.closed = true
		for i := 0; a.cu != nil && int64(i)*a.piece < a.pinned; i++ {
			errs = append(errs, a.cu.Within(a.context, func() error { return a.cu.Unregister(a.pieceAt(i)) }))
		}
		if a.users == 0 {
			errs = append(errs, unix.Munmap(a.whole))
		}
	})
	return errors.Join(errs...)
}

// toBorder is how many bytes of the arena's memory lie before the next border of a registration.
func (a *arena) toBorder(memory []byte) int64 {
	at := int64(uintptr(unsafe.Pointer(unsafe.SliceData(memory))) - uintptr(unsafe.Pointer(unsafe.SliceData(a.memory))))
	return a.piece - at%a.piece
}
