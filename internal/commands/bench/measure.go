package bench

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

// line measures one line of the table on all GPUs at once.
type line struct {
	opt    *Options
	plan   plan
	result *Result

	readers []*cufile.Reader
	files   []*cufile.File
	size    int64 // bytes of the file that are used
}

func (b *line) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.open(ctx); err != nil {
		return err
	}
	for _, mode := range b.opt.Modes {
		if b.plan.sequential && mode != Sequential {
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

func (b *line) open(ctx context.Context) error {
	o := b.opt.Reader
	if o.Path = b.plan.path; o.Path == cufile.Mapped {
		o.Pinned = movingWindows * o.Window
		if b.plan.kept {
			o.Pinned = b.opt.whole + o.Window
		}
	}
	for _, index := range b.opt.GPUs {
		o.Device = index
		r, err := cufile.New(ctx, o)
		if err != nil {
			return err
		}
		b.readers = append(b.readers, r)
		f, err := r.Open(ctx, b.opt.File)
		if err != nil {
			return err
		}
		b.files = append(b.files, f)
	}
	b.size = b.result.Size
	if b.plan.visited {
		for _, f := range b.files {
			if err := b.sequential(ctx, f, time.Time{}, &atomic.Int64{}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *line) close() error {
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
func (b *line) measure(ctx context.Context, mode string) (Row, error) {
	moved, count := make([]atomic.Int64, len(b.files)), atomic.Int64{}
	g, ctx := errgroup.WithContext(ctx)
	cpu, start := cpuSeconds(), time.Now()
	until := start.Add(time.Duration(b.opt.Seconds * float64(time.Second)))
	if b.plan.once {
		until = start
	}
	for i, f := range b.files {
		switch {
		case b.plan.plain:
			g.Go(func() error { return b.plainly(ctx, f, until, &moved[i]) })
		case mode == Sequential:
			g.Go(func() error { return b.sequential(ctx, f, until, &moved[i]) })
		default:
			for k := range b.opt.Depth {
				seed := uint64(i)<<32 | uint64(k)
				g.Go(func() error {
					if mode == Samples {
						return b.shuffled(ctx, f, seed, until, &moved[i], &count)
					}
					return b.randomly(ctx, f, mode, seed, until, &moved[i])
				})
			}
		}
	}
	if err := g.Wait(); err != nil {
		return Row{}, err
	}
	row := Row{Path: b.plan.label, Mode: mode, Seconds: time.Since(start).Seconds()}
	row.Samples = float64(count.Load()) / row.Seconds
	for i := range moved {
		row.Bytes += moved[i].Load()
		if len(moved) > 1 {
			row.PerGPU = append(row.PerGPU, float64(moved[i].Load())/1e9/row.Seconds)
		}
	}
	row.settle(cpuSeconds()-cpu, b.result.Wall)
	return row, nil
}

// settle computes the rates of bytes and seconds.
func (r *Row) settle(cpu, wall float64) {
	r.GBps = float64(r.Bytes) / 1e9 / r.Seconds
	r.CPUPerGB = cpu / (float64(r.Bytes) / 1e9)
	if wall > 0 {
		r.OfWall = r.GBps / wall
	}
}

// sequential reads the file from front to end, again and again until the time is over, and at least once. The passes
// follow each other without a break, as epochs do.
func (b *line) sequential(ctx context.Context, f *cufile.File, until time.Time, moved *atomic.Int64) error {
	const passes = 64
	var plan []cufile.Span
	for range passes {
		for at := int64(0); at < b.size; at += b.opt.Block {
			plan = append(plan, cufile.Span{Offset: at, Length: min(b.opt.Block, b.size-at)})
		}
	}
	s := f.Stream(ctx, plan, b.opt.Depth)
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
func (b *line) randomly(ctx context.Context, f *cufile.File, mode string, seed uint64, until time.Time, moved *atomic.Int64) error {
	count, length := 1, b.opt.Block
	if mode == Gather {
		count, length = b.opt.Samples, b.opt.Sample
	}
	random := rand.New(rand.NewPCG(seed, 1))
	offsets := make([]int64, count)
	for first := true; first || time.Now().Before(until); first = false {
		for i := range offsets {
			offsets[i] = random.Int64N((b.size-length)/b.opt.Align+1) * b.opt.Align
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
func (b *line) plainly(ctx context.Context, f *cufile.File, until time.Time, moved *atomic.Int64) error {
	for first := true; first || time.Now().Before(until); first = false {
		for at := int64(0); at < b.size && (at == 0 || time.Now().Before(until)); at += b.opt.Block {
			n := min(b.opt.Block, b.size-at)
			if err := f.Plain(ctx, at, n); err != nil {
				return err
			}
			moved.Add(n)
		}
	}
	return nil
}

// measureWall measures the pinned copies of all GPUs at once, and describes the GPUs.
func (o *Options) measureWall(ctx context.Context, result *Result) (err error) {
	if o.GPUs[0] == cufile.HostDevice {
		return nil
	}
	var readers []*cufile.Reader
	defer func() {
		for _, r := range readers {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, index := range o.GPUs {
		on := o.Reader
		on.Device = index
		r, err := cufile.New(ctx, on)
		if err != nil {
			return err
		}
		readers = append(readers, r)
		result.GPUs = append(result.GPUs, r.GPU())
	}
	rates := make([]float64, len(readers))
	g, ctx := errgroup.WithContext(ctx)
	for i, r := range readers {
		g.Go(func() (err error) {
			rates[i], err = r.Wall(ctx, time.Duration(o.Seconds/2*float64(time.Second)))
			return err
		})
	}
	err = g.Wait()
	for _, rate := range rates {
		result.Wall += rate / 1e9
		if len(rates) > 1 {
			result.Walls = append(result.Walls, rate/1e9)
		}
	}
	return err
}

// cpuSeconds is the CPU time that this process has used.
func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
