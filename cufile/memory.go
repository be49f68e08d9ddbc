package cufile

import (
	"fmt"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Target says where a request's bytes go, and how. Bytes that stay as they are may also go from a GPU's Reader of the path [Auto] or [Mapped] to memory
// of the host that CUDA has pinned. The GPU writes them there if the files are registered, and threads read them otherwise.
type Target struct {
	Memory

	// Stream is a CUstream of the caller. Its work up to the call of Begin is done before anything is written, so that the
	// GPU may still use the memory. nil is none; the stream 0 is CUDA's default one. Ignored on the host.
	Stream *uintptr

	Widen Widen

	// Targets, if it is not zero, is for a second output of a [Batch] of equal rows. Memory gets all elements of a row but the last one,
	// Targets all but the first. So a row of Length elements takes Length-1 in each.
	Targets Memory
}

// memory makes a destination of memory of the caller.
func (r *Reader) memory(m Memory) crew.Destination {
	d := crew.Destination{HBM: driver.Pointer(m.Pointer)}
	if r.device.CUDA == nil && m.CanBe() {
		d.Host = hostBytes(m)
	}
	return d
}

// hostBytes is memory that Go does not know, and which the caller keeps until the request has ended.
func hostBytes(m Memory) []byte { return unsafe.Slice(*(**byte)(unsafe.Pointer(&m.Pointer)), m.Length) }

// destination says where and how elements of so many bytes are written, those of rows of so many if there is a second output. Elements of 0 bytes are those
// that are widened. It refuses impossible values.
func (r *Reader) destination(to *Target, element, row int64) (crew.Destination, error) {
	d := r.memory(to.Memory)
	form, err := to.Widen.form()
	switch {
	case err != nil:
		return d, err
	case to.Length < 0:
		return d, fmt.Errorf("%w: it cannot have %d bytes", ErrMemory, to.Length)
	case form != nil && element != 0 && form.From != element:
		return d, fmt.Errorf("%w: elements of %d bytes are widened as if they had %d", ErrMemory, element, form.From)
	case form == nil && to.Targets == (Memory{}):
		return d, nil
	case form == nil:
		form = &crew.Form{From: element, Size: element}
	}
	if to.Targets != (Memory{}) {
		if form.Row = row; row < 1 || element > 8 || element&(element-1) != 0 {
			return d, fmt.Errorf("%w: rows of %d elements of %d bytes have no targets", ErrMemory, row, element)
		}
		form.Beside = r.memory(to.Targets)
	}
	if (to.Pointer|to.Targets.Pointer)%uintptr(form.Size) != 0 {
		return d, fmt.Errorf("%w: elements of %d bytes need memory aligned to them", ErrMemory, form.Size)
	}
	d.Form = form
	return d, nil
}

// aim is the destination of n spans of length bytes. It refuses memory that cannot hold them.
func (f *File) aim(to *Target, n, length int64) (crew.Destination, error) {
	d, err := f.r.destination(to, 0, 0)
	if err != nil {
		return d, err
	}
	times := int64(1)
	if d.Form != nil {
		times = d.Form.Size / d.Form.From
	}
	switch {
	case d.Form != nil && length%d.Form.From != 0:
		return d, fmt.Errorf("%w: %d bytes are not whole elements of %d to widen", ErrMemory, length, d.Form.From)
	case length == 0 || n == 0:
		return d, nil
	case n > to.Length/times/length:
		return d, fmt.Errorf("%w: %d spans of %d bytes, each %d times as long there, do not fit into %d", ErrMemory, n, length, times, to.Length)
	}
	err = f.r.checkOutput(&d, Memory{Pointer: to.Pointer, Length: n * length * times})
	return d, err
}

// checkMemory refuses memory of the caller that is not there. The thread has the device's context.
func (r *Reader) checkMemory(m Memory) error {
	if err := r.device.Has(m, nil); err != nil {
		return fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return nil
}

// checkOutput is checkMemory for a destination, which may also be pinned memory of the host.
func (r *Reader) checkOutput(d *crew.Destination, m Memory) error {
	cu, path, err := r.device.CUDA, r.opt.Path, r.checkMemory(m)
	if err == nil || cu == nil || d.Form != nil || path != Auto && path != Mapped || !m.CanBe() {
		return err
	}
	if pinned, unknown := cu.Pinned(d.HBM, m.Length); unknown != nil || !pinned {
		return err
	}
	d.Host = hostBytes(m)
	if _, err := r.device.Kernels.Load(cu, driver.GatherKernel); err != nil {
		d.HBM = 0 // only the kernel writes there
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
