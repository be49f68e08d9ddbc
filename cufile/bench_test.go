package cufile

import (
	"os"
	"testing"
	"time"
)

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
