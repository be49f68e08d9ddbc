package writer

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/driver"
)

// Memory is consecutive bytes: Host, or N bytes of the Writer's GPU at HBM.
type Memory struct {
	Host []byte
	HBM  uintptr
	N    int64 // counts where Host is nil
}

// HostMemory is n bytes at an address of the host that Go does not know.
func HostMemory(at uintptr, n int64) Memory {
	if n <= 0 {
		return Memory{N: n}
	}
	return Memory{Host: unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)}
}

func (m *Memory) size() int64 {
	if m.Host != nil {
		return int64(len(m.Host))
	}
	return m.N
}

// from gives n of its bytes, from skip on.
func (m *Memory) from(skip, n int64) Memory {
	if m.Host != nil {
		return Memory{Host: m.Host[skip : skip+n]}
	}
	return Memory{HBM: m.HBM + uintptr(skip), N: n}
}

// onPage says whether a page begins where it does.
func (m *Memory) onPage() bool {
	if m.Host != nil {
		return uintptr(unsafe.Pointer(unsafe.SliceData(m.Host)))%driver.PageSize == 0
	}
	return m.HBM%driver.PageSize == 0
}

// ErrMemory says that memory cannot be read as was asked.
var ErrMemory = errors.New("not usable as memory to be written")

// check asks CUDA about memory of the GPU: a wrong address would end its context.
func (w *Writer) check(m *Memory, known *driver.Allocation) error {
	switch {
	case m.Host != nil || m.N == 0:
		return nil
	case m.N < 0 || m.HBM == 0 || m.HBM > math.MaxInt64-uintptr(m.N):
		return fmt.Errorf("%w: %d bytes at the address %#x cannot be", ErrMemory, m.N, m.HBM)
	case w.cu == nil:
		return fmt.Errorf("%w: %#x is said to be memory of a GPU, and the writer's device is the host", ErrMemory, m.HBM)
	}
	if err := w.cu.IsOn(driver.Pointer(m.HBM), m.N, w.gpu.Device, known); err != nil {
		return fmt.Errorf("%w: %d bytes are no memory of %s (gpu %d): %w", ErrMemory, m.N, w.gpu.Name, w.gpu.Index, err)
	}
	return nil
}

// checkAll checks many, with the GPU's context.
func (w *Writer) checkAll(list func(yield func(*Memory) bool)) (err error) {
	return w.within(func() error {
		var known driver.Allocation
		for m := range list {
			if err := w.check(m, &known); err != nil {
				return err
			}
		}
		return nil
	})
}

// within runs f on the calling thread with the GPU's context, if there is a GPU.
func (w *Writer) within(f func() error) error {
	if w.cu == nil {
		return f()
	}
	return w.cu.Within(w.context, f)
}

// mark makes an event of the work that is on the caller's stream now; 0 where there is nothing to wait for.
func (w *Writer) mark(stream *uintptr) (event driver.Handle, err error) {
	if w.cu == nil || stream == nil {
		return 0, nil
	}
	err = w.cu.Within(w.context, func() error {
		if event, err = w.cu.NewEvent(); err != nil {
			return err
		}
		if err := w.cu.Record(event, driver.Handle(*stream)); err != nil {
			return errors.Join(fmt.Errorf("mark the caller's stream: %w", err), w.cu.DestroyEvent(event))
		}
		return nil
	})
	return event, err
}

func (w *Writer) unmark(event driver.Handle) error {
	if event == 0 {
		return nil
	}
	return w.cu.Within(w.context, func() error { return w.cu.DestroyEvent(event) })
}
