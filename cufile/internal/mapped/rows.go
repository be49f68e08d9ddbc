package mapped

import (
	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// MoveRows moves rows of files that the GPU sees already. Their cost does not depend on how many files there are: each row is found in a table, without
// a lock or a system call. Rows that are not registered, or whose file cannot be looked at or has changed, are left out as Missing. The watches look at the
// files afterwards. It fails with [ErrApart] where a file was closed meanwhile. It runs on the Mover's worker, whose job ends when they are there.
func (m *Mover) MoveRows(w *crew.Worker, to *crew.Destination, rows []source.Rows) error {
	closed, also := closings(rows), to.Also
	f := &source.Finder{Rows: rows, Element: to.Element(), Most: crew.LaunchBytes}
	for len(f.Rows) > 0 || also != nil {
		if err := m.moveTable(w, to, f, also); err != nil {
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
func closings(rows []source.Rows) (n int64) {
	for i := range rows {
		if rows[i].Watch != nil {
			n += int64(rows[i].Watch.Closed())
		}
	}
	return n
}

// moveTable starts the kernel over a table of the next rows, and the request's other writes.
func (m *Mover) moveTable(w *crew.Worker, to *crew.Destination, f *source.Finder, also func(w *crew.Worker, s *crew.Slot, used int) error) error {
	s, err := w.Slot()
	if err != nil {
		return err
	}
	end := m.begin()
	count, table := 0, driver.Pieces(s.Memory)
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
	launch := func() error {
		if count == 0 {
			return nil
		}
		return w.Launch(to, s.Device(), count)
	}
	if also != nil {
		err = w.Beside(to, func() error { return also(w, s, count*driver.PieceBytes) }, launch)
	} else if err = to.Ready(w); err == nil {
		err = launch()
	}
	return w.SentReleasing(s, end, err)
}
