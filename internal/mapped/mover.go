// Package mapped moves bytes from the page cache to a GPU without a copy in between: it maps files, registers ranges of
// them (windows) with CUDA, and lets the GPU read there.
//
// A [Mover] belongs to one reader of one GPU. Its [Windows] are the reader's own, or shared by readers of several GPUs
// ([Shared]).
//
// Pitfalls. A file must not become shorter while it is mapped: Move looks before and after, and fails. CUDA may refuse to
// register a file, which nothing tells before: that is [ErrUnmapped].
package mapped

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// ErrApart says that nothing was moved, since files must be moved one by one.
var ErrApart = errors.New("mapped: internal error: pieces are to be moved one by one")

// ErrUnmapped says that a file, or a window of it, could not be registered.
var ErrUnmapped = errors.New("make a file's pages visible to the GPU")

// Mover registers files of one reader, and copies from them, on one thread. Registering is serial in the driver, and
// copies that other threads start wait for it (measured on an H200: 20 GB/s through moving windows with several threads).
type Mover struct {
	Thread *crew.Crew // one worker

	cu      *driver.CUDA
	windows *Windows
	shared  *Shared // that windows belong to; nil where they are the Mover's own
	gather  driver.Kernel
	widen   driver.Kernel
	table   int64 // bytes of a slot, for a kernel's table

	ended sync.Pool // of *Plan: their fragments are most of what a request would leave to the garbage collector
}

// Options configure a Mover.
type Options struct {
	CUDA    *driver.CUDA
	Context driver.Handle
	Device  int32        // a CUdevice
	Near    *unix.CPUSet // CPUs that the thread may run on, nil for all
	Slot    int64        // bytes of a table of gathered pieces
	Window  int64        // bytes that are registered at a time
	Pinned  int64        // bytes that may be registered at once
	Shared  *Shared      // whose windows are used instead; nil for windows of its own
}

// NewMover starts the thread.
func NewMover(o Options) (*Mover, error) {
	m := &Mover{cu: o.CUDA, shared: o.Shared, table: o.Slot}
	if o.Shared != nil {
		if err := o.Shared.attach(o.CUDA, o.Device); err != nil {
			return nil, err
		}
		m.windows = o.Shared.windows
	} else {
		m.windows = newWindows(o.Window, o.Pinned, 1)
	}
	var err error
	m.Thread, err = crew.New(crew.Options{CUDA: o.CUDA, Context: o.Context, Threads: 1, SlotSize: o.Slot, Near: o.Near, Idle: m.windows.lookAhead})
	if err != nil {
		err = errors.Join(err, m.StopFilling())
		m.Detach()
		return nil, err
	}
	return m, nil
}

// PinnedBytes is the host memory that is registered for files now.
func (m *Mover) PinnedBytes() int64 { return m.windows.pinned() }

// Files is how many files are mapped now.
func (m *Mover) Files() int {
	m.windows.mu.Lock()
	defer m.windows.mu.Unlock()
	return len(m.windows.files)
}

// LimitFiles bounds the files that are mapped at once: a quarter of the mappings of a process unless told.
func (m *Mover) LimitFiles(most int) {
	m.windows.mu.Lock()
	defer m.windows.mu.Unlock()
	m.windows.mostFiles = most
}

// Forget ends the use of a file that is about to be closed. w is the Mover's worker.
func (m *Mover) Forget(w *crew.Worker, b *source.Backing) error { return m.windows.forget(w, b) }

// StopFilling ends the thread that fills page tables of windows that are the Mover's own. It fails with [crew.ErrUnderWay] where
// the thread reads from a disk or server that does not answer; then StopFilling waits again.
func (m *Mover) StopFilling() error {
	if m.shared != nil {
		return nil
	}
	return m.windows.fill.close()
}

// Discard gives up all windows that are the Mover's own. w is the Mover's worker; no Move may follow.
func (m *Mover) Discard(w *crew.Worker) error {
	m.windows.noLookAhead(w)
	err := errors.Join(m.gather.Unload(m.cu), m.widen.Unload(m.cu))
	if m.shared == nil {
		err = errors.Join(err, m.windows.discardAll(w))
	}
	return err
}

// Detach ends the use of shared windows, once the thread has ended. Detaching twice does nothing.
func (m *Mover) Detach() {
	if m.shared != nil {
		m.shared.detach()
		m.shared = nil
	}
}

// unmapped makes the reason for which a file is not registered an [ErrUnmapped].
func unmapped(what string, err error) error {
	return fmt.Errorf("%w: map %s: %w", ErrUnmapped, what, err)
}
