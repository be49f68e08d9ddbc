package writer

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"time"
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
	if choice.Path == Mapped {
		return q.runMapped(ctx)
	}
	if err := q.make(ctx, q.outputs[:min(len(q.outputs), mostAhead)]); err != nil {
		return err
	}
	return q.writeUpTo(ctx, q.chunks)
}

func (q *Write) make(ctx context.Context, files []*output) error {
	for _, o := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := o.make(q.past()); err != nil {
			return err
		}
	}
	return nil
}

// past says whether files are to be written past the page cache.
func (q *Write) past() bool { return q.result.Choice.Path == Staged || q.result.Choice.Path == Direct }

// runMapped maps some files at a time, since descriptors are few. Where mapping does not work, and is not required, the rest goes
// through the page cache.
func (q *Write) runMapped(ctx context.Context) error {
	for first := 0; first < len(q.outputs); first += mostAhead {
		last := min(first+mostAhead, len(q.outputs))
		end := q.chunks
		if last < len(q.outputs) {
			end = q.first[last]
		}
		files := q.outputs[first:last]
		if err := q.make(ctx, files); err != nil {
			return err
		}
		began := time.Now()
		m, err := newMapping(q.w, files)
		if err == nil {
			if err = m.bring(ctx, q.w); err != nil {
				err = errors.Join(err, m.close())
			}
		}
		q.result.Prepared += time.Since(began)
		switch {
		case errors.Is(err, errUnmapped) && q.w.opt.Require:
			return fmt.Errorf("write to %s: %w: %w", q.dir.path, ErrUnavailable, err)
		case errors.Is(err, errUnmapped):
			q.result.Choice = Choice{Buffered, err.Error()}
			return q.writeUpTo(ctx, q.chunks)
		case err != nil:
			return err
		}
		if err := errors.Join(q.writeUpTo(ctx, end), m.close()); err != nil {
			return err
		}
	}
	return nil
}

// writeUpTo has workers write chunks up to a number. When it returns, also with an error, nothing is under way.
func (q *Write) writeUpTo(ctx context.Context, end int64) error {
	q.end = end
	q.next.Store(min(q.next.Load(), q.started))
	workers := min(int64(q.w.opt.Threads), end-q.started)
	q.started = end
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
	bytes []byte         // where its bytes are, or will be once slot has settled; whole pages
	slot  *crew.Slot     // nil where they are written from where they lie
	there bool           // they are in the file then
	hbm   driver.Pointer // from where cuFile writes them; 0 where it does not
}

// work is what one worker does of a write: it writes chunks until none is left. The copies of the next chunk are under way while
// one is written.
func (q *Write) work(ctx context.Context, w *crew.Worker) (err error) {
	// An address without memory must not end the process.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("write to %s: %w: %v", q.dir.path, ErrMemory, fault)
			if w.CUDA != nil { // copies of the same chunk may have begun
				err = errors.Join(err, w.CUDA.Synchronize(w.Stream))
			}
		}
	}()
	if q.after != 0 && q.result.Choice.Path == Direct { // cuFile knows of no stream
		if err := w.CUDA.Wait(q.after); err != nil {
			return err
		}
	} else if q.after != 0 {
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
	if err := c.of.make(q.past()); err != nil {
		return nil, err
	}
	pieces := c.pieces()
	if c.of.mapped != nil {
		return q.loadMapped(w, c, pieces)
	}
	m, whole := c.whole(pieces)
	if whole && m.Host != nil {
		return &load{chunk: c, bytes: m.Host}, nil
	}
	s, err := w.Slot()
	if err != nil {
		return nil, err
	}
	l := &load{chunk: c, slot: s, bytes: s.Memory[:driver.RoundUp(c.n, driver.PageSize)]}
	if whole && q.result.Choice.Path == Direct { // the slot gets the bytes all the same, for their sum
		l.hbm = driver.Pointer(m.HBM)
	}
	return l, gather(w, s, l.bytes, pieces)
}

// loadMapped brings a chunk's bytes to where they shall be. The slot stands for the copies.
func (q *Write) loadMapped(w *crew.Worker, c chunk, pieces []piece) (*load, error) {
	s, err := w.Slot()
	if err != nil {
		return nil, err
	}
	l := &load{chunk: c, slot: s, bytes: c.of.mapped[c.offset : c.offset+c.n], there: true}
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
	if l.n > 0 {
		if err := q.w.rate.wait(ctx, l.n); err != nil {
			return err
		}
		path, err := q.put(ctx, w, l)
		if err != nil {
			return err
		}
		q.count(path, l.n)
	}
	return l.of.wrote()
}

func (q *Write) put(ctx context.Context, w *crew.Worker, l *load) (path Path, err error) {
	if path = Mapped; l.hbm != 0 {
		path = Direct
		out, err := l.of.register(q.w.direct)
		if err != nil {
			return "", err
		}
		if err := out.Write(l.hbm, l.n, l.offset); err != nil {
			return "", l.of.failed("cuFileWrite", err)
		}
	}
	if l.slot != nil {
		if err := w.Settle(l.slot); err != nil {
			return "", err
		}
	}
	l.of.sums[l.index] = sum(l.bytes[:l.n])
	if l.hbm == 0 && !l.there {
		path, err = l.of.write(ctx, l.bytes, l.offset)
	}
	return path, err
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
