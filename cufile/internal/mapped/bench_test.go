package mapped

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/crew"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// BenchmarkGatherPlan is the CPU's fragment of a gather of 4096 samples from kept mappings, which must take less time
// than moving 32 MiB does (0.6 ms on PCIe 5).
func BenchmarkGatherPlan(b *testing.B) {
	name := filepath.Join(b.TempDir(), "data")
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		b.Fatal(err)
	}
	if err := os.Truncate(name, 8<<30); err != nil {
		b.Fatal(err)
	}
	f, err := source.OpenPlain(name, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it is a benchmark's
	offsets := make([]int64, 4096)
	for i := range offsets {
		offsets[i] = rand.Int64N(8<<30 - 8192)
	}
	table := make([]byte, 4<<20)
	m := &Mover{windows: newWindows(registryKey{"", 128 << 20, 16 << 30})}
	at := mapOf(b, m.windows, f.Backing(nil)).seen.At
	for i := range at {
		at[i].Store(uint64(i+1) << 27)
	}
	b.ReportAllocs()
	for b.Loop() {
		list, err := source.Pieces(b.Context(), f, rows(offsets, 8192), false)
		if err != nil {
			b.Fatal(err)
		}
		c := &pieces{m: m, list: list, kernel: true, to: &crew.Destination{HBM: 1 << 40}}
		if n := c.write(table); n == 0 {
			b.Fatal("nothing was written")
		}
	}
}

// rows are spans of n bytes that land one after the other.
func rows(offsets []int64, n int64) (list []source.Span) {
	for i, offset := range offsets {
		list = append(list, source.Span{Offset: offset, N: n, To: int64(i) * n})
	}
	return list
}
