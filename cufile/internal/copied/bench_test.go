package copied

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// BenchmarkRows copies 64 rows of 2 KiB of as many files, from their mappings and by pread.
func BenchmarkRows(b *testing.B) {
	const rows, length, size = 64, 2 << 10, 256 << 10
	for _, count := range []int{1, 2048} {
		folder := b.TempDir()
		d := source.NewDescriptors(16, nil)
		m := New(MostThreads())
		var files []source.File
		var backings []*source.Backing
		for i := range count {
			name := filepath.Join(folder, fmt.Sprint(i))
			if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
				b.Fatal(err)
			}
			f, err := source.OpenPlain(name, uint64(i))
			if err != nil {
				b.Fatal(err)
			}
			files, backings = append(files, f), append(backings, f.Backing(nil))
			if err := m.Map([]source.Piece{{File: f.Backing(nil), N: 1}}); err != nil {
				b.Fatal(err)
			}
		}
		to := make([]byte, rows*length)
		random := rand.New(rand.NewPCG(1, 2))
		some := make([]source.Rows, rows)
		next := func(i int) {
			some[i] = source.Rows{Of: files[random.IntN(count)].(source.Placed).Map(), Watch: d.Watch(), Spans: []source.Span{{Offset: random.Int64N(size - length), N: length, To: int64(i) * length}}}
		}
		b.Run(fmt.Sprintf("copied/%d", count), func(b *testing.B) {
			for b.Loop() {
				for i := range some {
					next(i)
				}
				m.MoveRows(to, 1, nil, some)
			}
		})
		b.Run(fmt.Sprintf("pread/%d", count), func(b *testing.B) {
			for b.Loop() {
				for i := range rows {
					if _, err := unix.Pread(backings[random.IntN(count)].FD, to[i*length:][:length], random.Int64N(size-length)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		if err := m.Forget(backings); err != nil {
			b.Fatal(err)
		}
		for _, f := range files {
			_ = f.Close()
		}
		_ = d.Watch().Close()
	}
}
