package writer

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"time"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// load is a chunk on its way from memory to a file.
type load struct {
	chunk
	bytes []byte         // where its bytes are, or will be once slot has settled; whole pages
	slot  *crew.Slot     // nil where they are written from where they lie
	there bool           // they are in the file then
	hbm   driver.Pointer // from where cuFile writes them; 0 where it does not
}

// work is a worker's turn at a write: it writes chunks until none is left, or its time is over. The copies of the next chunk are under
// way while one is written. When it returns, also with an error, none is.
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
	defer func() {
		if err != nil || ctx.Err() != nil {
			w.Drain() // their jobs learn how it went, and this one has failed
		}
	}()
	began := time.Now()
	var ready *load
	for ctx.Err() == nil {
		var next *load
		if c, ok := q.claim(began); ok {
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
		at = p.to + p.Size()
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

// sum is the CRC-32C of bytes. Those that come from memory are summed 1.4 times as fast by way of a copy in the CPU's cache. The
// instruction's three streams are nothing that the CPU fetches ahead.
func sum(p []byte) (c uint32) {
	var near [16 << 10]byte
	table := crc32.MakeTable(crc32.Castagnoli)
	for len(p) > 0 {
		n := copy(near[:], p)
		c, p = crc32.Update(c, table, near[:n]), p[n:]
	}
	return c
}
