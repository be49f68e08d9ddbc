package copied

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/device"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// shelf is mapped files of random bytes, whose descriptors are closed.
type shelf struct {
	m     *Mover
	watch *source.Watch
	names []string
	files []source.File
	data  [][]byte
}

func newShelf(t *testing.T, count, size int) *shelf {
	t.Helper()
	d := source.NewDescriptors(16, nil)
	s := &shelf{m: New(MostThreads()), watch: d.Watch()}
	s.m.threads = 4
	folder, random := t.TempDir(), rand.NewChaCha8([32]byte{byte(count)})
	for i := range count {
		name, data := filepath.Join(folder, fmt.Sprint(i)), make([]byte, size)
		_, err := random.Read(data)
		if err = errors.Join(err, os.WriteFile(name, data, 0o600)); err != nil {
			t.Fatal(err)
		}
		f, err := source.OpenPlain(name, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		s.names, s.files, s.data = append(s.names, name), append(s.files, f), append(s.data, data)
		if err := s.m.Map([]source.Piece{{File: f.Backing(nil), N: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := d.Watch().Close(); err != nil {
			t.Error(err)
		}
		for _, f := range s.files {
			if err := errors.Join(s.m.Forget(f.Unshare()), f.Close()); err != nil {
				t.Error(err)
			}
		}
		if n := len(s.m.files); n > 0 {
			t.Errorf("%d files are mapped", n)
		}
	})
	return s
}

// random gives rows of random files, which land one behind the other, and their bytes.
func (s *shelf) random(random *rand.Rand, count int) (rows []source.Rows, want []byte) {
	for range count {
		i := random.IntN(len(s.files))
		n := random.IntN(len(s.data[i]))
		offset := random.IntN(len(s.data[i]) - n)
		rows = append(rows, s.row(i, offset, n, len(want)))
		want = append(want, s.data[i][offset:][:n]...)
	}
	return rows, want
}

func (s *shelf) row(i, offset, n, to int) source.Rows {
	return source.Rows{Of: s.files[i].(source.Placed).Map(), Watch: s.watch, Spans: []source.Span{{Offset: int64(offset), N: int64(n), To: int64(to)}}}
}

// TestRowsOfManyFiles compares rows of more files, and more bytes, than one call copies, by many threads at once.
func TestRowsOfManyFiles(t *testing.T) {
	s := newShelf(t, 100, 3*4096+77)
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			for range 2 {
				rows, want := s.random(random, 3000)
				got := make([]byte, len(want))
				if s.m.MoveRows(got, 1, nil, rows); !bytes.Equal(got, want) {
					t.Error("wrong bytes")
				}
				clear(got)
				if s.m.MoveRows(nil, 1, func(place int64, from []byte) { copy(got[place:], from) }, rows); !bytes.Equal(got, want) {
					t.Error("wrong bytes by a writer")
				}
				if slices.ContainsFunc(rows, func(r source.Rows) bool { return r.Missing != nil }) {
					t.Error("rows are missing")
				}
			}
		})
	}
	wg.Wait()
}

// TestRowsOfACutFile cuts one of three files to nothing. Its rows are missing, those of the others come, and nothing ends the process.
func TestRowsOfACutFile(t *testing.T) {
	s := newShelf(t, 3, 40_000)
	if err := os.Truncate(s.names[1], 0); err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]bool{"straight": false, "by a writer": true} {
		rows := []source.Rows{s.row(0, 100, 30_000, 0), s.row(1, 100, 30_000, 30_000), s.row(1, 5, 6, 60_000), s.row(2, 7, 30_000, 60_006)}
		got := make([]byte, 90_006)
		writer := Writer(nil)
		if write {
			writer = func(place int64, from []byte) { copy(got[place:], from) }
		}
		s.m.MoveRows(got, 1, writer, rows)
		if !bytes.Equal(got[:30_000], s.data[0][100:30_100]) || !bytes.Equal(got[60_006:], s.data[2][7:30_007]) {
			t.Errorf("%s: wrong bytes of the files that are as they were", name)
		}
		for i, want := range []int{0, 1, 1, 0} {
			if len(rows[i].Missing) != want || want > 0 && rows[i].Missing[0] != rows[i].Spans[0] {
				t.Errorf("%s: row %d lacks %v", name, i, rows[i].Missing)
			}
		}
	}
	if err := s.m.Map([]source.Piece{{File: s.files[1].Backing(nil), N: 1}}); !errors.Is(err, source.ErrShort) {
		t.Errorf("read again: %v, want ErrShort", err)
	}
}

