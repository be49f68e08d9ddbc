package mapped

import (
	"math"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// Table says where the GPU sees rows. It was made before their turn on the thread.
type Table struct {
	pieces     []driver.Piece
	generation uint32
	watched    int64
}

// Find makes the Table of many rows, on any thread. [Mover.MoveRows] uses it unless a window went meanwhile, or a watch looked.
func (m *Mover) Find(to *crew.Destination, rows []source.Rows) *Table {
	t, _ := m.tables.Get().(*Table)
	if t == nil {
		t = new(Table)
	}
	f := m.finder(to, rows)
	t.pieces, t.generation, t.watched = t.pieces[:0], f.Generation, watched(rows)
	f.Find(math.MaxInt, func(_ *source.Rows, at driver.Pointer, part source.Span) {
		t.pieces = append(t.pieces, to.Piece(at, part.To, part.N))
	})
	return t
}

func (m *Mover) finder(to *crew.Destination, rows []source.Rows) *source.Finder {
	return &source.Finder{
		Rows: rows, Element: to.Element(), Most: crew.LaunchBytes, Generation: m.windows.generation.Load(), Round: m.windows.round.Load(),
	}
}

// MoveRows moves rows of files that the GPU sees already. Their cost does not depend on how many files there are: each row is found in a table, without
// a lock or a system call. Rows that are not registered, or whose file cannot be looked at or has changed, are left out as Missing. The watches look at the
// files afterwards. It fails with [ErrApart] where a file was closed meanwhile. It runs on the Mover's worker, whose job ends when they are there. t may be
// nil, and is used up. written, if not nil, is called on the worker once the GPU has written the rows.
func (m *Mover) MoveRows(w *crew.Worker, to *crew.Destination, rows []source.Rows, t *Table, written func()) error {
	closed, also := closings(rows), to.Also
	f := m.finder(to, rows)
	for len(f.Rows) > 0 || also != nil {
		if err := m.moveTable(w, to, f, t, also, written); err != nil {
			return err
		}
		t, also = nil, nil // they are done once
	}
	if closings(rows) != closed { // perhaps it was not looked at after this read
		return ErrApart
	}
	return nil
}

// Beside has move copy rows by a Finder on a goroutine of its own, as a part of the worker's job. The windows that it finds stay until it returns. All rows
// are Missing where a file was closed meanwhile.
func (m *Mover) Beside(w *crew.Worker, rows []source.Rows, move func(f *source.Finder) error) {
	end, done, closed := m.begin(), w.Owe(), closings(rows)
	f := &source.Finder{Rows: rows, Element: 1, Generation: m.windows.generation.Load(), Round: m.windows.round.Load()}
	go func() { // the job waits for it
		err := move(f)
		end()
		if closings(rows) != closed {
			for i := range rows {
				rows[i].Missing = rows[i].Spans
			}
		}
		done(err)
	}()
}

// closings counts files that were closed.
func closings(rows []source.Rows) int64 { return sum(rows, (*source.Watch).Closed) }

// watched changes with each look at the rows' files, and each file that is closed.
func watched(rows []source.Rows) int64 { return sum(rows, (*source.Watch).Turn) + closings(rows) }

func sum(rows []source.Rows, of func(*source.Watch) uint32) (n int64) {
	for i := range rows {
		if rows[i].Watch != nil {
			n += int64(of(rows[i].Watch))
		}
	}
	return n
}

// use copies a Table that is still right, and gives how many pieces it has. Else rows are to be found anew. begin was called.
func (m *Mover) use(t *Table, table []driver.Piece, f *source.Finder) (count int) {
	defer m.tables.Put(t)
	if len(t.pieces) <= len(table) && t.generation == m.windows.generation.Load() && t.watched == watched(f.Rows) {
		f.Rows = nil
		return copy(table, t.pieces)
	}
	for i := range f.Rows {
		if f.Rows[i].Of != nil {
			f.Rows[i].Missing = nil
		}
	}
	return 0
}

// moveTable starts the kernel over a table of the next rows, and the request's other writes.
func (m *Mover) moveTable(w *crew.Worker, to *crew.Destination, f *source.Finder, t *Table, also func(w *crew.Worker, s *crew.Slot, used int) error, written func()) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	end := m.begin()
	count, table := 0, driver.Pieces(s.Memory)
	if t != nil {
		count = m.use(t, table, f)
	}
	f.Generation, f.Round = m.windows.generation.Load(), m.windows.round.Load()
	f.Find(len(table), func(_ *source.Rows, at driver.Pointer, part source.Span) {
		table[count] = to.Piece(at, part.To, part.N)
		count++
	})
	if count == 0 && also == nil {
		end()
		return nil
	}
	m.windows.found.Add(int64(count))
	release := end
	if written != nil && len(f.Rows) == 0 {
		release = func() {
			end()
			written()
		}
	}
	launch := func() error {
		if count == 0 {
			return nil
		}
		return w.Launch(to, s.Device(), count)
	}
	if err = to.Ready(w); err == nil && also == nil {
		err = launch()
	} else if err == nil {
		err = w.Beside(to, func() error { return also(w, s, count*driver.PieceBytes) }, launch)
	}
	return w.SentReleasing(s, release, err)
}
