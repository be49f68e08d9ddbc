// Package direct moves bytes between storage and HBM by libcufile, and proves by a process of its own that no CPU touched
// them.
//
// A [Mover] belongs to one reader of one GPU. [Proofs] ask a probe about a file, once: [Prove].
//
// Pitfalls. cuFile keeps its settings and counters per process. A file's handle must go before its descriptor is closed
// ([Mover.Forget]), and the driver before the memory ([Mover.Stop]): cuFile may deadlock otherwise.
package direct

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Patience bounds a driver's start and a probe: the first CUDA call of a machine can take many seconds.
const Patience = 60 * time.Second

// Options configure a Mover.
type Options struct {
	Crew    *crew.Crew
	Threads int    // workers that read at once
	Library string // libcufile's file, empty for the system's
	Compat  bool   // cuFile may read by POSIX calls
}

// Mover is a reader's use of libcufile: its driver is opened by the first Start.
type Mover struct {
	opt Options

	mu     sync.Mutex     // guards the fields below
	lib    *driver.CuFile // nil until Start
	failed error          // why Start cannot

	filesMu sync.Mutex // guards the fields below
	files   map[*source.Backing]*handle
}

// handle is a file as cuFile knows it.
type handle struct {
	register func() (driver.Handle, error) // the first call registers the file; later calls return its result
}

// New makes a Mover. Nothing is loaded yet.
func New(o Options) *Mover { return &Mover{opt: o, files: map[*source.Backing]*handle{}} }

// Start loads libcufile and opens its driver, with compat mode allowed on the compat path only. A failure is remembered as
// long as the Reader lives. Otherwise auto would ask for every request, and each try blocks a thread for as long as the driver
// likes. A new Reader sees changes: a library is installed, nvidia-fs is loaded, a hung driver comes back. While another Reader or
// Writer of the process has the driver open, Start fails at once, and works once that is closed.
func (d *Mover) Start() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lib != nil || d.failed != nil {
		return d.failed
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	opened := make(chan *driver.CuFile, 1)
	var asked atomic.Bool // or else the threads were busy, or the Reader is closed
	if err := d.opt.Crew.Do(ctx, func(*crew.Worker) error {
		asked.Store(true)
		lib, err := driver.LoadCuFile(d.opt.Library)
		if err != nil {
			return err
		}
		opened <- lib
		return lib.Open(d.opt.Compat)
	}); err != nil {
		var refused *driver.CuFileError
		if asked.Load() && (!errors.As(err, &refused) || refused.Code != driver.AlreadyOpen) {
			d.failed = err
		}
		return err
	}
	d.lib = <-opened
	return nil
}

// Stop closes the driver. Files have let go of their handles before.
func (d *Mover) Stop() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lib == nil {
		return nil
	}
	lib := d.lib
	d.lib = nil
	return lib.Close()
}

// handle gives a file's cuFile handle. It is made once: registering checks the whole storage stack.
func (d *Mover) handle(b *source.Backing) (driver.Handle, error) {
	fd := b.FD
	if !d.opt.Compat {
		if direct, ok := b.Direct(); ok {
			fd = direct
		}
	}
	d.filesMu.Lock()
	f := d.files[b]
	if f == nil {
		f = &handle{sync.OnceValues(func() (driver.Handle, error) { return d.lib.Register(uintptr(fd)) })}
		d.files[b] = f
	}
	d.filesMu.Unlock()
	h, err := f.register()
	if err != nil {
		d.filesMu.Lock()
		if d.files[b] == f { // another read may have registered the file since
			delete(d.files, b) // the next read tries again
		}
		d.filesMu.Unlock()
		return 0, fmt.Errorf("register %s with cuFile: %w", b.Name, err)
	}
	return h, nil
}

// Knows says whether cuFile may know a file.
func (d *Mover) Knows(b *source.Backing) bool {
	d.filesMu.Lock()
	defer d.filesMu.Unlock()
	return d.files[b] != nil
}

// Forget gives back a file's handle, before its descriptor is closed.
func (d *Mover) Forget(b *source.Backing) {
	d.filesMu.Lock()
	f := d.files[b]
	delete(d.files, b)
	d.filesMu.Unlock()
	if f == nil {
		return
	}
	if h, err := f.register(); err == nil {
		d.lib.Deregister(h)
	}
}

// mostRead bounds the bytes of one cuFileRead by the size of nvidia-fs's shadow buffer.
const mostRead = 16 << 20

// Move lets libcufile read pieces, and gives their bytes. cuFile bounces reads that are not
// aligned. So one piece may be read as the aligned pages around it: it begins skew bytes into them, and the destination has
// room. skew is -1 otherwise.
// When it returns, also with an error, nothing is under way.
func (d *Mover) Move(ctx context.Context, to *crew.Destination, pieces []source.Piece, skew int64) (moved int64, err error) {
	moved = source.BytesOf(pieces)
	base := to.HBM
	if skew >= 0 {
		base -= driver.Pointer(skew)
		p := &pieces[0]
		p.Offset, p.N = p.Offset-skew, driver.RoundUp(p.N+skew, driver.PageSize)
	}
	chunks := source.Cut(pieces, mostRead)
	return moved, d.opt.Crew.RunQuiet(ctx, d.opt.Threads, int64(len(chunks)), func(_ *crew.Worker, i int64) error {
		for _, p := range chunks[i].Pieces {
			if err := d.read(p, base, skew >= 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// read reads one piece to its place behind base, in as many calls as the library makes of it. Whole pages may reach beyond the
// end of the file.
func (d *Mover) read(p source.Piece, base driver.Pointer, pages bool) error {
	h, err := d.handle(p.File)
	if err != nil {
		return err
	}
	need := p.N
	if pages {
		need = min(need, p.File.Length-p.Offset)
	}
	for done := int64(0); done < need; {
		n, err := d.lib.Read(h, base, p.N-done, p.Offset+done, p.To+done)
		if err != nil {
			return fmt.Errorf("read %s at %d: %w", p.File.Name, p.Offset+done, err)
		}
		if n == 0 {
			return fmt.Errorf("read %s at %d: %w", p.File.Name, p.Offset+done, source.ErrShort)
		}
		done += n
	}
	return nil
}

// StartCounting sets cuFile's counters of the process to zero and starts them.
func (d *Mover) StartCounting() error { return d.lib.StartCounting() }

// ReadCounts reads the counters of the GPU with this UUID.
func (d *Mover) ReadCounts(uuid [16]byte) (driver.WayCounts, error) { return d.lib.ReadCounts(uuid) }
