package mapped

import (
	"errors"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// TestTableOfRows makes tables before their turn. One is used unless a window went meanwhile, or files were looked at; then rows are found anew.
func TestTableOfRows(t *testing.T) {
	p, err := source.OpenPlain(fileOf(t, 4<<20), 1)
	must(t, err)
	d := source.NewDescriptors(16, nil)
	defer func() { must(t, errors.Join(d.Drop(p.Unshare()), p.Close())) }()
	m := &Mover{windows: newWindows(registryKey{"", 2 << 20, 8 << 20})}
	seen := mapOf(t, m.windows, p.Backing(nil)).seen
	seen.At[0].Store(1 << 30)
	to := &crew.Destination{HBM: 1 << 40}
	spans := []source.Span{{Offset: 8, N: 100, To: 0}, {Offset: 3 << 20, N: 50, To: 100}, {Offset: 1 << 20, N: 24, To: 150}}
	want := []driver.Piece{{From: 1<<30 + 8, To: 1 << 40, N: 100}, {From: 1<<30 + 1<<20, To: 1<<40 + 150, N: 24}}
	for name, c := range map[string]struct {
		room      int
		meanwhile func()
		used      bool
	}{
		"nothing happens":    {2, func() {}, true},
		"a window went":      {2, func() { m.windows.generation.Add(1) }, false},
		"another row came":   {2, func() { seen.At[1].Store(1 << 31); m.windows.generation.Add(1) }, false},
		"there is less room": {1, func() {}, false},
	} {
	again:
		turn := d.Watch().Turn()
		seen.At[1].Store(0)
		rows := []source.Rows{{Missing: spans[:1]}, {Of: p.(source.Placed).Map(), Watch: d.Watch(), Spans: spans}}
		table := m.Find(to, rows)
		if len(table.pieces) != 2 || table.pieces[0] != want[0] || table.pieces[1] != want[1] {
			t.Fatalf("%s: %v are found, want %v", name, table.pieces, want)
		}
		c.meanwhile()
		f, into := m.finder(to, rows), make([]driver.Piece, c.room)
		n := m.use(table, into, f)
		if d.Watch().Turn() != turn { // it looked meanwhile
			goto again
		}
		switch {
		case c.used && (n != 2 || into[0] != want[0] || into[1] != want[1] || len(f.Rows) != 0 || len(rows[1].Missing) != 1):
			t.Errorf("%s: %d of %v are used, %v are missing", name, n, into, rows[1].Missing)
		case !c.used && (n != 0 || len(f.Rows) != 2 || len(rows[1].Missing) != 0):
			t.Errorf("%s: %d are used, %v are missing", name, n, rows[1].Missing)
		case len(rows[0].Missing) != 1:
			t.Errorf("%s: a row that has no place is not missing", name)
		}
	}
}
