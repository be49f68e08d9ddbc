package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Files of tmpfs are pages of memory. On the mapped path they are mapped, brought by several threads at once, and registered with
// CUDA; then the GPU copies into them. (12 GiB on an H200: write(2) into new pages gave 1.8 GB/s to a file, 3.0 to several, since
// the kernel locks the file.)

// mapping is files that are mapped, in windows that are registered one by one.
type mapping struct {
	w       *Writer
	files   []*output
	windows []window
}

// window is a range of a file. One thread at a time touches it.
type window struct {
	of         *output
	memory     []byte
	registered bool
}

const windowSize = 128 << 20 // a multiple of ChunkSize

// errUnmapped says that pages of files could not be made, or be seen by the GPU, for a reason that is no full disk.
var errUnmapped = errors.New("mapped: pages of the files are not usable")

// newMapping maps files that have been made.
func newMapping(w *Writer, files []*output) (*mapping, error) {
	m := &mapping{w: w, files: files}
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
		_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // where the kernel gives tmpfs some, all of this is quicker
		o.mapped = memory
		for at := int64(0); at < size; at += windowSize {
			m.windows = append(m.windows, window{of: o, memory: memory[at:min(at+windowSize, size)]})
		}
	}
	return m, nil
}

// bring has the pages of all windows made, and registered.
func (m *mapping) bring(ctx context.Context) error {
	return m.each(ctx, func(v *window) error {
		err := unix.Madvise(v.memory, unix.MADV_POPULATE_WRITE)
		switch {
		case errors.Is(err, unix.EFAULT) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC): // where touching a page would be SIGBUS
			return v.of.failed("madvise", unix.ENOSPC)
		case err != nil:
			return fmt.Errorf("%w: %w", errUnmapped, v.of.failed("madvise", err))
		case m.w.device.CUDA == nil:
			return nil
		}
		if err := m.w.device.CUDA.Register(v.memory, driver.HostPortable|driver.HostDeviceMap); err != nil {
			return fmt.Errorf("%w: %w", errUnmapped, err)
		}
		v.registered = true
		return nil
	})
}

// each does something with all windows, on several threads, with the GPU's context.
func (m *mapping) each(ctx context.Context, do func(v *window) error) error {
	return parallel(ctx, m.w.opt.Threads, int64(len(m.windows)), func(i int64) error {
		return m.w.device.Within(func() error { return do(&m.windows[i]) })
	})
}

// close unregisters and unmaps. Nothing may be under way. The page tables are emptied by several threads before: unmapping does it
// on one.
func (m *mapping) close() error {
	var mu sync.Mutex
	var errs []error // guarded by mu
	_ = m.each(context.Background(), func(v *window) (err error) {
		if v.registered {
			v.registered, err = false, m.w.device.CUDA.Unregister(v.memory)
		}
		err = errors.Join(err, unix.Madvise(v.memory, unix.MADV_DONTNEED))
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
		return nil // an error must not keep the rest
	})
	for _, o := range m.files {
		if o.mapped != nil {
			errs = append(errs, unix.Munmap(o.mapped))
			o.mapped = nil
		}
	}
	return errors.Join(errs...)
}
