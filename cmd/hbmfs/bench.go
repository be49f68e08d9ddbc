package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/commands/bench"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// benchCommand is hbmfs bench.
type benchCommand struct {
	printer
	device  deviceFlags
	measure bench.Options
	threads int

	block, sample, align, slot, window, length size.Flag
}

func newBenchCommand() *cobra.Command {
	c := &benchCommand{block: 64 << 20, sample: 8 << 10, align: 2, slot: 2 << 20, window: 128 << 20, length: 1 << 50}
	cmd := c.work(&cobra.Command{
		Use:   "bench FILE",
		Short: "Measure every path from a file into GPU memory",
		Long: `Read a file by each path, in these ways, for a while each:

  sequential  the whole file in blocks, again and again
  random      blocks at random places
  gather      many small samples at random places, into one tensor
  samples     whole samples of a field at random, up to --block bytes and --samples of them, into one tensor

samples is for values of a field in a mount's views: fields/NAME.npy, or fields/NAME.values.npy.

plain is one thread that reads into ordinary memory and copies to the GPU, as a program without hbmfs does. wall is a copy of
pinned memory to the GPU, to all of --gpus at once. No path can beat it, so rates are also given as a part of it. mapped comes
three times. kept has all registrations made before. moving registers and gives up 32 windows as the reading moves on, in a file
that was read so before. first is one pass of the same in a file that was just opened. Several GPUs share registrations.

Each path is measured with the page cache as it finds it: the first pass over a cold file is the disk's rate. A file that was
written or read in small pieces lies in small pages, which take longer to register. --refill first reads it anew into huge pages.
CPU s/GB is the processor time of this process, with the kernel's work for it.`,
		Example: "  hbmfs bench /mnt/pile/.hbmfs/views/tokens.bin\n  hbmfs bench --modes samples /mnt/images/.hbmfs/views/fields/jpg.values.npy\n  hbmfs bench --to host --modes sequential shard.bin\n  hbmfs bench --gpus 0,1,2,3 --paths mapped,staged --json shard.bin\n" +
			"  hbmfs bench --paths moving,first --modes sequential --window 256MiB shard.bin",
	}, exactArgs(1), c.run)
	f := cmd.Flags()
	c.device.add(cmd)
	f.StringSliceVar(&c.measure.Paths, "paths", nil, "`paths` to measure: staged, mapped, or one of its ways (kept, moving, first), compat, direct, host (default: staged,mapped)")
	completeFlag(cmd, "paths", "staged", "mapped", "kept", "moving", "first", "compat", "direct", "host")
	f.StringSliceVar(&c.measure.Modes, "modes", nil, "`ways` to read: sequential, random, gather, samples (default: the first three, and samples for values of a field)")
	completeFlag(cmd, "modes", bench.Sequential, bench.Random, bench.Gather, bench.Samples)
	f.Var(&c.block, "block", "bytes of a block")
	f.Var(&c.sample, "sample", "bytes of a sample of gather")
	f.Var(&c.align, "align", "random places are multiples of this")
	f.IntVar(&c.measure.Samples, "samples", 4096, "samples of a gather, or at most of a batch of samples")
	f.IntVar(&c.threads, "threads", 0, "threads for each GPU; 0 takes as many as auto")
	f.IntVar(&c.measure.Depth, "depth", 8, "blocks or gathers under way at once")
	f.IntSliceVar(&c.measure.GPUs, "gpus", nil, "`GPUs` to read into at once, as in 0,1,2,3, instead of --to")
	f.Var(&c.slot, "slot", "bytes that a thread of staged reads at a time; each thread pins three slots")
	f.Var(&c.window, "window", "bytes that mapped registers at a time")
	f.Float64Var(&c.measure.Seconds, "seconds", 2, "seconds for each measurement")
	f.Var(&c.length, "length", "use only the first bytes of the file")
	f.BoolVar(&c.measure.Refill, "refill", false, "first read the file anew into huge pages of the page cache")
	return cmd
}

func (c *benchCommand) run(ctx context.Context, paths []string) error {
	c.measure.File = paths[0]
	if err := c.settle(); err != nil {
		return cli.Mistake{Err: err}
	}
	result, err := c.measure.Measure(ctx)
	if err != nil {
		return c.device.explain(err)
	}
	return errors.Join(c.print(result, func() { c.write(result) }), result.Nothing())
}

// settle reads the flags.
func (c *benchCommand) settle() (err error) {
	o := &c.measure
	c.device.path = string(cufile.Auto)
	if o.Reader, err = c.device.options(); err != nil {
		return err
	}
	o.Block, o.Sample, o.Align, o.Length = int64(c.block), int64(c.sample), int64(c.align), int64(c.length)
	o.Reader.Slot, o.Reader.Window = int64(c.slot), int64(c.window)
	if o.GPUs == nil {
		o.GPUs = []int{o.Reader.Device}
	}
	o.Reader.Threads = c.threads
	return o.Check()
}
