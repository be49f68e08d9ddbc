package cufile

import (
	"context"
	"errors"
	"fmt"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Widen converts elements on the device, after they have crossed the link.
type Widen int

// The widenings. Elements are little-endian.
const (
	WidenNone Widen = iota
	WidenU16ToI64
	WidenU32ToI64
	WidenU8ToI32
	WidenU8ToI64
	WidenI8ToI32
	WidenI8ToI64
	WidenU16ToI32
	WidenI16ToI32
	WidenI16ToI64
	WidenI32ToI64
)

// form gives the form of widened elements; nil for WidenNone.
func (k Widen) form() (*crew.Form, error) {
	if k == WidenNone {
		return nil, nil
	}
	forms := [...]func() crew.Form{
		WidenU16ToI64: crew.Widened[uint16, int64], WidenU32ToI64: crew.Widened[uint32, int64],
		WidenU8ToI32: crew.Widened[uint8, int32], WidenU8ToI64: crew.Widened[uint8, int64], WidenI8ToI32: crew.Widened[int8, int32], WidenI8ToI64: crew.Widened[int8, int64],
		WidenU16ToI32: crew.Widened[uint16, int32], WidenI16ToI32: crew.Widened[int16, int32], WidenI16ToI64: crew.Widened[int16, int64],
		WidenI32ToI64: crew.Widened[int32, int64],
	}
	if k < 0 || int(k) >= len(forms) {
		return nil, fmt.Errorf("%w: there is no widening %d", crew.ErrMemory, int(k))
	}
	form := forms[k]()
	return &form, nil
}

// Size gives the bytes of a written element, of those that are read of so many.
func (k Widen) Size(element int64) int64 {
	if form, err := k.form(); err == nil && form != nil {
		return form.Size
	}
	return element
}

// spread copies bytes that hold spans one after the other to the places of these, in the destination's form. Rows that the GPU sees in the page
// cache need no such way, see package mapped. When it returns, also with an error, nothing is under way.
func (r *Reader) spread(ctx context.Context, to *crew.Destination, from *crew.Destination, spans []source.Span) error {
	if from.Host != nil {
		host := from.Host
		for _, s := range spans {
			if err := r.spreadOnHost(ctx, to, s.To, host[:s.N]); err != nil {
				return err
			}
			host = host[s.N:]
		}
		return nil
	}
	return r.crew.RunQuiet(ctx, 1, 1, func(w *crew.Worker, _ int64) error { return launchSpread(w, to, from.HBM, spans) })
}

// launchSpread starts the kernel over spans that lie in HBM, by as many tables as that takes.
func launchSpread(w *crew.Worker, to *crew.Destination, from driver.Pointer, spans []source.Span) error {
	for skip := int64(0); len(spans) > 0; {
		slot, err := w.Slot()
		if err != nil {
			return err
		}
		if err := to.Ready(w); err != nil {
			return err
		}
		table := driver.Pieces(slot.Memory)
		count := 0
		for ; len(spans) > 0 && count < len(table); count++ {
			s := &spans[0]
			n := min(s.N-skip, crew.LaunchBytes)
			table[count] = to.Piece(from, s.To+skip, n)
			from += driver.Pointer(n)
			if skip += n; skip == s.N {
				spans, skip = spans[1:], 0
			}
		}
		if err := errors.Join(w.Launch(to, slot.Device(), count), w.Sent(slot)); err != nil {
			return err
		}
	}
	return nil
}

// spreadOnHost shares the copy of a span among the threads.
func (r *Reader) spreadOnHost(ctx context.Context, to *crew.Destination, place int64, from []byte) error {
	const block = 1 << 20
	n := int64(len(from))
	return r.crew.RunQuiet(ctx, r.opt.Threads, (n+block-1)/block, func(_ *crew.Worker, i int64) (err error) {
		defer crew.OnFault(&err)()
		to.Write(place+i*block, from[i*block:min((i+1)*block, n)])
		return nil
	})
}
