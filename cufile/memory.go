package cufile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
)

// Memory is memory of the caller on the Reader's device: of another allocator on the GPU, such as torch's, or of the
// host. Pointer is an address at any alignment, Length the room there.
type Memory struct {
	Pointer uintptr
	Length  int64
}

// Target says where a request's bytes go, and how.
type Target struct {
	Memory

	// Stream is a CUstream of the caller. Its work up to the call of Begin is done before anything is written, so that the
	// GPU may still use the memory. nil is none; the stream 0 is CUDA's default one. Ignored on the host.
	Stream *uintptr

	Widen Widen
}

// ErrMemory says that memory of the caller cannot be written to as was asked.
var ErrMemory = errors.New("not usable as the destination")

// destination makes one of n bytes of the caller's memory. after is what mark gave.
func (r *Reader) destination(at uintptr, n int64, after driver.Handle) crew.Destination {
	d := crew.Destination{HBM: driver.Pointer(at), After: after}
	if r.cu == nil && (Memory{at, n}).canBe() { // memory that Go does not know, and which the caller keeps until the request has ended
		d.Host = unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)
	}
	return d
}

// check refuses a request that cannot be, before anything is written.
func (f *File) check(to *Target, offsets []int64, length int64) error {
	if err := f.inside(offsets, length); err != nil {
		return err
	}
	element, times, err := to.Widen.sizes()
	switch {
	case err != nil:
		return err
	case length%element != 0:
		return fmt.Errorf("read %s: %w: %d bytes are not whole elements of %d to widen", f.name, ErrMemory, length, element)
	case times > 1 && to.Pointer%widened != 0:
		return fmt.Errorf("read %s: %w: widened elements need memory aligned to %d", f.name, ErrMemory, widened)
	case length == 0 || len(offsets) == 0:
		return nil
	case to.Length < 0 || int64(len(offsets)) > to.Length/times/length:
		return fmt.Errorf("read %s: %w: %d spans of %d bytes, each %d times as long there, do not fit into %d", f.name, ErrMemory, len(offsets), length, times, to.Length)
	}
	return f.r.checkMemory(Memory{to.Pointer, int64(len(offsets)) * length * times})
}

// firstPage is where nobody has memory. Go's runtime ends a process that has a pointer there.
const firstPage = 4096

// canBe says whether there can be memory, of a length that is not negative.
func (m Memory) canBe() bool {
	return m.Pointer >= firstPage && m.Pointer <= math.MaxInt64-uintptr(m.Length)
}

// onFault gives a function to defer: an address without memory must not end the process.
func onFault(err *error) func() {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		if fault := recover(); fault != nil {
			*err = fmt.Errorf("%w: %v", ErrMemory, fault)
		}
	}
}

// checkMemory refuses memory of the caller that is not there: a wrong address would end the process, or the GPU's context. CUDA
// knows its own; the thread has the context then.
func (r *Reader) checkMemory(m Memory) error {
	if !m.canBe() {
		return fmt.Errorf("%w: %d bytes at the address %#x cannot be", ErrMemory, m.Length, m.Pointer)
	}
	if r.cu == nil {
		return nil
	}
	if err := r.cu.IsOn(driver.Pointer(m.Pointer), m.Length, r.gpu.Device, nil); err != nil {
		return fmt.Errorf("%w: %d bytes are no memory of %s (gpu %d): %w", ErrMemory, m.Length, r.gpu.Name, r.gpu.Index, err)
	}
	return nil
}

// within runs f on a thread that has the device's context.
func (r *Reader) within(f func() error) error {
	if r.cu == nil {
		return f()
	}
	return r.cu.Within(r.context, f)
}

// mark makes an event of the work that is on the caller's stream now; 0 where there is nothing to wait for. The thread has the
// context.
func (r *Reader) mark(to *Target) (event driver.Handle, err error) {
	if r.cu == nil || to.Stream == nil {
		return 0, nil
	}
	r.mu.Lock()
	if last := len(r.marks) - 1; last >= 0 {
		event, r.marks = r.marks[last], r.marks[:last]
	}
	r.mu.Unlock()
	if event == 0 {
		if event, err = r.cu.NewEvent(); err != nil {
			return 0, err
		}
	}
	if err := r.cu.Record(event, driver.Handle(*to.Stream)); err != nil {
		return 0, errors.Join(fmt.Errorf("mark the caller's stream: %w", err), r.cu.DestroyEvent(event))
	}
	return event, nil
}

// unmark keeps an event for another request. The streams that were told to wait for it still wait for what it was.
func (r *Reader) unmark(event driver.Handle) {
	if event == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks = append(r.marks, event)
}

// Widen converts elements on the device, after they have crossed the link.
type Widen int

// The widenings. Elements are unsigned and little-endian.
const (
	WidenNone     Widen = iota
	WidenU16ToI64       // each 2 bytes become 8
	WidenU32ToI64       // each 4 bytes become 8
)

// widened is the size of a widened element.
const widened = 8

// sizes gives the bytes of an element, and how many times as long it becomes.
func (w Widen) sizes() (element, times int64, err error) {
	switch w {
	case WidenNone:
		return 1, 1, nil
	case WidenU16ToI64:
		return 2, widened / 2, nil
	case WidenU32ToI64:
		return 4, widened / 4, nil
	}
	return 0, 0, fmt.Errorf("%w: there is no widening %d", ErrMemory, int(w))
}

// copy widens from into to, on the host.
func (w Widen) copy(to, from []byte) {
	switch w {
	case WidenU16ToI64:
		for i := 0; i+2 <= len(from); i += 2 {
			binary.NativeEndian.PutUint64(to[widened/2*i:], uint64(binary.LittleEndian.Uint16(from[i:])))
		}
	case WidenU32ToI64:
		for i := 0; i+4 <= len(from); i += 4 {
			binary.NativeEndian.PutUint64(to[widened/4*i:], uint64(binary.LittleEndian.Uint32(from[i:])))
		}
	default:
		copy(to, from)
	}
}

// launchWiden starts the kernel on n bytes of HBM, see widen.cu.
func launchWiden(w *crew.Worker, k *driver.Kernel, kind Widen, from, to driver.Pointer, n int64) error {
	element, _, err := kind.sizes()
	if err != nil {
		return err
	}
	fn, err := k.Load(w.CUDA, driver.WidenKernel)
	if err != nil {
		return err
	}
	return w.CUDA.LaunchWiden(fn, from, to, uint64(n/element), uint32(element), w.Stream)
}

// Allocation is memory of a GPU for callers without an allocator of their own. It outlives the
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
