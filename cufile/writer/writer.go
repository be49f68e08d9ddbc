package writer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/direct"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// HostDevice is an Options.Device: host memory instead of a GPU's.
const HostDevice = -1

// Options configure a Writer.
type Options struct {
	Device  int   // CUDA index, or HostDevice
	Path    Path  // empty means Auto
	Require bool  // Path is an order and not a wish
	Threads int   // that copy, sum and write; 0 means 8, but no more than there are CPUs, and 4 at least
	Arena   int64 // bytes of pinned memory for snapshots; 0 means none
	Rate    int64 // most bytes a second to storage; 0 means no bound

	// Probe is the command that proves Direct in a process of its own, to which arguments are appended: see RunProbe.
	// Without it Direct is not available.
	Probe []string

	Libraries driver.Libraries

	piece   int64 // of the arena; for tests
	proving bool  // Direct has yet to be proven
}

func (o *Options) setDefaults() error {
	if o.Path == "" {
		o.Path = Auto
	}
	if o.Threads == 0 {
		o.Threads = max(4, min(8, runtime.NumCPU()))
	}
	if o.piece == 0 {
		o.piece = arenaPiece
	}
	const most = 1 << 46
	switch {
	case o.Threads < 1 || o.Threads > 256:
		return fmt.Errorf("threads must be 1 to 256, not %d", o.Threads)
	case o.Arena < 0 || o.Arena > most:
		return fmt.Errorf("memory must be a number of bytes, not %d", o.Arena)
	case o.Rate < 0:
		return fmt.Errorf("rate must be bytes a second, not %d", o.Rate)
	case o.Device < HostDevice:
		return fmt.Errorf("device must be a GPU's index, or -1 for the host, not %d", o.Device)
	}
	return nil
}

// Writer writes memory of one device, and of the host, to files. Its methods may be called from many goroutines at once.
type Writer struct {
	opt     Options
	device  *device.Device
	crew    *crew.Crew
	direct  *direct.Mover  // nil for the host
	proofs  *direct.Proofs // of Direct
	arena   *arena         // nil where there is none
	stream  driver.Handle  // of snapshots
	copying sync.Mutex     // held while a snapshot's copies are put on it
	rate    rate
	gate    crew.Gate     // of snapshots and writes
	shut    chan struct{} // closed when the gate is

	mu        sync.Mutex // guards the fields below
	writes    map[*Write]bool
	snapshots map[*Snapshot]bool // that are not released
	stats     Stats

	ending sync.Mutex // one closes at a time; guards the fields below
	asked  bool       // Close was called
	over   bool       // cuFile was closed
	ended  bool       // Close has given back all that it could
}

// Stats count a Writer's work since it was opened.
type Stats struct {
	Moved  PathBytes
	Writes int64 // that ended well
	Last   Choice
}

// New prepares a device: threads, their pinned slots, and an arena that comes up in the background.
func New(opt Options) (*Writer, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	w := &Writer{opt: opt, rate: rate{perSecond: opt.Rate}, shut: make(chan struct{}), writes: map[*Write]bool{}, snapshots: map[*Snapshot]bool{}}
	if opt.Device == HostDevice && opt.Require && opt.Path == Direct {
		return nil, fmt.Errorf("%w: %s needs a GPU and the device is the host", ErrUnavailable, opt.Path)
	}
	if err := w.start(); err != nil {
		return nil, errors.Join(err, w.release())
	}
	if opt.Require && opt.Path == Direct {
		if err := w.direct.Start(); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrUnavailable, opt.Path, err), w.Close())
		}
	}
	return w, nil
}

