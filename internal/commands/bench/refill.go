package bench

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

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
	const threads = 8
	for range threads {
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
