package cufile

import (
	"fmt"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Target says where a request's bytes go, and how.
type Target struct {
	Memory

	// Stream is a CUstream of the caller. Its work up to the call of Begin is done before anything is written, so that the
	// GPU may still use the memory. nil is none; the stream 0 is CUDA's default one. Ignored on the host.
	Stream *uintptr

	Widen Widen

	// Targets, if it is not zero, is for a second output of a [Batch] of equal rows: Memory gets all elements of a row but the last one,
	// Targets all but the first. So a row of Length elements takes Length-1 in each.
	Targets Memory
}

// destination makes one of n bytes of the caller's memory. after is what [device.Device.Mark] gave.
func (r *Reader) destination(at uintptr, n int64, after driver.Handle) crew.Destination {
	d := crew.Destination{HBM: driver.Pointer(at), After: after}
	if r.device.CUDA == nil && (Memory{Pointer: at, Length: n}).CanBe() { // memory that Go does not know, and which the caller keeps until the request has ended
		d.Host = unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)
	}
	return d
}

// form gives how elements of so many bytes are written, those of rows of so many if there is a second output; nil: as they are. It refuses
// what cannot be.
func (r *Reader) form(to *Target, element, row int64, after driver.Handle) (*crew.Form, error) {
	form, err := to.Widen.Form()
	switch {
	case err != nil:
		return nil, err
	case form != nil && form.From != element:
		return nil, fmt.Errorf("%w: elements of %d bytes are widened as if they had %d", ErrMemory, element, form.From)
	case form == nil && to.Targets == (Memory{}):
		return nil, nil
	case form == nil:
		form = &crew.Form{From: element, Size: element}
	}
	if to.Targets != (Memory{}) {
		if form.Row = row; row < 1 || element > 8 || element&(element-1) != 0 {
			return nil, fmt.Errorf("%w: rows of %d elements of %d bytes have no targets", ErrMemory, row, element)
		}
		form.Beside = r.destination(to.Targets.Pointer, to.Targets.Length, after)
	}
	if (to.Pointer|to.Targets.Pointer)%uintptr(form.Size) != 0 {
		return nil, fmt.Errorf("%w: elements of %d bytes need memory aligned to them", ErrMemory, form.Size)
	}
	return form, nil
}

// check refuses a request that cannot be, before anything is written.
func (f *File) check(to *Target, offsets []int64, length int64) error {
	if err := f.inside(offsets, length); err != nil {
		return err
	}
	form, err := to.Widen.Form()
	if err != nil {
		return err
	}
	times := int64(1)
	if form != nil {
		times = form.Size / form.From
		if _, err := f.r.form(to, form.From, 0, 0); err != nil {
			return fmt.Errorf("read %s: %w", f.name, err)
		}
	}
	switch {
	case form != nil && length%form.From != 0:
		return fmt.Errorf("read %s: %w: %d bytes are not whole elements of %d to widen", f.name, ErrMemory, length, form.From)
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
