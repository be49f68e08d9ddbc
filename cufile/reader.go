package cufile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/arena"
	"github.com/hbmfs/hbmfs/cufile/internal/copied"
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/direct"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/mapped"
	"github.com/hbmfs/hbmfs/cufile/internal/sequences"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
	"github.com/hbmfs/hbmfs/cufile/internal/staged"
	"github.com/hbmfs/hbmfs/cufile/internal/tally"
)

// HostDevice is an Options.Device: host memory instead of a GPU's.
const HostDevice = -1

// Options configure a Reader. The zero value means GPU 0 and the sizes that were measured to be best.
type Options struct {
	Device  int   // CUDA index, or HostDevice
	Path    Path  // empty means Auto
	Threads int   // 0 means as many as copy fastest, which is measured while they do, 16 at most
	Slot    int64 // bytes that a thread moves at a time, 0 means 2 MiB; each pins three of them
	Arena   int64 // bytes of memory for views, taken at the first one, 0 means 1 GiB (256 MiB on the host)

	// Window is the bytes that the mapped path registers at a time, 0 means 128 MiB. Pinned bounds all registrations that are kept. 0 means a quarter of the RAM, or of the
	// memory that the process's control group may have. It is no less than two windows. Readers of a process with the same Window and Pinned, also those of several GPUs, share
	// their registrations, which Pinned bounds together.
	Window int64
	Pinned int64

	// Descriptors bounds the backing files of mounts that are kept open. 0 means a quarter of RLIMIT_NOFILE, at most 16,384, and for a GPU a 16th of a limit up to
	// 4,096. For a GPU each may have two descriptors, the second one with O_DIRECT. Shards are opened to be registered with the GPU, or mapped on the host; rows of
	// these need no descriptor. Elsewhere a random batch of more shards opens and closes files, which takes milliseconds. Readers of one process leave half of its
	// descriptors to its other files.
	Descriptors int

	// Auto cannot see whether the bytes will be read again, nor how many readers share the machine.
	Reuse   bool
	Readers int // 0 means 1

	// PageCache is what Close of a File does with its pages; see [File.Uncache].
	PageCache PageCache

	// Probe is the command that proves Direct in a process of its own, to which arguments are appended: see RunProbe.
	// Without it Direct is not available.
	Probe []string

	// Client is the Reader's name in a mount's status, empty means "hbmfs reader".
	Client string

	Libraries driver.Libraries

	adapt bool // Threads is the most of them: see crew.Pace
}

// mostDescriptors is the number that a daemon lends to each of eight readers of one user. fewDescriptors is a low limit of
// a process.
const (
	mostDescriptors = 1 << 14
	fewDescriptors  = 1 << 12
)

func (o *Options) setDefaults() error {
	o.Path, o.Client = cmp.Or(o.Path, Auto), cmp.Or(o.Client, "hbmfs reader")
	o.Slot, o.Window = cmp.Or(o.Slot, 2<<20), cmp.Or(o.Window, 128<<20)
	if o.Threads == 0 {
		o.adapt = true
		o.Threads = crew.MostThreads(runtime.NumCPU(), o.Readers)
	}
	if o.Arena == 0 {
		o.Arena = 1 << 30
		if o.Device == HostDevice {
			o.Arena = 256 << 20
		}
	}
	if o.Pinned == 0 {
		limit, _ := device.GroupLimit("/")
		var info unix.Sysinfo_t
		if unix.Sysinfo(&info) == nil {
			limit = min(limit, int64(info.Totalram*uint64(info.Unit)))
		}
		o.Pinned = max(limit/4, arena.Unit)
	}
	if o.Descriptors == 0 {
		o.Descriptors = mostDescriptors
		var limit unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
			share := uint64(4)
			if limit.Cur <= fewDescriptors && o.Device != HostDevice { // several readers come by few, and registered rows need none
				share = 16
			}
			o.Descriptors = int(max(2, min(limit.Cur/share, mostDescriptors)))
		}
	}
	if o.Descriptors < 2 {
		return fmt.Errorf("descriptors must be 2 or more, not %d", o.Descriptors)
	}
	o.Readers = max(o.Readers, 1)
	const most = 1 << 46
	for _, n := range []int64{o.Slot, o.Arena, o.Window, o.Pinned} {
		if n < arena.Unit || n > most {
			return fmt.Errorf("slot, arena, window and pinned are sizes from 64 KiB on, not %d", n)
		}
	}
	if o.Threads < 1 || o.Threads > 256 {
		return fmt.Errorf("threads must be 1 to 256, not %d", o.Threads)
	}
	if err := o.PageCache.check(); err != nil {
		return err
	}
	if o.Device < HostDevice {
		return fmt.Errorf("device must be a GPU's index, or -1 for the host, not %d", o.Device)
	}
	o.Slot = driver.RoundUp(o.Slot, driver.PageSize)
	o.Arena = driver.RoundUp(o.Arena, arena.Unit)
	o.Window = driver.RoundUp(o.Window, driver.PageSize)
	o.Pinned = max(o.Pinned, 2*o.Window)
	return nil
}

