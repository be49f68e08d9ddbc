// Package mapped moves bytes from the page cache to a GPU without a copy in between. It maps files, registers ranges of
// them (windows) with CUDA, and lets the GPU read there.
//
// A [Mover] belongs to one reader of one GPU. Its [Windows] are those of all readers of the process that ask for the same. So a file
// that several of them read is mapped and registered once.
//
// Pitfalls. A file must not become shorter while it is mapped: Move looks afterwards, and fails. CUDA may refuse to
// register a file, which nothing tells before: that is [ErrUnmapped].
package mapped

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// ErrApart says that a file was closed meanwhile: its rows are to be moved another way.
var ErrApart = errors.New("mapped: internal error: rows are to be moved one by one")

// ErrUnmapped says that a file, or a window of it, could not be registered.
var ErrUnmapped = errors.New("make a file's pages visible to the GPU")

// Mover registers files of one reader, and copies from them, on one thread. Registering is serial in the driver, and
// copies that other threads start wait for it (measured on an H200: 20 GB/s through moving windows with several threads).
type Mover struct {
	Thread *crew.Crew // one worker

	cu      *driver.CUDA
	windows *Windows
	gone    bool // it does not use the windows any more

	begun  atomic.Uint64 // tables of places in windows, by their numbers: written from begun on,
	passed atomic.Uint64 // and all up to this one read
	mu     sync.Mutex    // guards open, and changes of begun and passed
	open   []uint64      // the others
	tables sync.Pool     // of *Table: those that were used
}

// Options configure a Mover.
type Options struct {
	CUDA    *driver.CUDA
	Library string // that CUDA was loaded from
	Context driver.Handle
	Kernels *driver.Kernels
	Device  int32        // a CUdevice
	Near    *unix.CPUSet // CPUs that the thread may run on, nil for all
	Slot    int64        // bytes of a table of gathered pieces
	Window  int64        // bytes that are registered at a time
	Pinned  int64        // bytes that may be registered at once, by all Movers that share them
}

// NewMover starts the thread.
func NewMover(o Options) (*Mover, error) {
	m := &Mover{cu: o.CUDA}
	if err := process.join(m, &o); err != nil {
		return nil, err
	}
	var err error
	m.Thread, err = crew.New(crew.Options{CUDA: o.CUDA, Context: o.Context, Kernels: o.Kernels, Threads: 1, SlotSize: o.Slot, Near: o.Near, Idle: m.windows.lookAhead})
	if err != nil {
		return nil, errors.Join(err, m.Detach())
	}
	return m, nil
}

// begin keeps all windows that are found from now on, until end is called, once they were read. Nothing waits for windows in between.
func (m *Mover) begin() (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	number := m.begun.Add(1)
	m.open = append(m.open, number)
	return func() {
		m.end(number)
		if m.windows.waiting.Load() > 0 {
			m.windows.mu.Lock()
			defer m.windows.mu.Unlock()
			m.windows.notify()
		}
	}
}

func (m *Mover) end(number uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.open, number)
	m.open = slices.Delete(m.open, i, i+1)
	passed := m.begun.Load()
	if len(m.open) > 0 {
		passed = m.open[0] - 1
	}
	m.passed.Store(passed)
}

// Shares says whether two Movers find each other's windows.
func (m *Mover) Shares(other *Mover) bool { return other != nil && m.windows == other.windows }

// Devices is how many GPUs share the registrations.
func (m *Mover) Devices() int {
	process.mu.Lock()
	defer process.mu.Unlock()
	return len(m.windows.contexts)
}

// PinnedBytes is the host memory that is registered for files now.
func (m *Mover) PinnedBytes() int64 {
	m.windows.mu.Lock()
	defer m.windows.mu.Unlock()
	return m.windows.bytes
}

// Files is how many files are mapped now.
func (m *Mover) Files() int {
	m.windows.mu.Lock()
	defer m.windows.mu.Unlock()
	return m.windows.mapped
}

// LimitFiles bounds the files that are mapped at once: a quarter of the mappings of a process unless told.
func (m *Mover) LimitFiles(most int) {
	m.windows.mu.Lock()
	defer m.windows.mu.Unlock()
	m.windows.mostFiles = most
}

// Forget ends the use of a file that is about to be closed. w is the Mover's worker.
func (m *Mover) Forget(w *crew.Worker, b *source.Backing) error { return m.windows.forget(w, b) }

// Discard forgets where it would look ahead. w is the Mover's worker; no Move may follow.
func (m *Mover) Discard(w *crew.Worker) { m.windows.noLookAhead(w) }

// unmapped makes the reason for which a file is not registered an [ErrUnmapped].
func unmapped(what string, err error) error {
	return fmt.Errorf("%w: map %s: %w", ErrUnmapped, what, err)
}
