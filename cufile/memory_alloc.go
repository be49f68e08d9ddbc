package cufile

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hbmfs/hbmfs/internal/driver"
)

// Allocation is memory of a GPU for callers without an allocator of their own. It belongs to nobody: it outlives the
// Reader, whose device it is on.
type Allocation struct {
	cu      *driver.CUDA
	context driver.Handle
	dev     int32
	n       int64

	mu sync.Mutex
	at driver.Pointer // 0 once it is free; guarded by mu
}

// Alloc allocates n bytes on the Reader's GPU.
func (r *Reader) Alloc(n int64) (*Allocation, error) {
	if r.cu == nil || n <= 0 {
		return nil, fmt.Errorf("%w: %d bytes on device %d: only a GPU's memory is allocated, and at least a byte of it", ErrMemory, n, r.opt.Device)
	}
	if !r.gate.Enter() {
		return nil, fmt.Errorf("allocate: %w", ErrClosed)
	}
	defer r.gate.Leave()
	// A reference of its own to the device's context, which goes with the last of them.
	context, err := r.cu.RetainPrimary(r.gpu.Device)
	if err != nil {
		return nil, err
	}
	a := &Allocation{cu: r.cu, context: context, dev: r.gpu.Device, n: n}
	err = a.cu.Within(a.context, func() error {
		a.at, err = a.cu.Alloc(n)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("allocate %d bytes on %s: %w", n, r.gpu.Name, err), a.cu.ReleasePrimary(a.dev))
	}
	return a, nil
}

// Memory is where it is.
func (a *Allocation) Memory() Memory {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Memory{uintptr(a.at), a.n}
}

// CopyTo copies the bytes from offset on into p, and waits.
func (a *Allocation) CopyTo(p []byte, offset int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.at == 0:
		return fmt.Errorf("copy from HBM: %w", ErrClosed)
	case offset < 0 || offset > a.n || int64(len(p)) > a.n-offset:
		return fmt.Errorf("copy %d bytes at %d of %d: %w", len(p), offset, a.n, ErrOutOfRange)
	case len(p) == 0:
		return nil
	}
	return a.cu.Within(a.context, func() error {
		return a.cu.CopyBack(p, a.at+driver.Pointer(offset))
	})
}

// Free gives the memory back. Freeing twice does nothing.
func (a *Allocation) Free() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at == 0 {
		return nil
	}
	at := a.at
	a.at = 0
	return errors.Join(a.cu.Within(a.context, func() error { return a.cu.Free(at) }), a.cu.ReleasePrimary(a.dev))
}
