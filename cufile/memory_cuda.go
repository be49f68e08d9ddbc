package cufile

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// CUDA's attributes of a pointer, and a value (cuda.h, CUpointer_attribute and CUmemorytype).
const (
	pointerMemoryType    = 2
	pointerDeviceOrdinal = 9
	memoryTypeDevice     = 2
)

// isOn fails when an address is not memory of a device.
func (c *cuda) isOn(p devicePointer, dev int32) error {
	var kind uint32
	if err := c.call(cuPointerGetAttribute, "cuPointerGetAttribute", uintptr(unsafe.Pointer(&kind)), pointerMemoryType, uintptr(p)); err != nil {
		return err
	}
	if kind != memoryTypeDevice {
		return errors.New("it is memory of the host")
	}
	var ordinal int32
	if err := c.call(cuPointerGetAttribute, "cuPointerGetAttribute", uintptr(unsafe.Pointer(&ordinal)), pointerDeviceOrdinal, uintptr(p)); err != nil {
		return err
	}
	if ordinal != dev {
		return fmt.Errorf("it is memory of gpu %d", ordinal)
	}
	return nil
}

// within runs f on the calling thread with a context, and leaves the thread as it was: it may be one of the caller's,
// with a context of its own.
func (c *cuda) within(context handle, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.call(cuCtxPushCurrent, "cuCtxPushCurrent", uintptr(context)); err != nil {
		return err
	}
	err := f()
	var popped handle
	return errors.Join(err, c.call(cuCtxPopCurrent, "cuCtxPopCurrent", uintptr(unsafe.Pointer(&popped))))
}

// streamWait lets what comes on a stream wait for an event of another.
func (c *cuda) streamWait(stream, event handle) error {
	return c.call(cuStreamWaitEvent, "cuStreamWaitEvent", uintptr(stream), uintptr(event), 0)
}

// copyWithin starts a copy inside HBM.
func (c *cuda) copyWithin(to, from devicePointer, n int64, stream handle) error {
	return c.call(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync", uintptr(to), uintptr(from), uintptr(n), uintptr(stream))
}

// copyBack copies HBM to any memory of the host and waits.
func (c *cuda) copyBack(to []byte, from devicePointer) error {
	return c.call(cuMemcpyDtoH, "cuMemcpyDtoH", uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(from), uintptr(len(to)))
}
