package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile"
)

// bench measures one line of the table on all GPUs at once.
type bench struct {
	command *benchCommand
	base    cufile.Options
	sizes   benchSizes
	plan    benchPlan
	result  *benchResult

	readers []*cufile.Reader
	files   []*cufile.File
}

func (b *bench) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx); err != nil {
		return err
	}
	for _, mode := range b.command.modes {
		if b.plan.sequential && mode != modeSequential {
			continue
		}
		row, err := b.measure(ctx, mode)
		if err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		b.result.Rows = append(b.result.Rows, row)
	}
	return nil
}

func (b *bench) open(ctx context.Context) error {
	for _, index := range b.command.gpus {
		o := b.base
		o.Device, o.Path = index, b.plan.path
		var info unix.Stat_t
		if err := unix.Stat(b.command.name, &info); err != nil {
			return fmt.Errorf("stat %s: %w", b.command.name, err)
		}
		if b.plan.kept {
			// A gather holds at most half of what may be pinned, so that two can go on at once.
			o.Pinned = 2 * (info.Size + o.Window)
		} else if o.Path == cufile.Mapped {
			o.Pinned = movingWindows * o.Window
		}
		r, err := cufile.New(ctx, o)
		if err != nil {
			return err
		}
		b.readers = append(b.readers, r)
		f, err := r.Open(ctx, b.command.name)
		if err != nil {
			return err
		}
		b.files = append(b.files, f)
		b.result.Size = f.Size()
		if f.Size() < b.sizes.block || f.Size() < b.sizes.sample {
			return fmt.Errorf("%s has %d bytes, less than a block or sample", b.command.name, f.Size())
		}
		if b.plan.visited {
			if err := b.sequential(ctx, f, time.Time{}, &atomic.Int64{}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) close() error {
	var errs []error
	for _, f := range b.files {
		errs = append(errs, f.Close())
	}
	for _, r := range b.readers {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// measure reads in one mode on all GPUs for the time given.
func (b *bench) measure(ctx context.Context, mode string) (benchRow, error) {
	var moved atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	cpu, start := cpuSeconds(), time.Now()
	until := start.Add(time.Duration(b.command.seconds * float64(time.Second)))
	if b.plan.once {
		until = start
	}
	for _, f := range b.files {
		switch {
		case b.plan.plain:
			g.Go(func() error { return b.plainly(ctx, f, until, &moved) })
		case mode == modeSequential:
			g.Go(func() error { return b.sequential(ctx, f, until, &moved) })
		default:
			for i := range b.command.depth {
				g.Go(func() error { return b.randomly(ctx, f, mode, uint64(i), until, &moved) })
			}
		}
	}
	if err := g.Wait(); err != nil {
		return benchRow{}, err
	}
	row := benchRow{Path: b.plan.label, Mode: mode, Bytes: moved.Load(), Seconds: time.Since(start).Seconds()}
	row.GBps = float64(row.Bytes) / 1e9 / row.Seconds
	row.CPUPerGB = (cpuSeconds() - cpu) / (float64(row.Bytes) / 1e9)
	if b.result.Wall > 0 {
		row.OfWall = row.GBps / b.result.Wall
	}
	return row, nil
}

// sequential reads the file from front to end, again and again until the time is over, and at least once. The passes
// follow each other without a break, as epochs do.
func (b *bench) sequential(ctx context.Context, f *cufile.File, until time.Time, moved *atomic.Int64) error {
	const passes = 64
	var plan []cufile.Span
	for range passes {
		for at := int64(0); at < f.Size(); at += b.sizes.block {
			plan = append(plan, cufile.Span{Offset: at, Length: min(b.sizes.block, f.Size()-at)})
		}
	}
	s := f.Stream(ctx, plan, b.command.depth)
	defer s.Close()
	for i := range plan {
		if i >= len(plan)/passes && !time.Now().Before(until) {
			break
		}
		v, err := s.Next(ctx)
		if err != nil {
			return err
		}
		moved.Add(v.Len())
		v.Release()
	}
	return nil
}

// randomly reads blocks or gathers samples at random places.
func (b *bench) randomly(ctx context.Context, f *cufile.File, mode string, seed uint64, until time.Time, moved *atomic.Int64) error {
	count, length := 1, b.sizes.block
	if mode == modeGather {
		count, length = b.command.samples, b.sizes.sample
	}
	random := rand.New(rand.NewPCG(seed, 1))
	offsets := make([]int64, count)
	for first := true; first || time.Now().Before(until); first = false {
		for i := range offsets {
			offsets[i] = random.Int64N((f.Size()-length)/b.sizes.align+1) * b.sizes.align
		}
		v, err := f.Gather(ctx, offsets, length)
		if err != nil {
			return err
		}
		moved.Add(v.Len())
		v.Release()
	}
	return nil
}

// plainly reads the file as a program without hbmfs does.
func (b *bench) plainly(ctx context.Context, f *cufile.File, until time.Time, moved *atomic.Int64) error {
	for first := true; first || time.Now().Before(until); first = false {
		for at := int64(0); at < f.Size() && (at == 0 || time.Now().Before(until)); at += b.sizes.block {
			n := min(b.sizes.block, f.Size()-at)
			if err := f.Plain(ctx, at, n); err != nil {
				return err
			}
			moved.Add(n)
		}
	}
	return nil
}

// cpuSeconds is the CPU time that this process has used.
func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
