package cufile

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
)

// Sequences are the documents of a batch of tokens, or parts of them, one behind the other. A request writes what attention of
// variable lengths needs of them to memory of the caller. The slices must stay until the request is done.
type Sequences struct {
	Lengths   []int64 // tokens of each, 2^31-1 in all at most
	Documents []int64 // the number of each one's document

	Tokens    int64  // that Positions and Numbers are for: all that Lengths say
	Begins    Memory // int32: where each begins, and the end
	Positions Memory // int64: each token's place in its sequence
	Numbers   Memory // int64: the number of each token's document
}

// check refuses sequences that cannot be. The thread has the device's context.
func (s *Sequences) check(r *Reader) error {
	if len(s.Documents) != len(s.Lengths) {
		return fmt.Errorf("%w: %d sequences are of %d documents", ErrMemory, len(s.Lengths), len(s.Documents))
	}
	left := s.Tokens
	for _, n := range s.Lengths {
		if n < 0 || n > left {
			return fmt.Errorf("%w: the sequences have other than %d tokens", ErrMemory, s.Tokens)
		}
		left -= n
	}
	if left != 0 || s.Tokens > math.MaxInt32 {
		return fmt.Errorf("%w: the sequences have other than %d tokens, or too many", ErrMemory, s.Tokens)
	}
	for _, m := range []struct {
		Memory
		element, count int64
	}{{s.Begins, 4, int64(len(s.Lengths)) + 1}, {s.Positions, 8, s.Tokens}, {s.Numbers, 8, s.Tokens}} {
		if m.Length < m.element*m.count || m.Pointer%uintptr(m.element) != 0 {
			return fmt.Errorf("%w: %d bytes at %#x do not hold %d numbers of %d", ErrMemory, m.Length, m.Pointer, m.count, m.element)
		}
		if m.count > 0 {
			if err := r.checkMemory(Memory{m.Pointer, m.element * m.count}); err != nil {
				return err
			}
		}
	}
	return nil
}

// writing writes what sequences say: beside the bytes of a request if it can, so that neither waits for the other's thread.
type writing struct {
	*Sequences
	r     *Reader
	begun atomic.Bool
}

// also is of a [crew.Destination].
func (s *writing) also(w *crew.Worker, slot *crew.Slot, used int) error {
	if tableOf(len(s.Lengths)) > len(slot.Memory)-used || !s.begun.CompareAndSwap(false, true) {
		return nil
	}
	_, err := s.launch(w, slot, used, 0, len(s.Lengths), 0)
	return err
}

// finish writes what was not begun. When it returns, also with an error, nothing is under way.
func (s *writing) finish(ctx context.Context, after driver.Handle) error {
	if !s.begun.CompareAndSwap(false, true) {
		return nil
	}
	if s.r.cu == nil {
		return s.writeHost(ctx)
	}
	finished, err := s.r.crew.Run(ctx, 1, 1, func(w *crew.Worker, _ int64) error {
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
	s.r.quiet(finished)
	return err
}

// tableOf is the bytes of the kernel's table of n sequences: the documents, and behind them the borders.
func tableOf(n int) int { return 8*n + 4*(n+1) }

// launch has the kernel write n sequences from the first on, which begin at a token, by a table in a slot. It gives where they end.
func (s *writing) launch(w *crew.Worker, slot *crew.Slot, used, first, n int, at int64) (end int64, err error) {
	fn, err := s.r.sequences.Load(w.CUDA, driver.SequencesKernel)
	if err != nil {
		return 0, err
	}
	documents := slot.Memory[used:]
	borders := documents[8*n:]
	for i := range n {
		binary.NativeEndian.PutUint64(documents[8*i:], uint64(s.Documents[first+i]))
		binary.NativeEndian.PutUint32(borders[4*i:], uint32(at))
		at += s.Lengths[first+i]
	}
	binary.NativeEndian.PutUint32(borders[4*n:], uint32(at))
	table, begins := slot.Device()+driver.Pointer(used), driver.Pointer(s.Begins.Pointer)+driver.Pointer(4*first)
	return at, w.CUDA.LaunchSequences(fn, table+driver.Pointer(8*n), table, uint32(n), begins, driver.Pointer(s.Positions.Pointer), driver.Pointer(s.Numbers.Pointer), w.Stream)
}

// writeHost shares the sequences among the threads.
func (s *writing) writeHost(ctx context.Context) error {
	const block = 64
	begins := numbers[int32](s.Begins, int64(len(s.Lengths))+1)
	at := int64(0)
	for i, n := range s.Lengths {
		begins[i] = int32(at)
		at += n
	}
	begins[len(s.Lengths)] = int32(at)
	positions, documents := numbers[int64](s.Positions, at), numbers[int64](s.Numbers, at)
	finished, err := s.r.crew.Run(ctx, s.r.opt.Threads, int64(len(s.Lengths)+block-1)/block, func(_ *crew.Worker, k int64) error {
		for i := int(k) * block; i < min(int(k+1)*block, len(s.Lengths)); i++ {
			first := int64(begins[i])
			for t := first; t < first+s.Lengths[i]; t++ {
				positions[t], documents[t] = t-first, s.Documents[i]
			}
		}
		return nil
	})
	s.r.quiet(finished)
	return err
}

// numbers is the memory of the host as an array.
func numbers[T any](m Memory, n int64) []T {
	return unsafe.Slice((*T)(*(*unsafe.Pointer)(unsafe.Pointer(&m.Pointer))), n)
}
