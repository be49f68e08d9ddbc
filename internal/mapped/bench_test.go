package mapped

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/internal/driver"
	"github.com/hbmfs/hbmfs/internal/source"
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
	used := make([]driver.Pointer, 64)
	for i := range used {
		used[i] = driver.Pointer(i) << 27
	}
	m := &Mover{windows: &Windows{size: 128 << 20}}
	b.ReportAllocs()
	for b.Loop() {
		pieces, err := source.Pieces(b.Context(), f, source.Rows(offsets, 8192), nil, false)
		if err != nil {
			b.Fatal(err)
		}
		g := &group{fragments: m.Plan(pieces).fragments, last: 64}
		if n := g.write(table, used, 1<<40); n == 0 {
			b.Fatal("nothing was written")
		}
	}
}
