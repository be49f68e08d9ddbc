package device

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Memory is memory of the caller on a device: of another allocator on the GPU, such as torch's, or of the
// host. Pointer is an address at any alignment, Length the room there.
type Memory struct {
	Pointer uintptr
	Length  int64
}

// firstPage is where nobody has memory. Go's runtime ends a process that has a pointer there.
const firstPage = 4096

// CanBe says whether there can be memory, by its address alone.
func (m Memory) CanBe() bool {
	return m.Length >= 0 && m.Pointer >= firstPage && m.Pointer <= math.MaxInt64-uintptr(m.Length)
}

// Has fails where memory is not there. CUDA knows its own, and is asked on a thread that has the context. On the host the address alone is
// looked at. known is that of [driver.CUDA.IsOn].
func (d *Device) Has(m Memory, known *driver.Allocation) error {
	if !m.CanBe() {
		return fmt.Errorf("%d bytes at the address %#x cannot be", m.Length, m.Pointer)
	}
	if d.CUDA == nil {
		return nil
	}
	if err := d.CUDA.IsOn(driver.Pointer(m.Pointer), m.Length, d.GPU.Device, known); err != nil {
		return fmt.Errorf("%d bytes are no memory of %s (gpu %d): %w", m.Length, d.GPU.Name, d.GPU.Index, err)
	}
	return nil
}

// Bytes are consecutive bytes of either side: Host, or N bytes of the GPU at HBM.
type Bytes struct {
	Host []byte
	HBM  uintptr
	N    int64 // counts where Host is nil
}

// OfHost is n bytes at an address of the host that Go does not know.
func OfHost(at uintptr, n int64) Bytes {
	if n <= 0 {
		return Bytes{N: n}
	}
	return Bytes{Host: unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)}
}

// Size is the number of bytes.
func (b *Bytes) Size() int64 {
	if b.Host != nil {
		return int64(len(b.Host))
	}
	return b.N
}

// Part gives n of the bytes, from skip on.
func (b *Bytes) Part(skip, n int64) Bytes {
	if b.Host != nil {
		return Bytes{Host: b.Host[skip : skip+n]}
	}
	return Bytes{HBM: b.HBM + uintptr(skip), N: n}
}

// HasBytes is Has for those that are said to be of the GPU.
func (d *Device) HasBytes(b *Bytes, known *driver.Allocation) error {
	if b.Host != nil || b.N == 0 {
		return nil
	}
	if d.CUDA == nil {
		return fmt.Errorf("%d bytes at %#x are said to be memory of a GPU, and the device is the host", b.N, b.HBM)
	}
	return d.Has(Memory{b.HBM, b.N}, known)
}
