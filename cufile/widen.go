package cufile

import (
	"encoding/binary"
	"fmt"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
)

// Widen is what becomes of elements on the device, after they have crossed the link.
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
