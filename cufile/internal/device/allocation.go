package device

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// ErrOutOfRange says that a file, or memory, does not have the bytes that were asked for.
var ErrOutOfRange = errors.New("out of range")

// Allocation is memory of a GPU for callers without an allocator of their own. It outlives the reader that opened its
// device.
type Allocation struct {
	device *Device // a reference of its own
	n      int64

	mu sync.Mutex
	at driver.Pointer // 0 once it is free; guarded by mu
}

// Alloc allocates n bytes on a GPU.
func (d *Device) Alloc(n int64) (*Allocation, error) {
	own, err := retain(d.CUDA, d.GPU) // it goes with the last of them
	if err != nil {
		return nil, err
	}
	a := &Allocation{device: own, n: n}
	if err := own.Within(func() (err error) { a.at, err = own.CUDA.Alloc(n); return err }); err != nil {
		return nil, errors.Join(fmt.Errorf("allocate %d bytes on %s: %w", n, d.GPU.Name, err), own.Close())
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
		return fmt.Errorf("copy from HBM: %w", crew.ErrClosed)
	case offset < 0 || offset > a.n || int64(len(p)) > a.n-offset:
		return fmt.Errorf("copy %d bytes at %d of %d: %w", len(p), offset, a.n, ErrOutOfRange)
	case len(p) == 0:
		return nil
	}
	return a.device.Within(func() error { return a.device.CUDA.CopyBack(p, a.at+driver.Pointer(offset)) })
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
	return errors.Join(a.device.Within(func() error { return a.device.CUDA.Free(at) }), a.device.Close())
}
