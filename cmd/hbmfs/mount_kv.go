package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/fs/namespaces"
	"github.com/hbmfs/hbmfs/internal/handover"
	"github.com/hbmfs/hbmfs/internal/kv"
	"github.com/hbmfs/hbmfs/internal/size"
)

// kvFlags are --kv and what belongs to it.
type kvFlags struct {
	on           bool
	size, memory size.Amount
	disk         string // --disk-io
}

func (k *kvFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&k.on, "kv", false, "mount a KV volume: a directory that keeps blocks of engines' KV caches; see below")
	f.Var(&k.size, "size", "with --kv: bytes of the directory's disk that blocks and their index may take, such as 200GiB; they are allocated at once")
	f.Var(&k.memory, "memory", "with --kv: bytes of memory that blocks may take before they go to the disk, such as 32GiB")
	f.StringVar(&k.disk, "disk-io", "", "with --kv: direct reads and writes blocks on the disk past the page cache, where its filesystem allows that; buffered goes through it; without this flag, direct where --memory is given")
	f.Lookup("size").DefValue, f.Lookup("memory").DefValue = "", ""
}

// The values of --disk-io.
const (
	diskDirect   = "direct"
	diskBuffered = "buffered"
)

// buffered says why the disk tier is read and written through the page cache; empty where it is not. The page cache gives blocks that it has
// two to three times sooner than the disk, so it is of use where no memory tier has these.
func (k *kvFlags) buffered() string {
	switch {
	case k.disk == diskBuffered:
		return "the volume was mounted with --disk-io buffered"
	case k.disk == "" && k.memory == 0:
		return "the volume was mounted without --memory, and the page cache is its memory (--disk-io direct passes it)"
	}
	return ""
}

// leastSize is the least that --size may be.
const leastSize = 1 << 20

// checkKV refuses what a KV volume cannot be made of.
func (c *mountCommand) checkKV() error {
	k := &c.kv
	switch {
	case !k.on && (k.size != 0 || k.memory != 0 || k.disk != ""):
		return usageError{errors.New("--size, --memory and --disk-io belong to --kv: give that, too")}
	case !k.on:
		return nil
	case k.disk != "" && k.disk != diskDirect && k.disk != diskBuffered:
		return usageError{fmt.Errorf("--disk-io: want direct or buffered, not %q", k.disk)}
	case c.checkpoints:
		return usageError{errors.New("--kv and --checkpoints are different volumes: give one of them")}
	case k.size < leastSize:
		return usageError{fmt.Errorf("--kv needs --size, the bytes that it may take of the disk of %s, and at least 1MiB: such as --size 200GiB", c.source)}
	case k.memory != 0 && k.memory < leastSize:
		return usageError{errors.New("--memory: want at least 1MiB, or none")}
	}
	if free := memoryFree(); free > 0 && int64(k.memory) > free {
		return fmt.Errorf("--memory %s is more than this machine has free (%s): name less", size.Binary(int64(k.memory)), size.Decimal(free))
	}
	return c.checkVolume("--kv", "blocks are", "namespaces have the owners who made them")
}

// memoryFree is how much memory programs can get without swapping, as the kernel estimates it; 0 where it does not.
func memoryFree() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }() // opened for reading
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			n := int64(0)
			_, _ = fmt.Sscan(rest, &n) // 0 where it is none
			return n << 10
		}
	}
	return 0
}

// openKV opens the directory of a KV volume.
func (c *mountCommand) openKV(opt *fs.Options) (*mountSource, error) {
	s, err := kv.New(kv.Options{Directory: c.source, Size: int64(c.kv.size), Memory: int64(c.kv.memory), Buffered: c.kv.buffered(), Log: opt.Log, Life: opt.Life})
	if err != nil {
		return nil, err
	}
	mounted := s.Load
	if !opt.Life.Adopts() { // otherwise the daemon before has it still
		if err := s.Load(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		mounted = func() error { return nil }
	}
	v := namespaces.New(s)
	opt.Source, opt.KV, opt.Around, opt.MayWrite, opt.Notes = s.Directory(), s, v.Around, v.MayWrite, c.notes
	return &mountSource{
		listing: v.Listing(),
		what: func() string {
			what := fmt.Sprintf("%d namespaces, %s of disk", len(s.Namespaces()), size.Binary(int64(c.kv.size)))
			if c.kv.memory > 0 {
				what += ", " + size.Binary(int64(c.kv.memory)) + " of memory"
			}
			return what
		},
		mounted: mounted,
		beside:  func(ctx context.Context) func() { return runKV(ctx, s) },
		state:   func() handover.State { return s.State() },
		ended:   func() {},
		close: func() {
			if err := s.Close(); err != nil {
				opt.Log.Error("the KV volume could not be closed in order: its next mount may begin anew", "error", err)
			}
		},
	}, nil
}

// runKV copies blocks between the tiers until the function that it returns is called.
func runKV(ctx context.Context, s *kv.Store) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.Run(ctx)
	}()
	return func() {
		cancel()
		<-over
	}
}