// Reader reads files into one device's memory. Its methods may be called from many goroutines at once.
type Reader struct {
	opt         Options
	device      *device.Device
	crew        *crew.Crew
	arena       *arena.Arena
	staged      *staged.Mover
	mapped      *mapped.Mover // nil for the host
	copied      *copied.Mover // nil for a GPU
	sharing     *sharing      // nil for the host, and where threads do not copy beside the GPU
	direct      *direct.Mover // nil for the host
	sequences   *sequences.Writer
	proofs      *direct.Proofs
	descriptors *source.Descriptors
	opener      *source.Opener
	others      tally.Readers
	gate        crew.Gate      // of calls that open files or allocate
	stuck       sync.WaitGroup // goroutines that give back resources after a stuck call
	spans       sync.Pool      // of *[]source.Span: those of batches that have ended
	opened      atomic.Int64   // bytes of all files that were opened
	dropped     atomic.Int64   // bytes that went from the page cache

	mu    sync.Mutex // guards the fields below
	files map[*File]bool
	moved Moved

	ending sync.Mutex // one closes at a time; guards the fields below
	over   bool       // releaseGPU has ended
	freed  error      // how; set on the thread that it runs on
	ended  bool       // Close has given back all that it could
}

// New prepares a device: threads and pinned memory. If ctx ends meanwhile, it gives back its memory and returns ctx's error.
func New(ctx context.Context, opt Options) (*Reader, error) {
	if err := opt.setDefaults(); err != nil {
		return nil, err
	}
	r := &Reader{opt: opt, files: map[*File]bool{}, device: &device.Device{}, proofs: direct.NewProofs(opt.Probe, opt.Libraries, opt.Device)}
	r.descriptors = source.NewDescriptors(opt.Descriptors, r.letGo)
	r.opener = source.NewOpener(opt.Client, r.descriptors)
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.release())
	}
	return r, nil
}

// start looks between its steps whether ctx has ended: a call into a library cannot be interrupted.
func (r *Reader) start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch host := r.opt.Device == HostDevice; {
	case host && r.opt.Path != Auto && r.opt.Path != Host:
		return fmt.Errorf("%w: %s needs a GPU and the device is the host", ErrUnavailable, r.opt.Path)
	case host:
		return errors.Join(r.startHost(ctx), ctx.Err())
	case r.opt.Path == Host:
		return fmt.Errorf("%w: host ends in host memory and the device is gpu %d", ErrUnavailable, r.opt.Device)
	}
	if err := r.startGPU(ctx); err != nil {
		return err
	}
	if r.opt.Path == Direct || r.opt.Path == Compat {
		if err := r.direct.Start(); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrUnavailable, r.opt.Path, err)
		}
	}
	return ctx.Err()
}

func (r *Reader) startHost(ctx context.Context) (err error) {
	if r.crew, err = crew.New(crew.Options{Threads: r.opt.Threads}); err != nil {
		return err
	}
	r.copied = copied.New(copied.MostThreads())
	return r.startOnCrew(ctx)
}

