// Package sequences writes the inputs of variable-length attention for a batch of packed documents to memory of the caller. That is
// where each begins, positions, numbers of documents, and padding.
package sequences

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Sequences are the documents of a batch of tokens, or parts of them, one behind the other. A request writes the inputs of
// variable-length attention to memory of the caller, and pads its target. The slices must stay until the request is done.
type Sequences struct {
	Lengths   []int64 // tokens of each, 2^31-1 in all at most
	Documents []int64 // the number of each one's document; below 0 it is padding

	Tokens    int64         // that Positions and Numbers are for: all that Lengths say
	Begins    device.Memory // int32: where each begins, and the end; zero: none of these three is written, only padding
	Positions device.Memory // int64: each token's place in its sequence
	Numbers   device.Memory // int64: the number of each token's document

	// Padding in the target becomes Pad, of Element bytes for a token: 1, 2, 4 or 8. With 0 it stays as it is.
	Element int64
	Pad     uint64
}

// Writer is a reader's use of its device.
type Writer struct {
	device  *device.Device
	crew    *crew.Crew
	threads int // that share the work on the host
}

// New makes a Writer, which has so many of a crew's threads.
func New(d *device.Device, c *crew.Crew, threads int) *Writer {
	return &Writer{device: d, crew: c, threads: threads}
}

// Writing writes the outputs of sequences, once.
type Writing struct {
	*Sequences
	r      *Writer
	target device.Memory
	padded device.Memory // where padding is; zero: there is none
	begun  atomic.Bool
}

// Prepare refuses memory that sequences cannot be written to. The thread has the context. [Writing.Check] must follow, on any thread: it
// looks at each sequence.
func (r *Writer) Prepare(s *Sequences, target device.Memory) (*Writing, error) {
	if len(s.Documents) != len(s.Lengths) {
		return nil, fmt.Errorf("%w: %d sequences are of %d documents", crew.ErrMemory, len(s.Lengths), len(s.Documents))
	}
	if s.Tokens < 0 || s.Tokens > math.MaxInt32 {
		return nil, fmt.Errorf("%w: sequences of %d tokens are too many", crew.ErrMemory, s.Tokens)
	}
	if s.Begins != (device.Memory{}) {
		known := new(driver.Allocation) // mostly of all three
		err := errors.Join(r.holds(s.Begins, 4, int64(len(s.Lengths))+1, known), r.holds(s.Positions, 8, s.Tokens, known), r.holds(s.Numbers, 8, s.Tokens, known))
		if err != nil {
			return nil, err
		}
	}
	return &Writing{Sequences: s, r: r, target: target}, nil
}

// holds refuses memory that does not hold so many elements.
func (r *Writer) holds(m device.Memory, element, count int64, known *driver.Allocation) error {
	if m.Length < element*count || m.Pointer%uintptr(element) != 0 {
		return fmt.Errorf("%w: %d bytes at %#x do not hold %d numbers of %d", crew.ErrMemory, m.Length, m.Pointer, count, element)
	}
	if count == 0 {
		return nil
	}
	if err := r.device.Has(device.Memory{Pointer: m.Pointer, Length: element * count}, known); err != nil {
		return fmt.Errorf("%w: %w", crew.ErrMemory, err)
	}
	return nil
}

// Check refuses sequences that cannot be written, or padded in the target.
func (s *Writing) Check() error {
	left, first := s.Tokens, int64(0)
	for i, n := range s.Lengths {
		if n < 0 || n > left {
			return fmt.Errorf("%w: the sequences have other than %d tokens", crew.ErrMemory, s.Tokens)
		}
		left -= n
		first = min(first, s.Documents[i])
	}
	if left != 0 {
		return fmt.Errorf("%w: the sequences have other than %d tokens", crew.ErrMemory, s.Tokens)
	}
	switch padding := first < 0 && s.Element != 0; {
	case !padding && s.Begins == (device.Memory{}):
		return fmt.Errorf("%w: there is none for what %d sequences say", crew.ErrMemory, len(s.Lengths))
	case !padding:
		return nil
	case s.Element != 1 && s.Element != 2 && s.Element != 4 && s.Element != 8:
		return fmt.Errorf("%w: elements of %d bytes are not padded", crew.ErrMemory, s.Element)
	}
	s.padded = s.target
	return s.r.device.Within(func() error { return s.r.holds(s.target, s.Element, s.Tokens, nil) })
}

// errChanged is of lengths that were others when they were checked.
var errChanged = fmt.Errorf("%w: the sequences were changed while they were read", crew.ErrMemory)

// Also is of a [crew.Destination]: it writes beside the bytes of a request if it can, so that neither waits for the other's thread.
func (s *Writing) Also(w *crew.Worker, slot *crew.Slot, used int) error {
	if tableOf(len(s.Lengths)) > len(slot.Memory)-used || !s.begun.CompareAndSwap(false, true) {
		return nil
	}
	_, err := s.launch(w, slot, used, 0, len(s.Lengths), 0)
	return err
}

