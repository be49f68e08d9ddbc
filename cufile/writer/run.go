package writer

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
)

// mostAhead is how many files are made before the first byte is written, so that a full disk is known early. Others are made
// when their turn comes: descriptors are few.
const mostAhead = 256

// run writes all files. When it returns, also with an error, nothing is under way.
func (q *Write) run(ctx context.Context) error {
	if err := q.w.settled(ctx, q); err != nil {
		return err
	}
	choice, err := q.choose(ctx)
	if err != nil {
		return err
	}
	q.result.Choice = choice
	for _, o := range q.outputs {
		o.only = q.w.opt.Require && q.w.opt.Path == Staged
	}
	if q.dir.inMemory() {
		if err := q.dir.room(q.total); err != nil {
			return err
		}
	}
	for _, o := range q.outputs[:min(len(q.outputs), mostAhead)] {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := o.make(choice.Path != Buffered); err != nil {
			return err
		}
	}
	workers := min(int64(q.w.opt.Threads), q.chunks)
	finished, err := q.w.crew.Run(ctx, int(workers), workers, func(w *crew.Worker, _ int64) error { return q.work(ctx, w) })
	q.w.quiet(finished)
	if errors.Is(err, crew.ErrClosed) {
		err = ErrClosed
	}
	return err
}

// load is a chunk on its way from memory to a file.
type load struct {
	chunk
	bytes []byte     // where its bytes are, or will be once slot has settled; whole pages
	slot  *crew.Slot // nil where they are written from where they lie
}

// work is what one worker does of a write: it writes chunks until none is left. The copies of the next chunk are under way while
// one is written.
func (q *Write) work(ctx context.Context, w *crew.Worker) (err error) {
	// An address without memory must not end the process.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("write to %s: %w: %v", q.dir.path, ErrMemory, fault)
		}
	}()
	if q.after != 0 {
		if err := w.CUDA.StreamWait(w.Stream, q.after); err != nil {
			return err
		}
	}
	var ready *load
	for ctx.Err() == nil && w.JobErr() == nil {
		var next *load
		if c, ok := q.claim(); ok {
			if next, err = q.load(w, c); err != nil {
				return err
			}
		}
		if ready != nil {
			if err := q.store(ctx, w, ready); err != nil {
				return err
			}
		}
		if ready = next; ready == nil {
			return nil
		}
	}
	return ctx.Err()
}

// load brings a chunk's bytes together: in a slot, unless they lie on whole pages of the host in one piece.
func (q *Write) load(w *crew.Worker, c chunk) (*load, error) {
	if err := c.of.make(q.result.Choice.Path != Buffered); err != nil {
		return nil, err
	}
	pieces := c.pieces()
	if m, ok := c.whole(pieces); ok && m.Host != nil && c.n%driver.PageSize == 0 {
		return &load{chunk: c, bytes: m.Host}, nil
	}
	s, err := w.Slot()
	if err != nil {
		return nil, err
	}
	l := &load{chunk: c, slot: s, bytes: s.Memory[:driver.RoundUp(c.n, driver.PageSize)]}
	return l, gather(w, s, l.bytes, pieces)
}

// gather fills memory with pieces, and with zeros where there are none. Copies out of HBM are then on their way, until the slot
// has settled.
func gather(w *crew.Worker, s *crew.Slot, to []byte, pieces []piece) error {
	at, copies := int64(0), false
	for i := range pieces {
		p := &pieces[i]
		clear(to[at:p.to])
		at = p.to + p.size()
		if p.Host != nil {
			copy(to[p.to:at], p.Host)
			continue
		}
		if err := w.CUDA.CopyOut(to[p.to:at], driver.Pointer(p.HBM), w.Stream); err != nil {
			return errors.Join(err, w.CUDA.Synchronize(w.Stream)) // of those that were begun
		}
		copies = true
	}
	clear(to[at:])
	if copies {
		return w.Sent(s)
	}
	return nil
}

// store sums and writes a chunk whose bytes are on their way.
func (q *Write) store(ctx context.Context, w *crew.Worker, l *load) error {
	if l.slot != nil {
		if err := w.Settle(l.slot); err != nil {
			return err
		}
	}
	if l.n > 0 {
		l.of.sums[l.index] = sum(l.bytes[:l.n])
		if err := q.w.rate.wait(ctx, l.n); err != nil {
			return err
		}
		path, err := l.of.write(ctx, l.bytes, l.offset)
		if err != nil {
			return err
		}
		q.count(path, l.n)
	}
	return l.of.wrote()
}

// sum is the CRC-32C of bytes.
func sum(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

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
