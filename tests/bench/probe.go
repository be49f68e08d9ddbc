package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Sizes of the accesses: a large sequential reader, and a training sample of 4096 u16 tokens.
const (
	sequentialBytes = 1 << 20
	sampleBytes     = 8 << 10
)

// probe reads a file in one pattern. It returns bytes per second; opening the file is not timed, mapping it is.
// The seed picks the random offsets, so that two sides that get the same seed do the same work.
type probe struct {
	name string
	read func(ctx context.Context, path string, seed uint64) (float64, error)
}

func probes() []probe {
	return []probe{
		{"sequential 1 MiB reads", sequential},
		{"random 8 KiB preads", randomPreads},
		{"random 8 KiB through mmap", randomMmap},
	}
}

// sequential reads the file once from its start.
func sequential(ctx context.Context, path string, _ uint64) (float64, error) {
	return timed(path, func(f *os.File, _ int64) (int64, error) {
		buf := make([]byte, sequentialBytes)
		var total int64
		for ctx.Err() == nil {
			n, err := f.Read(buf)
			total += int64(n)
			if err == io.EOF {
				return total, nil
			}
			if err != nil {
				return total, err
			}
		}
		return total, ctx.Err()
	})
}

// randomPreads reads as many bytes as the file has, by preads at any byte offset.
func randomPreads(ctx context.Context, path string, seed uint64) (float64, error) {
	return timed(path, func(f *os.File, size int64) (int64, error) {
		buf := make([]byte, sampleBytes)
		return eachSample(ctx, size, seed, func(offset int64) error {
			_, err := f.ReadAt(buf, offset)
			return err
		})
	})
}

// randomMmap maps the file anew, as nanoGPT does for each batch, and copies samples out of the mapping.
func randomMmap(ctx context.Context, path string, seed uint64) (float64, error) {
	return timed(path, func(f *os.File, size int64) (total int64, err error) {
		data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return 0, fmt.Errorf("mmap %s: %w", path, err)
		}
		defer func() { err = errors.Join(err, unix.Munmap(data)) }()
		buf := make([]byte, sampleBytes)
		return eachSample(ctx, size, seed, func(offset int64) error {
			copy(buf, data[offset:])
			return nil
		})
	})
}

// eachSample calls read with size/sampleBytes random offsets and returns the bytes covered.
func eachSample(ctx context.Context, size int64, seed uint64, read func(offset int64) error) (int64, error) {
	if size < sampleBytes {
		return 0, fmt.Errorf("a file of %d bytes is too small to sample", size)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	var total int64
	for i := range size / sampleBytes {
		if i%4096 == 0 && ctx.Err() != nil {
			return total, ctx.Err()
		}
		if err := read(random.Int64N(size - sampleBytes + 1)); err != nil {
			return total, err
		}
		total += sampleBytes
	}
	return total, nil
}

// timed opens path, times read and returns its rate. A pass that covered no byte is an error, not a rate.
func timed(path string, read func(f *os.File, size int64) (int64, error)) (float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("measure: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("measure: %w", err)
	}
	start := time.Now()
	total, err := read(f, info.Size())
	seconds := time.Since(start).Seconds()
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", path, err)
	}
	if total == 0 {
		return 0, fmt.Errorf("measure %s: it is empty", path)
	}
	return float64(total) / seconds, nil
}
