package control_test

import (
	"archive/tar"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
)

// The claims of the control channel. Run them by
//
//	go test -run '^$' -bench . -benchtime 1x ./tests/suites/control

// BenchmarkRedeem is one file: the ioctl with a ticket, and its redemption, with the descriptor in hand.
func BenchmarkRedeem(b *testing.B) {
	const rounds = 5000
	source, names, _ := manyFiles(b, 1, 1<<20)
	m := mount(b, source)
	f, c := open(b, m.Path(names[0])), dial(b, m)
	for b.Loop() {
		var both, first []time.Duration
		for range rounds {
			began := time.Now()
			for batch, err := range control.Batches(f, 0, math.MaxInt64, true) {
				must(b, err)
				first = append(first, time.Since(began))
				got, err := c.Redeem(b.Context(), batch.Ticket, batch.Objects())
				must(b, err)
				must(b, got[0].Err)
				both = append(both, time.Since(began))
				must(b, errors.Join(got[0].File.Close(), c.Release(b.Context(), got[0].Object)))
			}
		}
		b.ReportMetric(quantile(first, 0.5), "p50-ioctl-us")
		b.ReportMetric(quantile(both, 0.5), "p50-us")
		b.ReportMetric(quantile(both, 0.99), "p99-us")
	}
}

func quantile(times []time.Duration, q float64) float64 {
	slices.Sort(times)
	return float64(times[int(q*float64(len(times)-1))].Nanoseconds()) / 1e3
}

// BenchmarkSmallFiles reads 10,000 files of 4 KiB, once by open, read and close on the mount, once through LOOKUP. The
// kernel knows all names and pages already in both.
func BenchmarkSmallFiles(b *testing.B) {
	const count, size = 10000, 4096
	b.Run("files", func(b *testing.B) {
		source, names, _ := manyFiles(b, count, size)
		compareSmall(b, mount(b, source), names, size)
	})
	b.Run("members", func(b *testing.B) {
		source, names, _ := manyFiles(b, count, size)
		shards := suite.NewDir(b)
		archive(b, filepath.Join(shards, "shard-000000.tar"), source, names)
		m := mount(b, shards, "--show-views")
		first, err := m.View(filepath.Base(names[0]))
		must(b, err)
		dir, err := filepath.Rel(m.Path(), filepath.Dir(filepath.Dir(first)))
		must(b, err)
		for i := range names {
			names[i] = filepath.Join(dir, names[i])
		}
		compareSmall(b, m, names, size)
	})
}

func archive(b *testing.B, path, source string, names []string) {
	f, err := os.Create(path)
	must(b, err)
	w := tar.NewWriter(f)
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(source, name))
		must(b, err)
		must(b, w.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: 0o644}))
		_, err = w.Write(data)
		must(b, err)
	}
	must(b, errors.Join(w.Close(), f.Close()))
}

func compareSmall(b *testing.B, m *mounted, names []string, size int) {
	p := make([]byte, size)
	byMount := func() time.Duration {
		began := time.Now()
		for _, name := range names {
			f, err := os.Open(m.Path(name))
			must(b, err)
			_, err = io.ReadFull(f, p)
			must(b, errors.Join(err, f.Close()))
		}
		return time.Since(began)
	}
	byLookup := func() time.Duration {
		began := time.Now()
		c, err := control.Dial(b.Context(), m.Path(), "bench")
		must(b, err)
		for f, err := range c.Lookup(b.Context(), names) {
			must(b, err)
			if n, err := f.ReadAt(p, 0); n != size {
				b.Fatalf("%s: %d bytes, %v", f.Path, n, err)
			}
		}
		must(b, c.Close())
		return time.Since(began)
	}
	byMount() // the kernel learns the names
	byLookup()
	var mounts, lookups []time.Duration
	for b.Loop() {
		for range 5 { // in turns, so that both meet the same disturbances
			mounts, lookups = append(mounts, byMount()), append(lookups, byLookup())
		}
	}
	perFile := func(times []time.Duration) float64 { return quantile(times, 0.5) / float64(len(names)) }
	b.ReportMetric(perFile(mounts), "mount-us/file")
	b.ReportMetric(perFile(lookups), "lookup-us/file")
	b.ReportMetric(perFile(mounts)/perFile(lookups), "ratio")
}
