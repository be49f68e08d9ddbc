package mapped

import (
	"unsafe"

	"github.com/hbmfs/hbmfs/internal/crew"
	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
)

// Rows are spans of a file that may be registered.
type Rows struct {
	Of      *source.Map
	Spans   []source.Span
	Missing []source.Span // those that MoveRows did not move
}

// MoveRows moves rows of files that the GPU sees already. Their cost does not depend on how many files there are: each row is found in a table, without
// a lock or a system call. Rows that are not registered, or whose file cannot be looked at or has changed, are left out as Missing. The watch looks at the
// files afterwards. It fails with [ErrApart] where a file was closed meanwhile. It runs on the Mover's worker, whose job ends when they are there.
func (m *Mover) MoveRows(w *crew.Worker, to *crew.Destination, watch *source.Watch, rows []Rows) error {
	closed, also := watch.Closed(), to.Also
	c := &cursor{m: m, watch: watch, turn: watch.Turn(), rows: rows, base: to.HBM, form: to.Form}
	for !c.done() || also != nil {
		if err := m.moveTable(w, to, c, also); err != nil {
			return err
		}
		also = nil // it is done once
	}
	if watch.Closed() != closed { // perhaps it was not looked at after this read
		return ErrApart
	}
	return nil
}

// moveTable starts the kernel over a table of the rows that come next, and what else a request writes.
func (m *Mover) moveTable(w *crew.Worker, to *crew.Destination, c *cursor, also func(w *crew.Worker, s *crew.Slot, used int) error) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	count := c.write(s.Memory)
	if count == 0 && also == nil {
		return nil
	}
	launch := func() error {
		if count == 0 {
			return nil
		}
		return m.launch(w, to, s, uint32(count))
	}
	if also != nil {
		err = w.Beside(to, func() error { return also(w, s, count*pieceEntry) }, launch)
	} else if err = to.Ready(w); err == nil {
		err = launch()
	}
	if err != nil {
		return err
	}
	return w.Sent(s)
}

// launch starts the kernel of a destination's form over a table of pieces in a slot.
func (m *Mover) launch(w *crew.Worker, to *crew.Destination, s *crew.Slot, count uint32) error {
	kernel, code := &m.gather, driver.GatherKernel
	if to.Form != nil {
		kernel, code = &m.widen, driver.WidenKernel
	}
	fn, err := kernel.Load(m.cu, code)
	if err != nil {
		return err
	}
	if to.Form != nil {
		return w.CUDA.LaunchWiden(fn, s.Device(), count, to.Widening(), w.Stream)
	}
	return w.CUDA.LaunchGather(fn, s.Device(), count, w.Stream)
}

// cursor is how far rows have entries in the kernel's tables.
type cursor struct {
	m     *Mover
	watch *source.Watch
	turn  uint32
	rows  []Rows
	base  driver.Pointer // of the destination
	form  *crew.Form     // likewise

	next int   // the span of rows[0] that the next entry is of
	skip int64 // bytes of it that have an entry
}

func (c *cursor) done() bool { return len(c.rows) == 0 }

// write fills a table with entries for the rows that come next, and gives how many it wrote.
func (c *cursor) write(memory []byte) (count int) {
	table := unsafe.Slice((*entry)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)/pieceEntry) // slots begin with a page
	for len(c.rows) > 0 {
		r := &c.rows[0]
		for ; c.next < len(r.Spans); c.next, c.skip = c.next+1, 0 {
			s := &r.Spans[c.next]
			for c.skip < s.N {
				if count == len(table) {
					return count
				}
				from, n := c.find(r.Of, s.Offset+c.skip)
				if from == 0 {
					r.Missing = append(r.Missing, source.Span{Offset: s.Offset + c.skip, N: s.N - c.skip, To: s.To + c.skip})
					break
				}
				n = min(n, s.N-c.skip, launchBytes)
				if c.form == nil {
					table[count] = entry{from, c.base + driver.Pointer(s.To+c.skip), n}
				} else if n -= n % c.form.From; n > 0 {
					at, bytes := c.form.Piece(s.To+c.skip, n)
					table[count] = entry{from, driver.Pointer(at), int64(bytes)}
				} else { // an element lies in two windows
					r.Missing = append(r.Missing, source.Span{Offset: s.Offset + c.skip, N: c.form.From, To: s.To + c.skip})
					c.skip += c.form.From
					continue
				}
				c.skip += n
				count++
			}
		}
		c.rows, c.next = c.rows[1:], 0
	}
	return count
}

// find gives where the GPU sees the byte at offset of a file, and how many follow it there; 0 where it does not.
func (c *cursor) find(of *source.Map, offset int64) (at driver.Pointer, n int64) {
	i := of.Find(offset)
	run, place := &of.Runs[i], &of.Places[i]
	first := place.Turn != c.turn
	if first {
		if !c.watch.Mark(of.Files[i]) {
			return 0, 0
		}
		place.Turn = c.turn
	}
	generation := c.m.windows.generation
	if place.Generation == generation && !first {
		return place.Base + driver.Pointer(offset-run.Logical), run.End() - offset
	}
	seen := of.Files[i].Seen.Load()
	if seen == nil {
		return 0, 0
	}
	from, n := run.At(offset)
	index := from / seen.Window
	base, begin := seen.At[index], index*seen.Window
	if base == 0 {
		return 0, 0
	}
	seen.Used[index] = true
	if run.Inside(begin, seen.Window) {
		place.Base, place.Generation = base+driver.Pointer(run.Offset-begin), generation
	}
	return base + driver.Pointer(from-begin), min(n, begin+seen.Window-from)
}

// readLately says whether rows of a window were read since it was last asked.
func (n *window) readLately() bool {
	seen := n.file.seen
	if seen == nil || !seen.Used[n.index] {
		return false
	}
	seen.Used[n.index] = false
	return true
}
