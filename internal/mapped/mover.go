// Package mapped moves bytes from the page cache to a GPU without a copy in between: it maps files, registers parts of
// them (windows) with CUDA, and lets the GPU read there.
//
// A [Mover] belongs to one reader of one GPU. Its [Windows] are the reader's own, or shared by readers of several GPUs
// ([Shared]).
//
// Pitfalls. A file must not become shorter while it is mapped: Move looks before and after, and fails. CUDA may refuse to
// register a file, which nothing tells before: that is [ErrUnmapped].
package mapped

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

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
}

// Options is what a Mover needs.
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
	m := &Mover{cu: o.CUDA, shared: o.Shared}
	if o.Shared != nil {
		if err := o.Shared.join(o.CUDA, o.Device); err != nil {
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
		m.Leave()
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

// LimitFiles bounds the files that are mapped at once, 16,384 unless told: a process may have 65,530 mappings in all.
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
	err := m.gather.Unload(m.cu)
	if m.shared == nil {
		err = errors.Join(err, m.windows.discardAll(w))
	}
	return err
}

// Leave ends the part in shared windows, once the thread has ended. Leaving twice does nothing.
func (m *Mover) Leave() {
	if m.shared != nil {
		m.shared.leave()
		m.shared = nil
	}
}

// Registered says whether all windows of pieces are registered.
func (m *Mover) Registered(pieces []source.Piece) bool {
	_, needed := cut(pieces, m.windows.size)
	return m.windows.hold(needed.list)
}

// smallPart is the average size under which one launch of the kernel beats a copy call for each part (a call costs
// microseconds, in which PCIe moves some 100 KB).
const smallPart = 256 << 10

// Move lets the GPU read pieces, and gives their bytes where it succeeds. finished is what [crew.Crew.Run] gives.
func (m *Mover) Move(ctx context.Context, to *crew.Destination, pieces []source.Piece) (moved int64, finished <-chan struct{}, err error) {
	nothing := make(chan struct{})
	close(nothing)
	parts, needed := cut(pieces, m.windows.size)
	if len(parts) == 0 {
		return 0, nothing, nil
	}
	total := int64(0)
	for i := range parts {
		total += parts[i].n
	}
	if err := needed.unshortened(); err != nil {
		return 0, nothing, err
	}
	if err := m.windows.expect(needed.list); err != nil {
		return 0, nothing, err
	}
	if total/int64(len(parts)) < smallPart && m.cu.Launches() {
		finished, err = m.gatherParts(ctx, to, parts, needed.list)
	} else {
		finished, err = m.Thread.Run(ctx, 1, int64(len(parts)), func(w *crew.Worker, i int64) error {
			if err := to.Ready(w); err != nil {
				return err
			}
			return m.copyPart(w, &parts[i], needed.list[parts[i].window], to.HBM)
		})
	}
	if err == nil {
		err = needed.unshortened() // nothing else would tell: what was cut off has become zeros
	}
	if err != nil {
		return 0, finished, err
	}
	return total, finished, nil
}

// copyPart starts a copy. The window stays until the slot that stands for the copy is settled.
func (m *Mover) copyPart(w *crew.Worker, p *part, r ref, base driver.Pointer) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	held, err := m.windows.acquire(w, r)
	if err != nil {
		return err
	}
	err = w.CUDA.CopyIn(base+driver.Pointer(p.to), held.memory[p.skip:p.skip+p.n], w.Stream)
	return w.SentHolding(s, func() { release([]*window{held}) }, err)
}

// part is bytes of one window, and where in the destination they go.
type part struct {
	window int   // index into needed.list
	skip   int64 // in the window
	to     int64 // in the destination
	n      int64
}

// ref names a window of a file.
type ref struct {
	file  *source.Backing
	index int64
}

// needed is the windows that a request needs, each once. Looking one up costs an array access, since a gather of
// thousands of samples must be planned in less time than it takes to move them.
type needed struct {
	size  int64 // of a window
	list  []ref
	files map[*source.Backing][]int // by the window's index in the file: one more than its place in list, 0 for none
	last  *source.Backing
	known []int // files[last]
}

// place gives a window's place in the list, where it is put when it is new.
func (s *needed) place(b *source.Backing, index int64) int {
	if b != s.last {
		known, ok := s.files[b]
		if !ok {
			known = make([]int, b.Length/s.size+1)
			s.files[b] = known
		}
		s.last, s.known = b, known
	}
	if s.known[index] == 0 {
		s.list = append(s.list, ref{b, index})
		s.known[index] = len(s.list)
	}
	return s.known[index] - 1
}

// unshortened fails when one of the files has become shorter than it was when it was opened.
func (s *needed) unshortened() error {
	for b := range s.files {
		if err := b.Unshortened(); err != nil {
			return err
		}
	}
	return nil
}

// cut makes parts of pieces, which end where windows end. What exists only in the mount has no window and is left out.
func cut(pieces []source.Piece, size int64) ([]part, *needed) {
	s := &needed{size: size, files: map[*source.Backing][]int{}}
	parts := make([]part, 0, len(pieces)+len(pieces)/8)
	for _, p := range pieces {
		if p.File.Inline {
			continue
		}
		for p.N > 0 {
			index := p.Offset / size
			n := min(p.N, (index+1)*size-p.Offset)
			parts = append(parts, part{s.place(p.File, index), p.Offset - index*size, p.To, n})
			p.Offset, p.To, p.N = p.Offset+n, p.To+n, p.N-n
		}
	}
	return parts, s
}

// unmapped makes the reason for which a file is not registered an [ErrUnmapped].
func unmapped(what string, err error) error {
	return fmt.Errorf("%w: map %s: %w", ErrUnmapped, what, err)
}