// Begun says whether nothing is left for Finish.
func (s *Writing) Begun() bool { return s.begun.Load() }

// Finish does the writes that were not begun, behind an event. When it returns, also with an error, nothing is
// under way.
func (s *Writing) Finish(ctx context.Context, after driver.Handle) error {
	if !s.begun.CompareAndSwap(false, true) {
		return nil
	}
	if s.r.device.CUDA == nil {
		return s.writeHost(ctx)
	}
	return s.r.crew.RunQuiet(ctx, 1, 1, func(w *crew.Worker, _ int64) error {
		if err := (&crew.Destination{After: after}).Ready(w); err != nil {
			return err
		}
		first, at := 0, int64(0)
		for again := true; again; again = first < len(s.Lengths) { // once without sequences, for the end
			slot, err := w.Slot()
			if err != nil {
				return err
			}
			n := min(len(s.Lengths)-first, (len(slot.Memory)-tableOf(0))/(tableOf(1)-tableOf(0)))
			if at, err = s.launch(w, slot, 0, first, n, at); err != nil {
				return err
			}
			if err := w.Sent(slot); err != nil {
				return err
			}
			first += n
		}
		return nil
	})
}

// tableOf is the bytes of the kernel's table of n sequences: the documents, and behind them the borders.
func tableOf(n int) int { return 8*n + 4*(n+1) }

// launch has the kernel write n sequences from the first on, which begin at a token, by a table in a slot. It gives where they end.
func (s *Writing) launch(w *crew.Worker, slot *crew.Slot, used, first, n int, at int64) (end int64, err error) {
	fn, err := w.Kernels.Load(w.CUDA, driver.SequencesKernel)
	if err != nil {
		return 0, err
	}
	memory := unsafe.Pointer(&slot.Memory[used]) // a multiple of 8
	copy(unsafe.Slice((*int64)(memory), n), s.Documents[first:first+n])
	borders := unsafe.Slice((*uint32)(unsafe.Add(memory, 8*n)), n+1)
	wrong := int64(0)
	for i, length := range s.Lengths[first : first+n] {
		borders[i] = uint32(at)
		at += length
		wrong |= length | at | (s.Tokens - at) // below 0 if one of them is
	}
	if wrong < 0 {
		return 0, errChanged
	}
	borders[n] = uint32(at)
	table, where := slot.Device()+driver.Pointer(used), driver.SequencesMemory{
		Positions: driver.Pointer(s.Positions.Pointer), Numbers: driver.Pointer(s.Numbers.Pointer),
		Target: driver.Pointer(s.padded.Pointer), Element: uint32(s.Element), Pad: s.Pad,
	}
	if s.Begins.Pointer != 0 {
		where.Begins = driver.Pointer(s.Begins.Pointer) + driver.Pointer(4*first)
	}
	return at, w.CUDA.LaunchSequences(fn, table+driver.Pointer(8*n), table, uint32(n), &where, w.Stream)
}

// writeHost shares the sequences among the threads.
func (s *Writing) writeHost(ctx context.Context) error {
	const block = 64
	borders, many, wrong := make([]int64, len(s.Lengths)+1), int64(len(s.Lengths)), int64(0)
	for i, n := range s.Lengths {
		end := borders[i] + n
		borders[i+1] = end
		wrong |= n | end | (s.Tokens - end) // as in launch
	}
	if wrong < 0 {
		return errChanged
	}
	return s.r.crew.RunQuiet(ctx, s.r.threads, many/block+1, func(_ *crew.Worker, k int64) (err error) {
		defer crew.OnFault(&err)()
		from, to := k*block, min((k+1)*block, many)
		if s.Begins.Pointer != 0 {
			begins, positions, documents := numbers[int32](s.Begins, many+1), numbers[int64](s.Positions, s.Tokens), numbers[int64](s.Numbers, s.Tokens)
			for i := from; i < to; i++ {
				first := borders[i]
				begins[i] = int32(first)
				for t := first; t < borders[i+1]; t++ {
					positions[t], documents[t] = t-first, s.Documents[i]
				}
			}
			if k == many/block {
				begins[many] = int32(borders[many])
			}
		}
		for i := from; i < to && s.padded.Pointer != 0; i++ {
			if s.Documents[i] < 0 {
				s.padHost(borders[i], borders[i+1])
			}
		}
		return nil
	})
}

// padHost pads from a token to another one.
func (s *Writing) padHost(from, to int64) {
	pad := binary.LittleEndian.AppendUint64(nil, s.Pad)[:s.Element]
	room := numbers[byte](s.padded, s.Tokens*s.Element)
	for t := from; t < to; t++ {
		copy(room[t*s.Element:], pad)
	}
}

// numbers is the memory of the host as an array.
func numbers[T any](m device.Memory, n int64) []T {
	return unsafe.Slice((*T)(*(*unsafe.Pointer)(unsafe.Pointer(&m.Pointer))), n)
}
