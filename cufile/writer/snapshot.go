package writer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Snapshot is a copy of memory in the arena, which is written while its owner changes the memory.
type Snapshot struct {
	Copies [][]byte // of each memory, in order; each begins with a page

	w    *Writer
	at   int64 // in the arena
	n    int64
	done chan struct{}
	err  error         // set before done is closed
	took time.Duration // likewise
	once sync.Once
}

// Snapshot starts copying memory into the arena, after the work on the caller's stream; a nil stream is none. It waits for room
// that earlier snapshots give back, and for pages that are not pinned yet. ErrTooLarge says that there can never be room;
// ErrNoMemory that the arena could not be pinned.
func (w *Writer) Snapshot(ctx context.Context, list []Memory, stream *uintptr) (*Snapshot, error) {
	if !w.gate.Enter() {
		return nil, fmt.Errorf("snapshot: %w", ErrClosed)
	}
	s, err := w.snapshot(ctx, list, stream)
	if err != nil {
		w.gate.Leave()
	}
	return s, err
}

// snapshot needs that the gate was entered, which the copies leave.
func (w *Writer) snapshot(ctx context.Context, list []Memory, stream *uintptr) (*Snapshot, error) {
	if w.arena == nil {
		return nil, fmt.Errorf("snapshot: %w: the writer has no arena: open it with memory", ErrTooLarge)
	}
	if err := w.checkAll(func(yield func(*Memory) bool) {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	began := time.Now()
	s := &Snapshot{w: w, done: make(chan struct{})}
	for i := range list {
		s.n += driver.RoundUp(list[i].Size(), driver.PageSize)
	}
	ctx, cancel := w.untilShut(ctx)
	defer cancel()
	var err error
	if s.at, err = w.arena.take(ctx, s.n); err != nil {
		if w.gate.IsShut() {
			err = ErrClosed
		}
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	at := s.at
	for i := range list {
		n := list[i].Size()
		s.Copies = append(s.Copies, w.arena.bytes(at, n))
		at += driver.RoundUp(n, driver.PageSize)
	}
	copied, after, err := w.copyOut(list, s, stream)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("snapshot: %w", err), w.arena.give(s.at, s.n))
	}
	w.addSnapshot(s)
	go func() { // ends when all is copied
		defer w.gate.Leave()
		defer close(s.done)
		s.err = w.copied(list, s, copied, after)
		s.took = time.Since(began)
	}()
	return s, nil
}

// copyOut starts the copies out of HBM. after is an event of the caller's stream, copied one of the last copy.
func (w *Writer) copyOut(list []Memory, s *Snapshot, stream *uintptr) (copied, after driver.Handle, err error) {
	if w.device.CUDA == nil {
		return 0, 0, nil
	}
	if after, err = w.device.Mark(stream, nil); err != nil {
		return 0, 0, err
	}
	w.copying.Lock() // the stream's work must not mix with that of another snapshot
	defer w.copying.Unlock()
	err = w.device.Within(func() error {
		if after != 0 {
			if err := w.device.CUDA.StreamWait(w.stream, after); err != nil {
				return err
			}
		}
		for i := range list {
			if list[i].Host == nil {
				if err := w.copyPieces(s.Copies[i], driver.Pointer(list[i].HBM)); err != nil {
					return errors.Join(err, w.device.CUDA.Synchronize(w.stream))
				}
			}
		}
		if copied, err = w.device.Mark((*uintptr)(&w.stream), nil); err != nil {
			return errors.Join(err, w.device.CUDA.Synchronize(w.stream))
		}
		return nil
	})
	if err != nil {
		w.device.Unmark(after)
		return 0, 0, err
	}
	return copied, after, nil
}

// copyPieces starts copying HBM to memory of the arena. CUDA refuses copies that cross the border of two registrations.
func (w *Writer) copyPieces(to []byte, from driver.Pointer) error {
	for len(to) > 0 {
		n := min(int64(len(to)), w.arena.toBorder(to))
		if err := w.device.CUDA.CopyOut(to[:n], from, w.stream); err != nil {
			return err
		}
		to, from = to[n:], from+driver.Pointer(n)
	}
	return nil
}

// copied copies memory of the host, and waits for all copies.
func (w *Writer) copied(list []Memory, s *Snapshot, copied, after driver.Handle) error {
	wait := func(event driver.Handle) error {
		if event == 0 {
			return nil
		}
		return w.device.Within(func() error { return w.device.CUDA.Wait(event) })
	}
	// The caller's stream may write to memory of the host.
	err := wait(after)
	if err == nil {
		if err = copyHost(list, s.Copies, w.opt.Threads); err != nil {
			err = fmt.Errorf("snapshot: %w", err)
		}
	}
	err = errors.Join(err, wait(copied))
	w.device.Unmark(copied)
	w.device.Unmark(after)
	return err
}

// copyHost copies memory of the host by several threads.
func copyHost(from []Memory, to [][]byte, threads int) error {
	type piece struct{ to, from []byte }
	var pieces []piece
	for i := range from {
		for at := 0; at < len(from[i].Host); at += ChunkSize {
			end := min(at+ChunkSize, len(from[i].Host))
			pieces = append(pieces, piece{to[i][at:end], from[i].Host[at:end]})
		}
	}
	return parallel(context.Background(), threads, int64(len(pieces)), func(i int64) error {
		copy(pieces[i].to, pieces[i].from)
		return nil
	})
}

// Done is closed when all is copied, so that the memory may change.
func (s *Snapshot) Done() <-chan struct{} { return s.done }

// Result waits until all is copied, and gives how long that took from the call on.
func (s *Snapshot) Result() (time.Duration, error) {
	<-s.done
	return s.took, s.err
}

// Release gives the room back, once all is copied. The Copies must not be used after it; releasing twice does nothing.
func (s *Snapshot) Release() (err error) {
	s.once.Do(func() {
		s.w.removeSnapshot(s)
		select {
		case <-s.done:
			err = s.w.arena.give(s.at, s.n)
		default:
			go func() { // ends when the copies have
				<-s.done
				_ = s.w.arena.give(s.at, s.n) // the caller has left
			}()
		}
	})
	return err
}

// settled waits for the snapshots that a write reads from, and fails where one of them did.
func (w *Writer) settled(ctx context.Context, q *Write) error {
	for _, s := range w.held() {
		if s.n == 0 || !q.overlaps(w.arena.bytes(s.at, s.n)) {
			continue
		}
		select {
		case <-s.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if s.err != nil {
			return fmt.Errorf("write to %s: its snapshot failed: %w", q.dir.path, s.err)
		}
	}
	return nil
}

// overlaps says whether a write reads memory of the host in [at, at+n).
func (q *Write) overlaps(memory []byte) bool {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	for _, o := range q.outputs {
		for i := range o.parts {
			if p := o.parts[i].Host; p != nil {
				at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
				if at < first+uintptr(len(memory)) && first < at+uintptr(len(p)) {
					return true
				}
			}
		}
	}
	return false
}
