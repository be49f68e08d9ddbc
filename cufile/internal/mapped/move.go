package mapped

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// callBytes bounds the copy of one call, and the windows that are registered ahead of it. A cancelled request waits for it.
const callBytes = 64 << 20

// Move lets the GPU read pieces, whose files are open, and registers those that it does not see yet. With keep no window goes for a small piece: those for
// which there is no room are left. When it returns, also with an error, nothing is under way.
func (m *Mover) Move(ctx context.Context, to *crew.Destination, list []source.Piece, keep bool) (left []source.Piece, err error) {
	if err := unchanged(list); err != nil || len(list) == 0 {
		return nil, err
	}
	c := &pieces{m: m, list: slices.Clone(list), keep: keep, to: to, kernel: to.Host != nil || source.BytesOf(list)/int64(len(list)) < m.cu.SmallPieces()}
	err = m.Thread.RunQuiet(ctx, 1, 1, func(w *crew.Worker, _ int64) error {
		for len(c.list) > 0 {
			if err := w.JobContext().Err(); err != nil {
				return err
			}
			if err := m.moveNext(w, to, c); err != nil {
				return err
			}
			w.GoesOn()
		}
		return nil
	})
	// Nothing else would tell: bytes that were cut off have become zeros.
	if changed := unchanged(list); changed != nil && ctx.Err() == nil {
		err = changed
	}
	return c.left, err
}

// unchanged fails when the file of a piece has changed since it was opened, or was opened when it had been cut already and ends before the piece does.
func unchanged(list []source.Piece) error {
	for _, b := range source.FilesOf(list) {
		if err := b.Unchanged(); err != nil {
			return err
		}
	}
	for i := range list {
		if p := &list[i]; p.N > p.File.Length-p.Offset {
			return fmt.Errorf("read %s at %d: %w: %w", p.File.Name, p.File.Length, source.ErrShort, io.ErrUnexpectedEOF)
		}
	}
	return nil
}

// moveNext starts one call for the pieces that come next.
func (m *Mover) moveNext(w *crew.Worker, to *crew.Destination, c *pieces) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	end := m.begin()
	n := c.write(s.Memory)
	if n == 0 {
		end() // nobody waits for windows before
		if err := m.windows.take(w); err != nil {
			return err
		}
		defer func() { <-m.windows.turn }() // so that nobody takes windows that are registered now
		if err := m.windows.bring(w, c); err != nil {
			return err
		}
		end = m.begin()
		if n = c.write(s.Memory); n == 0 {
			end()
			return nil
		}
	}
	m.windows.note(w, c.file, c.index)
	if err = to.Ready(w); err == nil {
		if c.kernel {
			err = w.Launch(to, s.Device(), n)
		} else {
			err = w.CUDA.CopyAll(&c.copies, true, w.Stream)
		}
	}
	return w.SentReleasing(s, end, err)
}

// pieces is how far pieces of files have been moved.
type pieces struct {
	m      *Mover
	list   []source.Piece // that come next
	left   []source.Piece // for which there was no room
	keep   bool
	sorted bool
	kernel bool
	to     *crew.Destination
	copies driver.Copies // without kernel

	file  *source.Backing // that was written last
	index int64           // its window
}

// sort brings pieces of a window together, so that it need not be registered twice.
func (c *pieces) sort() {
	if !c.sorted {
		slices.SortFunc(c.list, func(a, b source.Piece) int {
			return cmp.Or(cmp.Compare(a.File.ID, b.File.ID), cmp.Compare(a.Offset, b.Offset))
		})
	}
	c.sorted = true
}

// write fills a table, or copies, with the pieces that come next, up to one that the GPU does not see. It gives how many there are.
func (c *pieces) write(memory []byte) (count int) {
	table := driver.Pieces(memory)
	c.copies = driver.Copies{}
	for left := int64(callBytes); len(c.list) > 0 && left > 0 && count < len(table); count++ {
		p := &c.list[0]
		from, n := c.m.find(p.File, p.Offset)
		if from == 0 {
			break
		}
		n = min(n, p.N, left)
		if c.kernel {
			n = min(n, crew.LaunchBytes)
			table[count] = c.to.Piece(from, p.To, n)
		} else {
			c.copies.Add(c.to.HBM+driver.Pointer(p.To), from, n)
		}
		left -= n
		c.file, c.index = p.File, (p.Offset+n-1)/c.m.windows.size
		if p.Offset, p.To, p.N = p.Offset+n, p.To+n, p.N-n; p.N == 0 {
			c.list = c.list[1:]
		}
	}
	return count
}

// find gives where the GPU sees the byte at offset of a file, and how many follow it there; 0 where it does not.
func (m *Mover) find(b *source.Backing, offset int64) (at driver.Pointer, n int64) {
	at, _, n = b.See(offset, m.windows.round.Load())
	return at, n
}

// Unseen gives the bytes of pieces that are not registered. Those that exist only in the mount do not count. The files are open.
func (m *Mover) Unseen(list []source.Piece) (n int64) {
	for i := range list {
		p := &list[i]
		if p.File.Inline {
			continue
		}
		if p.File.Seen.Load() == nil {
			m.windows.mu.Lock()
			m.windows.attach(p.File)
			m.windows.mu.Unlock()
		}
		for at := p.Offset; at < p.Offset+p.N; {
			_, seen := m.find(p.File, at)
			if seen == 0 {
				n += p.Offset + p.N - at
				break
			}
			at += seen
		}
	}
	return n
}

// Full says that there is no room for windows of small pieces, of which less than half is seen. Another way to move them is faster.
func (m *Mover) Full(list []source.Piece) bool {
	w, total := m.windows, source.BytesOf(list)
	if !w.full.Load() || total >= w.size/4*int64(len(list)) {
		return false
	}
	unseen := m.Unseen(list)
	if 2*unseen <= total {
		return false
	}
	w.refused.Add(unseen)
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.over()
}
