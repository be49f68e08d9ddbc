// Package widen brings bytes from one place of a device to many others, and makes their elements wider on the way: after they have
// crossed the link.
package widen

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// Kind is how elements are converted.
type Kind int

// The widenings. Elements are unsigned and little-endian.
const (
	None     Kind = iota
	U16ToI64      // each 2 bytes become 8
	U32ToI64      // each 4 bytes become 8
)

// Size is that of a widened element.
const Size = 8

// Sizes gives the bytes of an element, and how many times as long it becomes.
func (k Kind) Sizes() (element, times int64, err error) {
	switch k {
	case None:
		return 1, 1, nil
	case U16ToI64:
		return 2, Size / 2, nil
	case U32ToI64:
		return 4, Size / 4, nil
	}
	return 0, 0, fmt.Errorf("%w: there is no widening %d", crew.ErrMemory, int(k))
}

// Copy widens from into to, on the host.
func (k Kind) Copy(to, from []byte) {
	switch k {
	case U16ToI64:
		for i := 0; i+2 <= len(from); i += 2 {
			binary.NativeEndian.PutUint64(to[Size/2*i:], uint64(binary.LittleEndian.Uint16(from[i:])))
		}
	case U32ToI64:
		for i := 0; i+4 <= len(from); i += 4 {
			binary.NativeEndian.PutUint64(to[Size/4*i:], uint64(binary.LittleEndian.Uint32(from[i:])))
		}
	default:
		copy(to, from)
	}
}

// Mover is a reader's use of its device.
type Mover struct {
	crew    *crew.Crew
	threads int // that share a copy on the host
	kernel  driver.Kernel
}

// New makes a Mover, which has so many of a crew's threads.
func New(c *crew.Crew, threads int) *Mover { return &Mover{crew: c, threads: threads} }

// Unload gives the kernel back. The thread has the context.
func (m *Mover) Unload(cu *driver.CUDA) error { return m.kernel.Unload(cu) }

// Move copies bytes that hold spans one after the other to the places of these, which count what is not widened yet. When it returns,
// also with an error, nothing is under way.
func (m *Mover) Move(ctx context.Context, to *crew.Destination, kind Kind, from *crew.Destination, spans []source.Span) error {
	_, times, err := kind.Sizes()
	if err != nil {
		return err
	}
	if from.Host != nil {
		host := from.Host
		for _, s := range spans {
			if err := m.moveHost(ctx, to.Host[s.To*times:], host[:s.N], kind, times); err != nil {
				return err
			}
			host = host[s.N:]
		}
		return nil
	}
	finished, err := m.crew.Run(ctx, 1, 1, func(w *crew.Worker, _ int64) error {
		slot, err := w.Slot()
		if err != nil {
			return err
		}
		if err := to.Ready(w); err != nil {
			return err
		}
		from := from.HBM
		for _, s := range spans {
			at := to.HBM + driver.Pointer(s.To*times)
			if kind == None {
				err = w.CUDA.CopyWithin(at, from, s.N, w.Stream)
			} else {
				err = m.launch(w, kind, from, at, s.N)
			}
			if err != nil {
				return err
			}
			from += driver.Pointer(s.N)
		}
		return w.Sent(slot)
	})
	crew.Quiet(finished, m.crew)
	return err
}

// launch starts the kernel on n bytes of HBM, see widen.cu.
func (m *Mover) launch(w *crew.Worker, kind Kind, from, to driver.Pointer, n int64) error {
	element, _, err := kind.Sizes()
	if err != nil {
		return err
	}
	fn, err := m.kernel.Load(w.CUDA, driver.WidenKernel)
	if err != nil {
		return err
	}
	return w.CUDA.LaunchWiden(fn, from, to, uint64(n/element), uint32(element), w.Stream)
}

// moveHost shares the copy among the threads.
func (m *Mover) moveHost(ctx context.Context, to, from []byte, kind Kind, times int64) error {
	const block = 1 << 20
	n := int64(len(from))
	finished, err := m.crew.Run(ctx, m.threads, (n+block-1)/block, func(_ *crew.Worker, i int64) (err error) {
		defer crew.OnFault(&err)()
		kind.Copy(to[i*block*times:], from[i*block:min((i+1)*block, n)])
		return nil
	})
	crew.Quiet(finished, m.crew)
	return err
}
