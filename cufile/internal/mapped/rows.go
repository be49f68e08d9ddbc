package mapped

import (
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Rows are spans of a file that may be registered. Its reader's watch looks at its files.
type Rows struct {
	Of      *source.Map
	Watch   *source.Watch
	Spans   []source.Span
	Missing []source.Span // those that MoveRows did not move
}

// MoveRows moves rows of files that the GPU sees already. Their cost does not depend on how many files there are: each row is found in a table, without
// a lock or a system call. Rows that are not registered, or whose file cannot be looked at or has changed, are left out as Missing. The watches look at the
// files afterwards. It fails with [ErrApart] where a file was closed meanwhile. It runs on the Mover's worker, whose job ends when they are there.
func (m *Mover) MoveRows(w *crew.Worker, to *crew.Destination, rows []Rows) error {
	closed, also := closings(rows), to.Also
	c := &cursor{m: m, rows: rows, base: to.HBM, form: to.Form}
	for !c.done() || also != nil {
		if err := m.moveTable(w, to, c, also); err != nil {
			return err
		}
		also = nil // it is done once
	}
	if closings(rows) != closed { // perhaps it was not looked at after this read
		return ErrApart
	}
	return nil
}

// closings counts files that were closed.
func closings(rows []Rows) (n int64) {
	for i := range rows {
		if rows[i].Watch != nil {
			n += int64(rows[i].Watch.Closed())
		}
	}
	return n
}

// moveTable starts the kernel over a table of the rows that come next, and what else a request writes.
func (m *Mover) moveTable(w *crew.Worker, to *crew.Destination, c *cursor, also func(w *crew.Worker, s *crew.Slot, used int) error) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	end := m.begin()
	count := c.write(s.Memory)
	if count == 0 && also == nil {
		end()
		return nil
	}
	m.windows.found.Add(int64(count))
	launch := func() error {
		if count == 0 {
			return nil
		}
		return m.launch(w, to, s, count)
	}
	if also != nil {
		err = w.Beside(to, func() error { return also(w, s, count*driver.PieceBytes) }, launch)
	} else if err = to.Ready(w); err == nil {
		err = launch()
	}
	return w.SentReleasing(s, end, err)
}

// cursor is how far rows have entries in the kernel's tables.
type cursor struct {
	m          *Mover
	rows       []Rows
	base       driver.Pointer // of the destination
	form       *crew.Form     // likewise
	turn       uint32         // of the watch of rows[0]
	generation uint32

	next int   // the span of rows[0] that the next entry is of
	skip int64 // bytes of it that have an entry
}

func (c *cursor) done() bool { return len(c.rows) == 0 }

// write fills a table with entries for the rows that come next, and gives how many it wrote.
func (c *cursor) write(memory []byte) (count int) {
	table := driver.Pieces(memory)
	c.generation = c.m.windows.generation.Load()
	for len(c.rows) > 0 {
		if len(c.rows[0].Spans) > 0 {
			var full bool
			if count, full = c.writeRows(table, count); full {
				return count
			}
		}
		c.rows, c.next = c.rows[1:], 0
	}
	return count
}

// writeRows adds those of one file, and says whether the table is full before they end.
func (c *cursor) writeRows(table []driver.Piece, count int) (int, bool) {
	r := &c.rows[0]
	r.Of.Using.Lock() // another reader's thread may read the same file
	defer r.Of.Using.Unlock()
	c.turn = r.Watch.Turn()
	for ; c.next < len(r.Spans); c.next, c.skip = c.next+1, 0 {
		s := &r.Spans[c.next]
		for c.skip < s.N {
			if count == len(table) {
				return count, true
			}
			from, n := c.find(r, s.Offset+c.skip)
			if from == 0 {
				r.Missing = append(r.Missing, source.Span{Offset: s.Offset + c.skip, N: s.N - c.skip, To: s.To + c.skip})
				break
			}
			n = min(n, s.N-c.skip, launchBytes)
			if c.form == nil {
				table[count] = driver.Piece{From: from, To: c.base + driver.Pointer(s.To+c.skip), N: n}
			} else if n -= n % c.form.From; n > 0 {
				at, bytes := c.form.Piece(s.To+c.skip, n)
				table[count] = driver.Piece{From: from, To: driver.Pointer(at), N: int64(bytes)}
			} else { // an element lies in two windows
				r.Missing = append(r.Missing, source.Span{Offset: s.Offset + c.skip, N: c.form.From, To: s.To + c.skip})
				c.skip += c.form.From
				continue
			}
			c.skip += n
			count++
		}
	}
	return count, false
}

// find gives where the GPU sees the byte at offset of a file, and how many follow it there; 0 where it does not.
func (c *cursor) find(r *Rows, offset int64) (at driver.Pointer, n int64) {
	of := r.Of
	i := of.Find(offset)
	run, place := &of.Runs[i], &of.Places[i]
	first := place.Turn != c.turn
	if first {
		if !r.Watch.Mark(of.Files[i]) {
			return 0, 0
		}
		place.Turn = c.turn
	}
	if place.Generation == c.generation && !first {
		return place.Base + driver.Pointer(offset-run.Logical), run.End() - offset
	}
	from, n := run.At(offset)
	at, most := c.m.find(of.Files[i], from)
	if at == 0 {
		return 0, 0
	}
	if window := c.m.windows.size; run.Inside(from/window*window, window) {
		place.Base, place.Generation = at-driver.Pointer(from-run.Offset), c.generation
	}
	return at, min(n, most)
}
