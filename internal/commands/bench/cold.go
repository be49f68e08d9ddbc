package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile"
)

// The plain reader that --cold compares with: the settings by which a tuned one is fastest on NVMe and on virtual disks.
const (
	coldThreads = 8
	coldBlock   = 8 << 20
	coldLabel   = "O_DIRECT to host, 8 x 8 MiB"
)

// measureCold reads a file that is not in the page cache: by a plain reader that knows of no GPU, and by staged, in
// turns. The rows are medians. The disk limits both, so the rate of staged is also given as a part of the plain reader's.
func (o *Options) measureCold(ctx context.Context, result *Result) (err error) {
	b := &line{opt: o, plan: plan{label: string(cufile.Staged), path: cufile.Staged, once: true}, result: result}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx); err != nil {
		return err
	}
	var plain, staged []Row
	for range o.Rounds {
		if err := forget(o.File); err != nil {
			return err
		}
		row, err := readDirect(ctx, o.File, b.size)
		if err != nil {
			return err
		}
		plain = append(plain, row)
		if err := forget(o.File); err != nil {
			return err
		}
		if row, err = b.measure(ctx, Sequential); err != nil {
			return err
		}
		row.Mode = "cold"
		staged = append(staged, row)
	}
	first, second := median(plain), median(staged)
	first.settleCold(first.GBps)
	second.settleCold(first.GBps)
	result.Rows = append(result.Rows, first, second)
	return nil
}

func (r *Row) settleCold(plain float64) {
	r.OfWall = 0 // it says nothing about a disk
	r.OfPlain = r.GBps / plain
}

func median(rows []Row) Row {
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.GBps, b.GBps) })
	return rows[len(rows)/2]
}

// forget drops a file from the page cache.
func forget(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	fd := int(f.Fd())
	// Dirty pages would stay. Where there is nothing to sync, that is none of our business.
	_ = unix.Fsync(fd)
	if err := unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop %s from the page cache: %w", name, err)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var stat unix.Cachestat_t
	if unix.Cachestat(uint(fd), &unix.CachestatRange{Len: uint64(info.Size())}, &stat, 0) != nil {
		return nil // older than Linux 6.5: staged will see for itself
	}
	const page, part = 4096, 10
	if stat.Cache*page > uint64(info.Size()/part) {
		return fmt.Errorf("%d of %d bytes of %s stay in the page cache: another process has it mapped, or it is a file of a mount: name the source's file", stat.Cache*page, info.Size(), name)
	}
	return nil
}

// refill drops a file from the page cache and brings it back in huge pages, as the mapped path does with missing pages.
func refill(ctx context.Context, name string) error {
	if err := forget(name); err != nil {
		return err
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: %w", name, err)
	}
	defer func() { _ = unix.Munmap(memory) }()   // a mapping that cannot be undone ends with the process
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // else in ordinary pages
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range coldThreads {
		g.Go(func() error {
			const step = 16 << 20
			for at := next.Add(step) - step; at < info.Size() && ctx.Err() == nil; at = next.Add(step) - step {
				if err := unix.Madvise(memory[at:min(at+step, info.Size())], unix.MADV_POPULATE_READ); err != nil {
					return fmt.Errorf("read %s at %d into the page cache: %w", name, at, err)
				}
			}
			return ctx.Err()
		})
	}
	return g.Wait()
}

// readDirect reads a file into host memory past the page cache: so many threads, each with its block.
func readDirect(ctx context.Context, name string, size int64) (Row, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return Row{}, fmt.Errorf("open %s with O_DIRECT: %w", name, err)
	}
	defer func() { _ = unix.Close(fd) }() // as above
	var moved, next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	cpu, start := cpuSeconds(), time.Now()
	for range coldThreads {
		g.Go(func() error {
			buffer, err := unix.Mmap(-1, 0, coldBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				return fmt.Errorf("allocate %d bytes: %w", coldBlock, err)
			}
			defer func() { _ = unix.Munmap(buffer) }() // a mapping that cannot be undone ends with the process
			for at := next.Add(coldBlock) - coldBlock; at < size && ctx.Err() == nil; at = next.Add(coldBlock) - coldBlock {
				n, err := unix.Pread(fd, buffer, at)
				if err != nil {
					return fmt.Errorf("read %s at %d with O_DIRECT: %w", name, at, err)
				}
				moved.Add(min(int64(n), size-at))
			}
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return Row{}, err
	}
	row := Row{Path: coldLabel, Mode: "cold", Bytes: moved.Load(), Seconds: time.Since(start).Seconds()}
	if row.Bytes < size {
		return row, fmt.Errorf("read %s with O_DIRECT: %d of %d bytes came: a file system that gives less at a time is not measured", name, row.Bytes, size)
	}
	row.settle(cpuSeconds()-cpu, 0)
	return row, nil
}
