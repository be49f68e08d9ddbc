package driver

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// CUDA's attributes of a pointer, and a value (cuda.h, CUpointer_attribute and CUmemorytype).
const (
	pointerMemoryType    = 2
	pointerDevice        = 3
	pointerDeviceOrdinal = 9
	pointerRangeStart    = 11
	pointerRangeSize     = 12
	memoryTypeHost       = 1
	memoryTypeDevice     = 2
)

// Allocation is memory of a device that CUDA was asked about, so that it is asked once for many parts of one.
type Allocation struct {
	first, end Pointer
}

// IsOn fails when n bytes from an address on do not begin and end in memory of a device. known is the allocation that was
// found last, about which CUDA is not asked again; nil: there is none.
func (c *CUDA) IsOn(p Pointer, n int64, dev int32, known *Allocation) error {
	if known == nil {
		known = &Allocation{}
	}
	last := p + Pointer(max(n, 1)) - 1
	for _, at := range []Pointer{p, last} {
		if at >= known.first && at < known.end {
			continue
		}
		found, err := c.allocation(at, dev)
		if err != nil {
			return fmt.Errorf("%#x: %w", uint64(at), err)
		}
		*known = found
	}
	return nil
}

// attributes asks for some attributes of the memory that an address lies in.
func (c *CUDA) attributes(p Pointer, names []int32, values ...unsafe.Pointer) error {
	err := c.call(cuPointerGetAttributes, "cuPointerGetAttributes", uintptr(len(names)), uintptr(unsafe.Pointer(&names[0])), uintptr(unsafe.Pointer(&values[0])), uintptr(p))
	runtime.KeepAlive(values)
	return err
}

// allocation gives the memory of a device that an address lies in.
func (c *CUDA) allocation(p Pointer, dev int32) (Allocation, error) {
	var kind uint32
	var ordinal int32
	var start, size Pointer
	names := []int32{pointerMemoryType, pointerDeviceOrdinal, pointerRangeStart, pointerRangeSize}
	err := c.attributes(p, names, unsafe.Pointer(&kind), unsafe.Pointer(&ordinal), unsafe.Pointer(&start), unsafe.Pointer(&size))
	switch {
	case err != nil:
	case kind == 0:
		err = errors.New("CUDA does not know it")
	case kind != memoryTypeDevice:
		err = errors.New("it is memory of the host")
	case ordinal != dev:
		err = fmt.Errorf("it is memory of gpu %d", ordinal)
	}
	return Allocation{start, start + size}, err
}

// Pinned says whether n bytes from an address on begin and end in memory of the host that CUDA has pinned, and that a GPU sees at the same address.
func (c *CUDA) Pinned(p Pointer, n int64) (bool, error) {
	for _, at := range []Pointer{p, p + Pointer(max(n, 1)) - 1} {
		var kind uint32
		var seen Pointer
		err := c.attributes(at, []int32{pointerMemoryType, pointerDevice}, unsafe.Pointer(&kind), unsafe.Pointer(&seen))
		if err != nil || kind != memoryTypeHost || seen != at {
			return false, err
		}
	}
	return true, nil
}

// Within runs f on the calling thread with a context, and leaves the thread as it was. It may be one of the caller's,
// with a context of its own.
func (c *CUDA) Within(context Handle, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.call(cuCtxPushCurrent, "cuCtxPushCurrent", uintptr(context)); err != nil {
		return err
	}
	err := f()
	var popped Handle
	return errors.Join(err, c.call(cuCtxPopCurrent, "cuCtxPopCurrent", uintptr(unsafe.Pointer(&popped))))
}

// StreamWait has the next work of a stream wait for an event of another.
func (c *CUDA) StreamWait(stream, event Handle) error {
	return c.call(cuStreamWaitEvent, "cuStreamWaitEvent", uintptr(stream), uintptr(event), 0)
}

// CopyWithin starts a copy inside HBM.
func (c *CUDA) CopyWithin(to, from Pointer, n int64, stream Handle) error {
	return c.call(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync", uintptr(to), uintptr(from), uintptr(n), uintptr(stream))
}

// CopyBack copies HBM to any memory of the host and waits.
func (c *CUDA) CopyBack(to []byte, from Pointer) error {
	return c.call(cuMemcpyDtoH, "cuMemcpyDtoH", uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(from), uintptr(len(to)))
}
