package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
)

// Files of tmpfs are pages of memory. On the mapped path they are mapped, brought by all workers at once, and registered with
// CUDA; then the GPU copies into them. (12 GiB on an H200: write(2) into new pages gave 1.8 GB/s to a file, 3.0 to several, since
// the kernel locks the file.)

// mapping is files that are mapped, in windows that are registered one by one.
type mapping struct {
	cu      *driver.CUDA // nil for the host, where nothing is registered
	context driver.Handle
	files   []*output
	windows []window

	mu         sync.Mutex // guards what follows
	registered [][]byte
}

// window is a range of a file.
type window struct {
	of     *output
	memory []byte
}

const windowSize = 128 << 20 // a multiple of ChunkSize

// errUnmapped says that pages of files could not be made, or be seen by the GPU, for a reason that is no full disk.
var errUnmapped = errors.New("mapped: pages of the files are not usable")

// newMapping maps files that have been made.
func newMapping(w *Writer, files []*output) (*mapping, error) {
	m := &mapping{cu: w.cu, context: w.context, files: files}
	for _, o := range files {
		if o.size == 0 {
			continue
		}
		if err := unix.Ftruncate(o.fd, o.size); err != nil {
			return nil, errors.Join(o.failed("ftruncate", err), m.close())
		}
		size := driver.RoundUp(o.size, driver.PageSize)
		memory, err := unix.Mmap(o.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", errUnmapped, o.failed("mmap", err)), m.close())
		}
		o.mapped = memory
		for at := int64(0); at < size; at += windowSize {
			m.windows = append(m.windows, window{o, memory[at:min(at+windowSize, size)]})
		}
	}
	return m, nil
}

// bring has the pages of all windows made, and registered.
func (m *mapping) bring(ctx context.Context, w *Writer) error {
	finished, err := w.crew.Run(ctx, w.opt.Threads, int64(len(m.windows)), func(_ *crew.Worker, i int64) error {
		v := &m.windows[i]
		err := unix.Madvise(v.memory, unix.MADV_POPULATE_WRITE)
		switch {
		case errors.Is(err, unix.EFAULT) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC): // where touching a page would be SIGBUS
			return v.of.failed("madvise", unix.ENOSPC)
		case err != nil:
			return fmt.Errorf("%w: %w", errUnmapped, v.of.failed("madvise", err))
		case m.cu == nil:
			return nil
		}
		if err := m.cu.Register(v.memory, driver.HostPortable|driver.HostDeviceMap); err != nil {
			return fmt.Errorf("%w: %w", errUnmapped, err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.registered = append(m.registered, v.memory)
		return nil
	})
	w.quiet(finished)
	return err
}

// close unregisters and unmaps. Nothing may be under way.
func (m *mapping) close() error {
	var errs []error
	if len(m.registered) > 0 {
		errs = append(errs, m.cu.Within(m.context, func() error {
			for _, memory := range m.registered {
				errs = append(errs, m.cu.Unregister(memory))
			}
			return nil
		}))
	}
	for _, o := range m.files {
		if o.mapped != nil {
			errs = append(errs, unix.Munmap(o.mapped))
			o.mapped = nil
		}
	}
	return errors.Join(errs...)
}
