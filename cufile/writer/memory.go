package writer

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Memory is consecutive bytes of the host, or of the Writer's GPU.
type Memory = device.Bytes

// HostMemory is n bytes at an address of the host that Go does not know.
func HostMemory(at uintptr, n int64) Memory { return device.OfHost(at, n) }

// onPage says whether a page begins where memory does.
func onPage(m *Memory) bool {
	if m.Host != nil {
		return uintptr(unsafe.Pointer(unsafe.SliceData(m.Host)))%driver.PageSize == 0
	}
	return m.HBM%driver.PageSize == 0
}

// ErrMemory says that memory cannot be read as was asked.
var ErrMemory = errors.New("not usable as memory to be written")

// checkAll asks CUDA about memory of the GPU: a wrong address would end its context.
func (w *Writer) checkAll(list func(yield func(*Memory) bool)) error {
	return w.device.Within(func() error {
		var known driver.Allocation
		for m := range list {
			if err := w.device.HasBytes(m, &known); err != nil {
				return fmt.Errorf("%w: %w", ErrMemory, err)
			}
		}
		return nil
	})
}
