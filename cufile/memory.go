package cufile

import (
	"fmt"
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/widen"
)

// Target says where a request's bytes go, and how.
type Target struct {
	Memory

	// Stream is a CUstream of the caller. Its work up to the call of Begin is done before anything is written, so that the
	// GPU may still use the memory. nil is none; the stream 0 is CUDA's default one. Ignored on the host.
	Stream *uintptr

	Widen Widen
}

// destination makes one of n bytes of the caller's memory. after is what [device.Device.Mark] gave.
func (r *Reader) destination(at uintptr, n int64, after driver.Handle) crew.Destination {
	d := crew.Destination{HBM: driver.Pointer(at), After: after}
	if r.device.CUDA == nil && (Memory{Pointer: at, Length: n}).CanBe() { // memory that Go does not know, and which the caller keeps until the request has ended
		d.Host = unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)
	}
	return d
}

// check refuses a request that cannot be, before anything is written.
func (f *File) check(to *Target, offsets []int64, length int64) error {
	if err := f.inside(offsets, length); err != nil {
		return err
	}
	element, times, err := to.Widen.Sizes()
	switch {
	case err != nil:
		return err
	case length%element != 0:
		return fmt.Errorf("read %s: %w: %d bytes are not whole elements of %d to widen", f.name, ErrMemory, length, element)
	case times > 1 && to.Pointer%widen.Size != 0:
		return fmt.Errorf("read %s: %w: widened elements need memory aligned to %d", f.name, ErrMemory, widen.Size)
	case length == 0 || len(offsets) == 0:
		return nil
	case to.Length < 0 || int64(len(offsets)) > to.Length/times/length:
		return fmt.Errorf("read %s: %w: %d spans of %d bytes, each %d times as long there, do not fit into %d", f.name, ErrMemory, len(offsets), length, times, to.Length)
	}
	return f.r.checkMemory(Memory{Pointer: to.Pointer, Length: int64(len(offsets)) * length * times})
}

// checkMemory refuses memory of the caller that is not there. The thread has the device's context.
func (r *Reader) checkMemory(m Memory) error {
	if err := r.device.Has(m, nil); err != nil {
		return fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return nil
}

// Alloc allocates n bytes on the Reader's GPU.
func (r *Reader) Alloc(n int64) (*Allocation, error) {
	if r.device.CUDA == nil || n <= 0 {
		return nil, fmt.Errorf("%w: %d bytes on device %d: only a GPU's memory is allocated, and at least a byte of it", ErrMemory, n, r.opt.Device)
	}
	if !r.gate.Enter() {
		return nil, fmt.Errorf("allocate: %w", ErrClosed)
	}
	defer r.gate.Leave()
	return r.device.Alloc(n)
}
