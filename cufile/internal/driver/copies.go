package driver

import (
	"errors"
	"unsafe"
)

// Copies is a list of copies that begin together. The zero value is empty.
type Copies struct {
	to, from []Pointer
	bytes    []uint64
}

// Add appends a copy. An address of the host is that of registered memory.
func (l *Copies) Add(to, from Pointer, n int64) {
	l.to, l.from, l.bytes = append(l.to, to), append(l.from, from), append(l.bytes, uint64(n))
}

// Len is how many copies the list has.
func (l *Copies) Len() int { return len(l.bytes) }

// Address is the address of registered memory as Copies takes it.
func Address(memory []byte) Pointer {
	return Pointer(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
}

// SmallPieces gives the average bytes of pieces below which one launch of the gather kernel moves them faster than CopyAll does.
//
// Measured on an H200, PCIe 5, GB/s to HBM of pieces of 32, 64 and 256 KiB: by the kernel 44, 48 and 49; by CopyAll with
// cuMemcpyBatchAsync 42, 54 and 55, without it 9, 15 and 33. Both directions at once: 64 to 71, 83 to 98, 15 to 53.
func (c *CUDA) SmallPieces() int64 {
	switch {
	case !c.lib.has(cuLaunchKernel):
		return 0
	case c.batches():
		return 64 << 10
	}
	return 256 << 10
}

// batches says whether the driver begins many copies by one call.
func (c *CUDA) batches() bool {
	return !c.unbatched.Load() && (c.lib.has(cuMemcpyBatchAsync) || c.lib.has(cuMemcpyBatchAsyncOld))
}

// CopyAll starts copies on a stream, which is not the default one: all to HBM (in), or all from it.
func (c *CUDA) CopyAll(l *Copies, in bool, stream Handle) error {
	if l.Len() > 1 && c.batches() {
		err := c.copyBatch(l, stream)
		var failure *CUDAError
		if !errors.As(err, &failure) || failure.Code != cudaNotSupported {
			return err
		}
		c.unbatched.Store(true)
	}
	call, name := cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync"
	if in {
		call, name = cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync"
	}
	for i, n := range l.bytes {
		if err := c.call(call, name, uintptr(l.to[i]), uintptr(l.from[i]), uintptr(n), uintptr(stream)); err != nil {
			return err
		}
	}
	return nil
}

// copyBatch is cuMemcpyBatchAsync of CUDA 13, or of 12.8, which also says which copy failed.
func (c *CUDA) copyBatch(l *Copies, stream Handle) error {
	const inOrderOfTheStream = 1
	attributes := [6]uint32{inOrderOfTheStream} // CUmemcpyAttributes: the order of the sources' reads, hints of where they lie, flags
	first, failed := uint64(0), uint64(0)       // the copies from first on have the attributes
	to, from, bytes := unsafe.Pointer(&l.to[0]), unsafe.Pointer(&l.from[0]), unsafe.Pointer(&l.bytes[0])
	if c.lib.has(cuMemcpyBatchAsync) {
		return c.call(cuMemcpyBatchAsync, "cuMemcpyBatchAsync", uintptr(to), uintptr(from), uintptr(bytes), uintptr(l.Len()),
			uintptr(unsafe.Pointer(&attributes)), uintptr(unsafe.Pointer(&first)), 1, uintptr(stream))
	}
	return c.call(cuMemcpyBatchAsyncOld, "cuMemcpyBatchAsync", uintptr(to), uintptr(from), uintptr(bytes), uintptr(l.Len()),
		uintptr(unsafe.Pointer(&attributes)), uintptr(unsafe.Pointer(&first)), 1, uintptr(unsafe.Pointer(&failed)), uintptr(stream))
}
