package cufile

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/internal/driver"
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
	held := make([]driver.Pointer, 64)
	for i := range held {
		held[i] = driver.Pointer(i) << 27
	}
	b.ReportAllocs()
	for b.Loop() {
		t := &transfer{f: f, offsets: offsets, length: 8192}
		v, err := t.reserve(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		parts, _ := windows(t.groups[0].Pieces, 128<<20)
		g := &partGroup{parts: parts, last: 64}
		if n := g.write(table, held, 1<<40); n == 0 {
			b.Fatal("nothing was written")
		}
		v.Release()
	}
}

// BenchmarkNew is what opening and closing a Reader of a GPU costs, and of what: a loader of weights pays it each time.
// It needs HBMFS_GPU and a GPU.
func BenchmarkNew(b *testing.B) {
	if os.Getenv("HBMFS_GPU") == "" {
		b.Skip("HBMFS_GPU is not set: this needs a GPU")
	}
	for _, bench := range []struct {
		name string
		opt  Options
	}{
		{"threads=1/slot=64KiB", Options{Threads: 1, Slot: 64 << 10, Arena: 64 << 10}},
		{"threads=8/slot=64KiB", Options{Threads: 8, Slot: 64 << 10, Arena: 64 << 10}},
		{"threads=8/slot=4MiB", Options{Threads: 8, Slot: 4 << 20, Arena: 64 << 10}},
		{"threads=12/slot=4MiB", Options{Threads: 12, Slot: 4 << 20, Arena: 64 << 10}},
		{"threads=8/slot=4MiB/arena=1GiB", Options{Threads: 8, Slot: 4 << 20, Arena: 1 << 30}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			kept, err := New(b.Context(), Options{Threads: 1, Slot: 64 << 10, Arena: 64 << 10}) // the context stays
			if err != nil {
				b.Fatal(err)
			}
			var closing time.Duration
			for b.Loop() {
				r, err := New(b.Context(), bench.opt)
				if err != nil {
					b.Fatal(err)
				}
				began := time.Now()
				if err := r.Close(); err != nil {
					b.Fatal(err)
				}
				closing += time.Since(began)
			}
			b.ReportMetric(float64(closing.Nanoseconds())/float64(b.N), "close-ns/op")
			if err := kept.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}
