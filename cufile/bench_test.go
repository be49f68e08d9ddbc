package cufile

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkGatherPlan is the CPU's part of a gather of 4096 samples from kept mappings, which must take less time
// than moving 32 MiB does (0.6 ms on PCIe 5).
func BenchmarkGatherPlan(b *testing.B) {
	name := filepath.Join(b.TempDir(), "data")
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		b.Fatal(err)
	}
	if err := os.Truncate(name, 8<<30); err != nil {
		b.Fatal(err)
	}
	o := Options{Device: HostDevice, Arena: 256 << 20}
	r := newReader(b, o)
	f, err := r.Open(b.Context(), name)
	if err != nil {
		b.Fatal(err)
	}
	offsets := make([]int64, 4096)
	for i := range offsets {
		offsets[i] = rand.Int64N(8<<30 - 8192)
	}
	table := make([]byte, 4<<20)
	held := make([]devicePointer, 64)
	for i := range held {
		held[i] = devicePointer(i) << 27
	}
	b.ReportAllocs()
	for b.Loop() {
		v, plan, err := f.prepare(b.Context(), offsets, 8192)
		if err != nil {
			b.Fatal(err)
		}
		parts, _ := windows(plan.groups[0].pieces, 128<<20)
		g := &partGroup{parts: parts, last: 64}
		if n := g.write(table, held, 1<<40); n == 0 {
			b.Fatal("nothing was written")
		}
		v.Release()
	}
}
