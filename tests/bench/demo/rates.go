package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// warmPasses is how often each side is read from memory; the median is shown.
const warmPasses = 9

// rates reads the tokens three ways, cold and warm. `make bench` measures with more care.
func (d *demo) rates(ctx context.Context, s *set) error {
	sides := []side{
		{name: "source", paths: s.sources(s.bins)},
		{name: "mount", paths: s.mounted(s.bins)},
		{name: "view", paths: []string{s.view}},
	}
	all := slices.Concat(sides[0].paths, sides[1].paths, sides[2].paths)
	for i := range sides {
		sides[i].cold = "not measured" // no rate, rather than a warm one called cold
		if dropCaches(all, sides[0].paths) {
			rate, err := readRate(ctx, sides[i].paths)
			if err != nil {
				return err
			}
			sides[i].cold = fmt.Sprintf("%.2f GB/s", rate/1e9)
		}
	}
	// The sides take turns, so that a busy moment of the machine touches all of them.
	for pass := range warmPasses + 1 {
		for i := range sides {
			rate, err := readRate(ctx, sides[i].paths)
			if err != nil {
				return err
			}
			if pass > 0 { // the first filled the cache
				sides[i].warm = append(sides[i].warm, rate)
			}
		}
	}
	d.say("   %-8s %14s %14s", "", "from disk", "from memory")
	for _, side := range sides {
		slices.Sort(side.warm)
		d.say("   %-8s %14s %9.2f GB/s", side.name, side.cold, side.warm[len(side.warm)/2]/1e9)
	}
	return nil
}

// side is one way to the same tokens, and the rates it gave: in words when cold, in bytes per second when warm.
type side struct {
	name  string
	paths []string
	cold  string
	warm  []float64
}

// readRate reads files once, one after the other, and returns bytes per second.
func readRate(ctx context.Context, paths []string) (float64, error) {
	var total int64
	start := time.Now()
	for _, path := range paths {
		if err := readFile(ctx, path, 0, func(block []byte) { total += int64(len(block)) }); err != nil {
			return 0, err
		}
	}
	return float64(total) / time.Since(start).Seconds(), nil
}

// dropCaches asks the kernel to forget files and tells whether the backing ones really are gone from memory:
// tmpfs, for one, has nowhere else to keep them.
func dropCaches(files, backing []string) bool {
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			return false
		}
		// Pages that were just written are kept until they are on the disk.
		_ = unix.Fsync(int(f.Fd())) // the mount may refuse it; residency decides below
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		_ = f.Close() // read only
	}
	return !slices.ContainsFunc(backing, resident)
}

// resident tells whether more than one in a hundred of a file's pages is in memory.
func resident(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return true
	}
	defer f.Close() //nolint:errcheck // read only
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return true
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return true
	}
	defer unix.Munmap(data) //nolint:errcheck // the process ends soon
	state := make([]byte, (len(data)+os.Getpagesize()-1)/os.Getpagesize())
	// x/sys has no wrapper for mincore(2).
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)),
		uintptr(unsafe.Pointer(&state[0])))
	inMemory := 0
	for _, page := range state {
		inMemory += int(page & 1)
	}
	return errno != 0 || inMemory*100 > len(state)
}
