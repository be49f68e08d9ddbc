// Package device is a GPU as a reader, a writer or a store has it, or the host. It has the context, looks at memory of callers there, and
// puts marks on their streams.
//
//	d, err := device.Open(0, libraries)
//	err = d.Within(func() error { return d.Has(memory, nil) })
//	err = d.Close() // after all that uses the context
//
// Pitfalls. A wrong address ends the process, or the GPU's context, so memory of callers is looked at before it is used. Contexts
// belong to threads: most calls need [Device.Within], or a thread of a crew.
package device

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Host is the index of the host.
const Host = -1

// Device is one GPU, by a reference to its primary context, or the host. The zero value is the host.
type Device struct {
	CUDA    *driver.CUDA  // nil for the host
	Context driver.Handle // 0 for the host
	GPU     driver.GPU    // zero for the host
	Kernels driver.Kernels

	mu    sync.Mutex
	marks []driver.Handle // events that no request uses; guarded by mu
}

// Open gives the GPU with a CUDA index, or the host.
func Open(index int, l driver.Libraries) (*Device, error) {
	if index == Host {
		return &Device{}, nil
	}
	cu, err := driver.LoadCUDA(l.CUDA)
	if err != nil {
		return nil, err
	}
	gpu, err := driver.Describe(cu, l, index)
	if err != nil {
		return nil, err
	}
	return retain(cu, gpu)
}

func retain(cu *driver.CUDA, gpu driver.GPU) (*Device, error) {
	context, err := cu.RetainPrimary(gpu.Device)
	if err != nil {
		return nil, err
	}
	return &Device{CUDA: cu, Context: context, GPU: gpu}, nil
}

// Within runs f on a thread that has the context.
func (d *Device) Within(f func() error) error {
	if d.CUDA == nil {
		return f()
	}
	return d.CUDA.Within(d.Context, f)
}

// Mark makes an event of the work that is on a stream now, once check has given no error, on a thread that has the context. It gives 0 on the host, or
// where stream is nil: there is nothing to wait for. A nil check is none.
func (d *Device) Mark(stream *uintptr, check func() error) (event driver.Handle, err error) {
	if check == nil {
		check = func() error { return nil }
	}
	if d.CUDA == nil || stream == nil {
		return 0, d.Within(check)
	}
	d.mu.Lock()
	if last := len(d.marks) - 1; last >= 0 {
		event, d.marks = d.marks[last], d.marks[:last]
	}
	d.mu.Unlock()
	err = d.Within(func() error {
		if err := check(); err != nil {
			d.Unmark(event)
			return err
		}
		if event == 0 {
			if event, err = d.CUDA.NewEvent(); err != nil {
				return err
			}
		}
		if err := d.CUDA.Record(event, driver.Handle(*stream)); err != nil {
			return errors.Join(fmt.Errorf("mark the caller's stream: %w", err), d.CUDA.DestroyEvent(event))
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return event, nil
}

// Await waits for the work that was marked by an event.
func (d *Device) Await(event driver.Handle) error {
	if event == 0 {
		return nil
	}
	return d.Within(func() error { return d.CUDA.Wait(event) })
}

// Unmark keeps an event for another request. The streams that were told to wait for it still wait for its
// earlier mark.
func (d *Device) Unmark(event driver.Handle) {
	if event == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.marks = append(d.marks, event)
}

// Close gives the context back. No request is left. Closing twice does nothing.
func (d *Device) Close() error {
	if d.Context == 0 {
		return nil
	}
	var errs []error
	d.mu.Lock()
	marks := d.marks
	d.marks = nil
	d.mu.Unlock()
	if len(marks) > 0 {
		errs = append(errs, d.Within(func() error {
			var errs []error
			for _, event := range marks {
				errs = append(errs, d.CUDA.DestroyEvent(event))
			}
			return errors.Join(errs...)
		}))
	}
	d.Context = 0
	return errors.Join(append(errs, d.CUDA.ReleasePrimary(d.GPU.Device))...)
}