func (r *Reader) startGPU(ctx context.Context) error {
	d, err := device.Open(r.opt.Device, r.opt.Libraries)
	if err != nil {
		return err
	}
	r.device = d
	if err := ctx.Err(); err != nil {
		return err
	}
	r.crew, err = crew.New(crew.Options{CUDA: d.CUDA, Context: d.Context, Threads: r.opt.Threads, SlotSize: r.opt.Slot, Kernels: &d.Kernels, Near: driver.NearCPUs(d.GPU.NUMA)})
	if err != nil {
		return fmt.Errorf("pin %d bytes of host memory for each of %d threads of %s: %w", crew.SlotsPerWorker*r.opt.Slot, r.opt.Threads, d.GPU.Name, err)
	}
	if r.opt.Path == Auto {
		r.sharing = newSharing(min(sharingThreads(runtime.GOMAXPROCS(0), r.opt.Readers), r.opt.Threads)) // GOMAXPROCS follows the limit of a control group
	}
	r.direct = direct.New(direct.Options{Crew: r.crew, Threads: r.opt.Threads, Library: r.opt.Libraries.CuFile, Compat: r.opt.Path == Compat})
	if err := ctx.Err(); err != nil {
		return err
	}
	// Beside the crew the mover would take longer than after it: both bring pages and register them.
	mover := make(chan error, 1)
	go func() { mover <- r.startMover() }()
	err = r.startOnCrew(ctx)
	return errors.Join(<-mover, err)
}

// startOnCrew makes the paths that work by the crew's threads.
func (r *Reader) startOnCrew(ctx context.Context) (err error) {
	o := &r.opt
	r.staged = staged.New(staged.Options{Crew: r.crew, CUDA: r.device.CUDA, Threads: o.Threads, Slot: o.Slot, Adapt: o.adapt, Readers: o.Readers})
	r.sequences = sequences.New(r.device, r.crew, o.Threads)
	r.arena, err = arena.New(ctx, arena.Options{Device: r.device, Crew: r.crew, Threads: o.Threads, Step: o.Slot, Bytes: o.Arena})
	return err
}

// startMover starts the thread that registers.
func (r *Reader) startMover() (err error) {
	const table = 1 << 20 // bytes of a gather's table: this thread's slots hold nothing else
	r.mapped, err = mapped.NewMover(mapped.Options{CUDA: r.device.CUDA, Library: r.opt.Libraries.CUDA, Context: r.device.Context, Device: r.device.GPU.Device, Kernels: &r.device.Kernels,
		Near: driver.NearCPUs(r.device.GPU.NUMA), Slot: min(r.opt.Slot, table), Window: r.opt.Window, Pinned: r.opt.Pinned})
	return err
}

// GPU describes the device; it is zero for the host.
func (r *Reader) GPU() driver.GPU { return r.device.GPU }

// Moved gives all bytes moved so far.
func (r *Reader) Moved() Moved {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.moved
}

// PinnedBytes is the host memory that is registered for files now, by all that share it.
func (r *Reader) PinnedBytes() int64 {
	if r.mapped == nil {
		return 0
	}
	return r.mapped.PinnedBytes()
}

// Close closes the Reader's files, as [File.Close] does, and gives everything back. Views must be released before. It fails
// with ErrUnderWay where a read or a call into a library does not end for 5 s. The memory and files of that call stay then,
// and the caller calls Close again. After any other result Close does nothing.
func (r *Reader) Close() error {
	r.ending.Lock()
	defer r.ending.Unlock()
	if r.ended {
		return nil
	}
	err := r.closeFiles()
	if !errors.Is(err, ErrUnderWay) {
		err = errors.Join(err, r.release())
	}
	if errors.Is(err, ErrUnderWay) {
		return fmt.Errorf("close the reader: %w; close it again then", err)
	}
	r.ended = true
	return err
}