// TestSharesOfACutFile has several threads copy rows of three files, of which one was cut. Its rows are missing, in their order.
func TestSharesOfACutFile(t *testing.T) {
	const size, n = 2 << 20, 1<<20 + 77
	s := newShelf(t, 3, size)
	if err := os.Truncate(s.names[1], 0); err != nil {
		t.Fatal(err)
	}
	rows := make([]source.Rows, 3)
	for i := range rows {
		rows[i] = s.row(i, 0, 0, 0)
		rows[i].Spans = nil
		for k := range 6 {
			rows[i].Spans = append(rows[i].Spans, source.Span{Offset: int64(k * 1001), N: n, To: int64((6*i + k) * n)})
		}
	}
	p := &plan{list: make([]piece, 18)}
	for i := range p.list {
		p.list[i].span.N = n
	}
	if shares := s.m.share(p.list); len(shares) != 4 {
		t.Fatalf("%d shares, want those of 4 threads", len(shares))
	}
	got := make([]byte, 18*n)
	s.m.MoveRows(got, 1, nil, rows)
	for i := range rows {
		missing := int64(0)
		for _, span := range rows[i].Missing {
			if span.To != rows[i].Spans[0].To+missing {
				t.Fatalf("file %d: missing %v", i, rows[i].Missing)
			}
			missing += span.N
		}
		if want := int64(i % 2 * 6 * n); missing != want {
			t.Errorf("file %d: %d bytes are missing, want %d", i, missing, want)
		}
		for k := range 6 {
			if at := (6*i + k) * n; i != 1 && !bytes.Equal(got[at:][:n], s.data[i][k*1001:][:n]) {
				t.Errorf("wrong bytes of row %d of file %d", k, i)
			}
		}
	}
}

// TestRowsOfACachesFilesThatComeAndGo unmaps files of a cache, as before their descriptors are closed, and maps others in their place, while rows of them
// are moved. A row has the bytes of its file, or is missing.
func TestRowsOfACachesFilesThatComeAndGo(t *testing.T) {
	s := newShelf(t, 8, 20_000)
	for _, f := range s.files {
		f.Backing(nil).Cached = true
	}
	ended := make(chan struct{})
	var wg sync.WaitGroup
	for seed := range uint64(2) {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, 3))
			for {
				select {
				case <-ended:
					return
				default:
				}
				rows, want := s.random(random, 50)
				got := bytes.Clone(want)
				for _, r := range rows { // which MoveRows must overwrite
					clear(got[r.Spans[0].To:][:r.Spans[0].N])
				}
				s.m.MoveRows(got, 1, nil, rows)
				for _, r := range rows {
					if at := r.Spans[0]; r.Missing == nil && !bytes.Equal(got[at.To:][:at.N], want[at.To:][:at.N]) {
						t.Error("wrong bytes")
						return
					}
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(5, 5))
	for range 300 {
		b := s.files[random.IntN(len(s.files))].Backing(nil)
		if err := s.m.Forget([]*source.Backing{b}); err != nil || b.Seen.Load() != nil {
			t.Errorf("a file that goes: %v", err)
		}
		b = s.files[random.IntN(len(s.files))].Backing(nil)
		if err := s.m.Map([]source.Piece{{File: b, N: 1}}); err != nil || b.Seen.Load() == nil {
			t.Errorf("a cache's file that is open is not mapped: %v", err)
		}
	}
	close(ended)
	wg.Wait()
}

// TestElementsAreNotCut has a row end within an element, which is left to another way.
func TestElementsAreNotCut(t *testing.T) {
	s := newShelf(t, 1, 4096)
	rows, written := []source.Rows{s.row(0, 0, 13, 0)}, 0
	s.m.MoveRows(nil, 2, func(_ int64, from []byte) { written += len(from) }, rows)
	if want := (source.Span{Offset: 12, N: 1, To: 12}); written != 12 || len(rows[0].Missing) != 1 || rows[0].Missing[0] != want {
		t.Errorf("%d bytes were written, want 12; missing %v", written, rows[0].Missing)
	}
}

// TestMemoryThatIsNone leaves rows out whose destination is not there, as those that cannot be read.
func TestMemoryThatIsNone(t *testing.T) {
	s := newShelf(t, 1, 4096)
	gone, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(gone) }()
	rows := []source.Rows{s.row(0, 0, 100, 0)}
	if s.m.MoveRows(gone, 1, nil, rows); len(rows[0].Missing) != 1 {
		t.Errorf("missing %v", rows[0].Missing)
	}
}

// TestFewMappings maps as many files as there is room for, and leaves the rows of others out.
func TestFewMappings(t *testing.T) {
	s := newShelf(t, 1, 4096)
	if n := mappings(); n < 10 || n > device.MostMappings() {
		t.Errorf("%d mappings of %d", n, device.MostMappings())
	}
	s.m.full = true
	name := filepath.Join(t.TempDir(), "more")
	if err := os.WriteFile(name, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := source.OpenPlain(name, 9)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was read
	if err := s.m.Map([]source.Piece{{File: f.Backing(nil), N: 1}}); err != nil {
		t.Fatal(err)
	}
	rows := []source.Rows{{Of: f.(source.Placed).Map(), Watch: s.watch, Spans: []source.Span{{N: 10}}}}
	if s.m.MoveRows(make([]byte, 10), 1, nil, rows); len(rows[0].Missing) != 1 {
		t.Errorf("missing %v", rows[0].Missing)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil || strings.Contains(string(maps), name) || !strings.Contains(string(maps), s.names[0]) {
		t.Errorf("mapped: %v", err)
	}
	if err := s.m.Forget(s.files[0].Unshare()); err != nil { // which makes room
		t.Fatal(err)
	}
	if err := s.m.Map([]source.Piece{{File: f.Backing(nil), N: 1}}); err != nil || f.Backing(nil).Seen.Load() == nil {
		t.Errorf("it is not mapped where there is room: %v", err)
	}
	if err := s.m.Forget(f.Unshare()); err != nil {
		t.Error(err)
	}
}
