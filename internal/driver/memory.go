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
	pointerDeviceOrdinal = 9
	memoryTypeDevice     = 2
)

// IsOn fails when an address is not memory of a device.
func (c *CUDA) IsOn(p Pointer, dev int32) error {
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

// Within runs f on the calling thread with a context, and leaves the thread as it was: it may be one of the caller's,
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