// closeFiles lets no more files be opened, and closes those that are open.
func (r *Reader) closeFiles() error {
	if err := crew.Await(r.gate.Shut()); err != nil {
		return err
	}
	r.mu.Lock()
	files := slices.Collect(maps.Keys(r.files))
	r.mu.Unlock()
	var errs []error
	for _, f := range files {
		err := f.Close()
		if errs = append(errs, err); errors.Is(err, ErrUnderWay) {
			break
		}
	}
	return errors.Join(errs...)
}

// release may be called again after ErrUnderWay.
func (r *Reader) release() error {
	// The workers end first: a call in which one is stuck may still write to the memory that goes after them.
	if r.crew != nil {
		if err := r.crew.Close(); err != nil {
			return err
		}
	}
	var errs []error
	if r.mapped != nil {
		if !r.over {
			err := r.mapped.Thread.DoAtLast(crew.ClosePatience, func(w *crew.Worker) error {
				r.freed = r.releaseGPU(w)
				return nil
			})
			if errors.Is(err, ErrUnderWay) {
				return err
			}
			r.over, errs = true, append(errs, r.freed) // err says no more: where it was under way before, that it is done
		}
		if err := r.mapped.Thread.Close(); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	r.stuck.Wait()
	if err := r.descriptors.Watch().Close(); err != nil {
		return errors.Join(append(errs, err)...)
	}
	if r.arena != nil { // a GPU's arena has gone with its device
		errs = append(errs, r.arena.Close())
	}
	if r.mapped != nil {
		err := r.mapped.Detach()
		if errs = append(errs, err); errors.Is(err, ErrUnderWay) {
			return errors.Join(errs...)
		}
	}
	return errors.Join(append(errs, r.device.Close())...)
}

// forget drops the handles and mappings of files that are about to be closed.
func (r *Reader) forget(files []*source.Backing) error {
	do := func(f func(*crew.Worker) error) error { return r.mapped.Thread.DoAtLast(crew.ClosePatience, f) }
	return r.drop(context.Background(), files, do, func(w *crew.Worker, b *source.Backing) error {
		r.direct.Forget(b)
		return r.mapped.Forget(w, b)
	})
}

// letGo gives cuFile handles back, and mappings of a cache's files, so that the files can be closed.
func (r *Reader) letGo(ctx context.Context, files []*source.Backing) error {
	files = slices.DeleteFunc(slices.Clone(files), func(b *source.Backing) bool { return !b.Cached && (r.direct == nil || !r.direct.Knows(b)) })
	do := func(f func(*crew.Worker) error) error { return r.mapped.Thread.Do(ctx, f) }
	return r.drop(ctx, files, do, func(w *crew.Worker, b *source.Backing) error {
		r.direct.Forget(b)
		if !b.Cached {
			return nil
		}
		return r.mapped.Forget(w, b)
	})
}

// unmap ends mappings and registrations of files that stay open.
func (r *Reader) unmap(ctx context.Context, files []*source.Backing) error {
	return r.drop(ctx, files, func(f func(*crew.Worker) error) error { return r.mapped.Thread.Do(ctx, f) }, func(w *crew.Worker, b *source.Backing) error { return r.mapped.Forget(w, b) })
}

// drop has do call one for each file, on a thread of the GPU. On the host, drop unmaps the files.
func (r *Reader) drop(ctx context.Context, files []*source.Backing, do func(func(*crew.Worker) error) error, one func(w *crew.Worker, b *source.Backing) error) error {
	switch {
	case len(files) == 0:
		return nil
	case r.copied != nil:
		return r.copied.Forget(files)
	case r.mapped == nil:
		return nil
	}
	return do(func(w *crew.Worker) error {
		var errs []error
		for _, b := range files {
			if err := ctx.Err(); err != nil { // the caller has left, and the rest are in use again
				return errors.Join(append(errs, err)...)
			}
			errs = append(errs, one(w, b))
		}
		return errors.Join(errs...)
	})
}

// releaseGPU runs on a thread with the context. The order matters: cuFile may deadlock when memory goes before it.
func (r *Reader) releaseGPU(w *crew.Worker) error {
	w.Retire()
	r.mapped.Discard(w)
	return errors.Join(r.direct.Stop(), r.device.Kernels.Unload(w.CUDA), r.arena.Close())
}
