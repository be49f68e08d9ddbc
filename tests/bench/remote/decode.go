package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// decoding is a dataset of compressed shards, and how it is read.
type decoding struct {
	*bench
	source string
	zips   []string // the paths of the shards
	bytes  int64    // of all of them, decoded
	sum    string   // the hash that the index has of each
}

// way is one way to read all shards once, decoded.
type way struct {
	name string
	run  func(ctx context.Context) (took, cpu time.Duration, err error)
}

// decode compares first reads of compressed shards through mounts with the library that decodes them: its own parallel
// decoder, one shard after the other; as many shards at once as there are CPUs; and the same with the least that a mount
// does besides: to hash, sum and write the bytes, and to read them once. The order changes from round to round.
func (b *bench) decode(ctx context.Context, shards int, sum string, rounds int) (err error) {
	d := &decoding{bench: b, source: filepath.Join(b.work, "shards"), sum: sum}
	if d.bytes, err = writeShards(d.source, shards, sum); err != nil {
		return err
	}
	if d.zips, err = filepath.Glob(filepath.Join(d.source, "*.zstd")); err != nil {
		return err
	}
	cpus := runtime.GOMAXPROCS(0)
	ways := []way{
		{"the library's parallel decoder", d.library(0, 1, false)},
		{fmt.Sprintf("the library, %d shards at once", cpus), d.library(1, cpus, false)},
		{"so, hashed, written and read", d.library(1, cpus, true)},
		{"hbmfs", d.mounted(1)},
		{fmt.Sprintf("hbmfs, %d readers", cpus), d.mounted(cpus)},
	}
	rates, work := make([][]float64, len(ways)), make([][]float64, len(ways))
	for round := range rounds {
		for i := range ways {
			at := (i + round) % len(ways)
			unix.Sync() // so that no run writes an earlier run's dirty pages
			took, cpu, err := ways[at].run(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", ways[at].name, err)
			}
			rate := float64(d.bytes) / took.Seconds()
			fmt.Fprintf(os.Stderr, "round %d: %s: %.0f MB/s, %v of CPU\n", round+1, ways[at].name, rate/1e6, cpu)
			rates[at], work[at] = append(rates[at], rate), append(work[at], cpu.Seconds()/float64(d.bytes)*1e9)
		}
	}
	fmt.Printf("\n%d zstd shards, %d bytes decoded, %s, %d CPUs, %d rounds, medians; load %s\n\n", shards, d.bytes, sum, cpus, rounds, load())
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "decoder\tMB/s\tbeside the first\tbeside the second\tlowest\thighest\tCPU s/GB\t")
	for i, w := range ways {
		low, high := ends(rates[i])
		rate := median(rates[i])
		fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.2f\t%.0f\t%.0f\t%.2f\t\n", w.name, rate/1e6, rate/median(rates[0]), rate/median(rates[1]), low/1e6, high/1e6, median(work[i]))
	}
	return t.Flush()
}

// inTurns has do called with each of n numbers once, by so many goroutines.
func inTurns(ctx context.Context, goroutines, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range goroutines {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := errors.Join(ctx.Err(), do(ctx, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// library decodes without a mount, to nowhere unless keep is given.
func (d *decoding) library(concurrency, atOnce int, keep bool) func(context.Context) (took, cpu time.Duration, err error) {
	return func(ctx context.Context) (took, cpu time.Duration, err error) {
		began, before := time.Now(), ownCPU()
		var total atomic.Int64
		err = inTurns(ctx, atOnce, len(d.zips), func(_ context.Context, i int) error {
			n, err := d.decodeOne(d.zips[i], concurrency, keep)
			total.Add(n)
			return err
		})
		if err == nil && total.Load() != d.bytes {
			err = fmt.Errorf("%d bytes came, of %d", total.Load(), d.bytes)
		}
		return time.Since(began), ownCPU() - before, err
	}
}

func (d *decoding) decodeOne(name string, concurrency int, keep bool) (n int64, err error) {
	in, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }() // opened for reading: nothing is lost
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(concurrency))
	if err != nil {
		return 0, err
	}
	defer z.Close()
	if !keep {
		return z.WriteTo(io.Discard)
	}
	fd, err := unix.Open(d.work, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return 0, os.NewSyscallError("open", err)
	}
	out := os.NewFile(uintptr(fd), "a file without a name")
	defer func() { err = errors.Join(err, out.Close()) }()
	h, err := newHash(d.sum)
	if err != nil {
		return 0, err
	}
	if n, err = z.WriteTo(io.MultiWriter(h, crc32.New(crc32.MakeTable(crc32.Castagnoli)), out)); err != nil {
		return n, err
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return n, err
	}
	return io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{out}, make([]byte, 1<<20))
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0 // it does not fail for this process
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// mounted reads through a new mount with an empty cache, by so many readers, of which each takes the next shard.
func (d *decoding) mounted(readers int) func(context.Context) (took, cpu time.Duration, err error) {
	return func(ctx context.Context) (took, cpu time.Duration, err error) {
		c := contender{"hbmfs", func(ctx context.Context, dir, _ string) (*running, error) {
			return mountCached(ctx, d.hbmfs, d.source, dir)
		}}
		err = c.with(ctx, d.work, "", func(r *running) error {
			began, before := time.Now(), ownCPU()
			var total atomic.Int64
			err := inTurns(ctx, readers, len(d.zips), func(_ context.Context, i int) error {
				name := filepath.Base(d.zips[i])
				n, err := readFile(filepath.Join(r.point, name[:len(name)-len(".zstd")]))
				total.Add(n)
				return err
			})
			if err == nil && total.Load() != d.bytes {
				err = fmt.Errorf("%d bytes came, of %d", total.Load(), d.bytes)
			}
			took, cpu = time.Since(began), ownCPU()-before
			daemon, cpuErr := r.cpu()
			cpu += daemon
			return errors.Join(err, cpuErr)
		})
		return took, cpu, err
	}
}

// readFile reads a file 1 MiB at a time, as dd does.
func readFile(name string) (int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return n, errors.Join(err, f.Close())
}