func (w *Writer) start() (err error) {
	if w.device, err = device.Open(w.opt.Device, w.opt.Libraries); err != nil {
		return err
	}
	o := crew.Options{Threads: w.opt.Threads, SlotSize: ChunkSize}
	if w.device.CUDA != nil {
		if err := w.device.Within(func() error { w.stream, err = w.device.CUDA.NewStream(); return err }); err != nil {
			return err
		}
		o.CUDA, o.Context, o.Near = w.device.CUDA, w.device.Context, driver.NearCPUs(w.device.GPU.NUMA)
	}
	if w.crew, err = crew.New(o); err != nil {
		return fmt.Errorf("%d bytes of host memory for each of %d threads: %w", crew.SlotsPerWorker*o.SlotSize, o.Threads, err)
	}
	if w.device.CUDA != nil {
		w.direct = direct.New(direct.Options{Crew: w.crew, Threads: w.opt.Threads, Library: w.opt.Libraries.CuFile})
		w.proofs = direct.NewProofs(w.opt.Probe, w.opt.Libraries, w.opt.Device)
	}
	if w.opt.Arena > 0 {
		w.arena, err = newArena(w.device.CUDA, w.device.Context, w.opt.Arena, w.opt.piece, w.opt.Threads, o.Near)
	}
	return err
}

// Arena is the bytes of memory for snapshots.
func (w *Writer) Arena() int64 {
	if w.arena == nil {
		return 0
	}
	return int64(len(w.arena.memory))
}

// Ready is closed when the arena is pinned, or cannot be: IsReady says which.
func (w *Writer) Ready() <-chan struct{} {
	if w.arena == nil {
		none := make(chan struct{})
		close(none)
		return none
	}
	return w.arena.ready
}

// IsReady says whether the arena is pinned, and fails with ErrNoMemory where it cannot be.
func (w *Writer) IsReady() (bool, error) {
	if w.arena == nil {
		return true, nil
	}
	return w.arena.isReady()
}

// Stats returns the counts so far.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

func (w *Writer) account(m PathBytes, c Choice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Moved.add(m)
	w.stats.Writes++
	w.stats.Last = c
}

func (w *Writer) add(q *Write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes[q] = true
}

func (w *Writer) remove(q *Write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.writes, q)
}

func (w *Writer) addSnapshot(s *Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshots[s] = true
}

func (w *Writer) removeSnapshot(s *Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.snapshots, s)
}

func (w *Writer) held() []*Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.snapshots))
}

// untilShut gives a context that ends with the Writer, too.
func (w *Writer) untilShut(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-w.shut:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Close cancels all writes, waits for them and for copies that are under way, and gives everything back. Room of snapshots goes
// when they are released. It fails with ErrUnderWay where a call into the system or a library does not end for 5 s. Memory of the
// caller must stay then, and the caller calls Close again. After any other result Close does nothing.
func (w *Writer) Close() error {
	w.ending.Lock()
	defer w.ending.Unlock()
	if w.ended {
		return nil
	}
	left := w.gate.Shut()
	if !w.asked {
		w.asked = true
		close(w.shut)
	}
	w.mu.Lock()
	for q := range w.writes {
		q.cancel()
	}
	w.mu.Unlock()
	err := crew.Await(left)
	if err == nil {
		err = w.release()
	}
	if errors.Is(err, ErrUnderWay) {
		return fmt.Errorf("close the writer: %w; close it again then", err)
	}
	w.ended = true
	return err
}

// release may be called again after ErrUnderWay.
func (w *Writer) release() error {
	var errs []error
	if w.direct != nil && !w.over { // on a thread with the context, before memory goes: cuFile may deadlock otherwise
		var freed error
		err := w.crew.DoAtLast(crew.ClosePatience, func(*crew.Worker) error {
			freed = w.direct.Stop()
			return nil
		})
		if errors.Is(err, ErrUnderWay) {
			return err
		}
		w.over, errs = true, append(errs, freed)
	}
	if w.crew != nil {
		if err := w.crew.Close(); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	if w.arena != nil {
		err := w.arena.close()
		if errors.Is(err, ErrUnderWay) {
			return err
		}
		errs = append(errs, err)
	}
	if w.stream != 0 {
		errs = append(errs, w.device.Within(func() error { return w.device.CUDA.DestroyStream(w.stream) }))
		w.stream = 0
	}
	if w.device != nil {
		errs = append(errs, w.device.Close())
	}
	return errors.Join(errs...)
}
