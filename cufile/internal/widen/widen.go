// Package widen brings bytes from one place of a device to many others, and makes their elements wider on the way, or writes them twice.
// It does so after they have crossed the link. Rows that the GPU sees in the page cache need no such way, see package mapped.
package widen

import (
	"context"
	"errors"
	"fmt"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Kind is how elements are converted.
type Kind int

// The widenings. Elements are little-endian.
const (
	None Kind = iota
	U16ToI64
	U32ToI64
	U8ToI32
	U8ToI64
	I8ToI32
	I8ToI64
	U16ToI32
	I16ToI32
	I16ToI64
	I32ToI64
)

// Form gives the form of widened elements; nil for None.
func (k Kind) Form() (*crew.Form, error) {
	if k == None {
		return nil, nil
	}
	forms := [...]crew.Form{
		U16ToI64: {From: 2, Size: 8}, U32ToI64: {From: 4, Size: 8}, U8ToI32: {From: 1, Size: 4}, U8ToI64: {From: 1, Size: 8},
		I8ToI32: {From: 1, Size: 4, Signed: true}, I8ToI64: {From: 1, Size: 8, Signed: true}, U16ToI32: {From: 2, Size: 4},
		I16ToI32: {From: 2, Size: 4, Signed: true}, I16ToI64: {From: 2, Size: 8, Signed: true}, I32ToI64: {From: 4, Size: 8, Signed: true},
	}
	if k < 0 || int(k) >= len(forms) {
		return nil, fmt.Errorf("%w: there is no widening %d", crew.ErrMemory, int(k))
	}
	return &forms[k], nil
}

// Size gives the bytes of a written element, of those that are read of so many.
func (k Kind) Size(element int64) int64 {
	if form, err := k.Form(); err == nil && form != nil {
		return form.Size
	}
	return element
}

// Mover is a reader's use of its device.
type Mover struct {
	crew    *crew.Crew
	threads int // that share a copy on the host
}

// New makes a Mover, which has so many of a crew's threads.
func New(c *crew.Crew, threads int) *Mover { return &Mover{crew: c, threads: threads} }

// Move copies bytes that hold spans one after the other to the places of these, in the destination's form. When it returns, also with an
// error, nothing is under way.
func (m *Mover) Move(ctx context.Context, to *crew.Destination, from *crew.Destination, spans []source.Span) error {
	if from.Host != nil {
		host := from.Host
		for _, s := range spans {
			if err := m.moveHost(ctx, to, s.To, host[:s.N]); err != nil {
				return err
			}
			host = host[s.N:]
		}
		return nil
	}
	return m.crew.RunQuiet(ctx, 1, 1, func(w *crew.Worker, _ int64) error { return launch(w, to, from.HBM, spans) })
}

// launch starts the kernel over spans that lie in HBM, by as many tables as that takes.
func launch(w *crew.Worker, to *crew.Destination, from driver.Pointer, spans []source.Span) error {
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

// moveHost shares the copy of a span among the threads.
func (m *Mover) moveHost(ctx context.Context, to *crew.Destination, place int64, from []byte) error {
	const block = 1 << 20
	n := int64(len(from))
	return m.crew.RunQuiet(ctx, m.threads, (n+block-1)/block, func(_ *crew.Worker, i int64) (err error) {
		defer crew.OnFault(&err)()
		Write(to, place+i*block, from[i*block:min((i+1)*block, n)])
		return nil
	})
}

// Write writes elements on the host, as widen.cu does on a GPU.
func Write(to *crew.Destination, place int64, from []byte) {
	f := to.Form
	if f == nil {
		copy(to.Host[place:], from)
		return
	}
	at, bytes := f.Piece(place, int64(len(from)))
	first, second := from, from
	if bytes&driver.NotInFirst != 0 {
		first = from[:len(from)-int(f.From)]
	}
	f.Convert(to.Host[at*f.Size:], first)
	if f.Row == 0 {
		return
	}
	if bytes&driver.NotInSecond != 0 {
		second, at = from[f.From:], at+1
	}
	f.Convert(f.Beside.Host[(at-1)*f.Size:], second)
}
