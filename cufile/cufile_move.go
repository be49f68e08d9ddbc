package cufile

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// cufileDriver is a Reader's use of libcufile: opened by the first who needs it.
type cufileDriver struct {
	mu     sync.Mutex     // guards what follows
	lib    *driver.CuFile // nil until start
	failed error          // why start cannot

	filesMu sync.Mutex // guards what follows
	files   map[*source.Backing]*cufileHandle
}

// cufileHandle is a file as cuFile knows it.
type cufileHandle struct {
	mu     sync.Mutex
	handle driver.Handle // 0 until it is registered; guarded by mu
}

// start loads libcufile and opens its driver, with compat mode allowed on the compat path only. A failure is remembered as
// long as the Reader lives: auto would ask for every request, and each try takes a thread for as long as the driver likes. What
// may change meanwhile (a library is installed, nvidia-fs is loaded, a hung driver comes back) a new Reader sees.
func (d *cufileDriver) start(r *Reader) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lib != nil || d.failed != nil {
		return d.failed
	}
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	defer cancel()
	opened := make(chan *driver.CuFile, 1)
	var asked atomic.Bool // or else the threads were busy, or the Reader is closed
	if err := r.crew.Do(ctx, func(*crew.Worker) error {
		asked.Store(true)
		lib, err := driver.LoadCuFile(r.opt.Libraries.CuFile)
		if err != nil {
			return err
		}
		opened <- lib
		return lib.Open(r.opt.Path == Compat)
	}); err != nil {
		if asked.Load() {
			d.failed = err
		}
		return err
	}
	d.lib = <-opened
	return nil
}

// stop closes the driver. Files have let go of their handles before.
func (d *cufileDriver) stop() error {
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
func (d *cufileDriver) handle(b *source.Backing, path Path) (driver.Handle, error) {
	fd := b.FD
	if path == Direct {
		if direct, ok := b.Direct(); ok {
			fd = direct
		}
	}
	d.filesMu.Lock()
	if d.files == nil {
		d.files = map[*source.Backing]*cufileHandle{}
	}
	f := d.files[b]
	if f == nil {
		f = &cufileHandle{}
		d.files[b] = f
	}
	d.filesMu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handle != 0 {
		return f.handle, nil
	}
	h, err := d.lib.Register(uintptr(fd))
	if err != nil {
		return 0, fmt.Errorf("register %s with cuFile: %w", b.Name, err)
	}
	f.handle = h
	return h, nil
}

// holds says whether cuFile may know a file.
func (d *cufileDriver) holds(b *source.Backing) bool {
	d.filesMu.Lock()
	defer d.filesMu.Unlock()
	return d.files[b] != nil
}

// forget gives back a file's handle, before its descriptor is closed.
func (d *cufileDriver) forget(b *source.Backing) {
	d.filesMu.Lock()
	f := d.files[b]
	delete(d.files, b)
	d.filesMu.Unlock()
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handle != 0 {
		d.lib.Deregister(f.handle)
		f.handle = 0
	}
}

// cufileChunk is what one cuFileRead moves: nvidia-fs's shadow buffer holds no more.
const cufileChunk = 16 << 20

// moveCuFile lets libcufile read pieces. One piece is read as the aligned envelope around it, for which the view has
// room; cuFile bounces what is not aligned.
func (t *transfer) moveCuFile(ctx context.Context, pieces []source.Piece) (<-chan struct{}, error) {
	f := t.f
	total := int64(0)
	for _, p := range pieces {
		total += p.N
	}
	base := t.to.HBM
	if t.envelope {
		base -= driver.Pointer(t.skew)
		p := &pieces[0]
		p.Offset, p.N = p.Offset-t.skew, driver.RoundUp(p.N+t.skew, driver.PageSize)
	}
	parts := cut(pieces, cufileChunk)
	finished, err := f.r.crew.Run(ctx, f.r.opt.Threads, int64(len(parts)), func(_ *crew.Worker, i int64) error {
		for _, p := range parts[i].pieces {
			if err := t.readCuFile(p, base); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		t.moved.count(t.choice.Path, total)
	}
	return finished, err
}

// readCuFile reads one piece to its place behind base, in as many calls as the library makes of it. An envelope may reach beyond
// the end of the file.
func (t *transfer) readCuFile(p source.Piece, base driver.Pointer) error {
	f, to := t.f, p.To
	h, err := f.r.cufile.handle(p.File, t.choice.Path)
	if err != nil {
		return err
	}
	need := p.N
	if t.envelope {
		need = min(need, p.File.Length-p.Offset)
	}
	for done := int64(0); done < need; {
		n, err := f.r.cufile.lib.Read(h, base, p.N-done, p.Offset+done, to+done)
		if err != nil {
			return fmt.Errorf("read %s at %d: %w", p.File.Name, p.Offset+done, err)
		}
		if n == 0 {
			return fmt.Errorf("read %s at %d: %w", p.File.Name, p.Offset+done, ErrShort)
		}
		done += n
	}
	return nil
}
