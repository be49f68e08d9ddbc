package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// beside measures a program that writes, alone and beside a drain.
func (b *bench) beside(ctx context.Context, rounds int, each time.Duration) error {
	var ratios, drained []float64
	for i := range rounds {
		alone, err := b.write(ctx, each)
		if err != nil {
			return err
		}
		if err := b.forget(); err != nil {
			return err
		}
		was, began := b.sink.bytes.Load(), time.Now()
		ctx, cancel := context.WithCancel(ctx)
		cmd := b.command(ctx, "hbmfs", "--watch")
		cmd.Env = b.environment()
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		if err := cmd.Start(); err != nil {
			cancel()
			return err
		}
		with, err := b.write(ctx, each)
		rate := float64(b.sink.bytes.Load()-was) / time.Since(began).Seconds()
		cancel()
		var ended *exec.ExitError
		if waited := cmd.Wait(); err != nil || waited != nil && !errors.As(waited, &ended) && !errors.Is(waited, context.Canceled) {
			return errors.Join(err, waited)
		}
		fmt.Fprintf(os.Stderr, "round %d: alone %.2f GB/s, beside a drain %.2f GB/s; the drain %.0f MB/s\n", i+1, alone/1e9, with/1e9, rate/1e6)
		ratios, drained = append(ratios, with/alone), append(drained, rate/1e6)
	}
	slices.Sort(ratios)
	slices.Sort(drained)
	fmt.Printf("writes beside a drain are %.2f of those alone (%.2f to %.2f), %d rounds; the drain sent %.0f MB/s (%.0f to %.0f)\n",
		median(ratios), ratios[0], ratios[len(ratios)-1], rounds, median(drained), drained[0], drained[len(drained)-1])
	return nil
}

// forget drops the checkpoint from the page cache.
func (b *bench) forget() error {
	names, err := filepath.Glob(filepath.Join(b.work, "step-1", "*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// write writes files past the page cache for so long, and gives the bytes a second.
func (b *bench) write(ctx context.Context, long time.Duration) (rate float64, err error) {
	const block, file = 8 << 20, 1 << 30
	data, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Munmap(data) }() // it was written
	path := filepath.Join(b.work, "written")
	began, n := time.Now(), int64(0)
	for time.Since(began) < long && ctx.Err() == nil {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_DIRECT, 0o644)
		if err != nil {
			return 0, err
		}
		for at := int64(0); at < file && time.Since(began) < long && err == nil; at += block {
			_, err = f.WriteAt(data, at)
			n += block
		}
		if err := errors.Join(err, f.Sync(), f.Close(), os.Remove(path)); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), ctx.Err()
}
