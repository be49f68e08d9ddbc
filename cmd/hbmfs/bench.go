package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/size"
)

// benchCommand is hbmfs bench.
type benchCommand struct {
	device  deviceFlags
	paths   []string
	modes   []string
	block   string
	sample  string
	align   string
	samples int
	threads int
	depth   int
	gpus    []int
	slot    string
	window  string
	length  string
	refill  bool
	cold    bool
	rounds  int
	seconds float64
	asJSON  bool
	name    string

	stdout, stderr io.Writer
}

func newBenchCommand() *cobra.Command {
	c := &benchCommand{}
	cmd := &cobra.Command{
		Use:   "bench FILE",
		Short: "Measure every path from a file into GPU memory, beside a plain read and copy",
		Long: `Read a file by each path, in three ways, for a while each:

  sequential  the whole file in blocks, again and again
  random      blocks at random places
  gather      many small samples at random places, into one tensor

plain is one thread that reads into ordinary memory and copies to the GPU: what a program does without hbmfs. wall is
a copy of pinned memory to the GPU, to all of --gpus at once, which no path can beat; rates are also given as a part of
it. mapped comes three times: kept, with all registrations made before; moving, through 32 windows that are registered
and given up as the reading moves on, in a file that was read so before; and first, the same in a file that was just
opened, one pass. Several GPUs share registrations.

Each path is measured with the page cache as it finds it: the first pass over a cold file is the disk's rate. What was
written or read in small pieces lies in small pages, which take longer to register: --refill drops the file from the page
cache and brings it back in huge pages first. --cold measures reading past the page cache instead, beside a tuned plain reader, in
turns. CPU s/GB is what this process used, the kernel's work for it included.`,
		Example: "  hbmfs bench /mnt/pile/.hbmfs/views/tokens.bin\n  hbmfs bench --to host --modes sequential shard.bin\n  hbmfs bench --gpus 0,1,2,3 --paths mapped,staged --json shard.bin\n" +
			"  hbmfs bench --paths moving,first --modes sequential --window 256MiB shard.bin\n  hbmfs bench --cold --length 4GiB shard.bin",
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.name, c.stdout, c.stderr = args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()
			return onMounts(cmd, args, c.run)
		},
	}
	f := cmd.Flags()
	c.device.add(f)
	f.StringSliceVar(&c.paths, "paths", nil, "staged, mapped (or only kept, moving or first of it), compat, direct, host (default staged,mapped; host with --to host)")
	f.StringSliceVar(&c.modes, "modes", []string{modeSequential, modeRandom, modeGather}, "sequential, random, gather")
	f.StringVar(&c.block, "block", "64MiB", "bytes of a block")
	f.StringVar(&c.sample, "sample", "8KiB", "bytes of a sample of gather")
	f.StringVar(&c.align, "align", "2", "random places are multiples of this")
	f.IntVar(&c.samples, "samples", 4096, "samples of a gather")
	f.IntVar(&c.threads, "threads", 0, "threads for each GPU, 0 for what auto would take")
	f.IntVar(&c.depth, "depth", 8, "blocks or gathers under way at once")
	f.IntSliceVar(&c.gpus, "gpus", nil, "GPUs to read into at once (instead of --to)")
	f.StringVar(&c.slot, "slot", "4MiB", "bytes that a thread of staged reads at a time; each pins three of them")
	f.StringVar(&c.window, "window", "128MiB", "bytes that mapped registers at a time")
	f.Float64Var(&c.seconds, "seconds", 2, "seconds for each measurement")
	f.StringVar(&c.length, "length", "1PiB", "bytes of the file to use, from its front")
	f.BoolVar(&c.refill, "refill", false, "drop the file from the page cache and bring it back in huge pages first")
	f.BoolVar(&c.cold, "cold", false, "measure reading a file that is not in the page cache")
	f.IntVar(&c.rounds, "rounds", 3, "turns of --cold")
	f.BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	return cmd
}

// The ways to read.
const (
	modeSequential = "sequential"
	modeRandom     = "random"
	modeGather     = "gather"
)

// plainLabel is the line of the baseline.
const plainLabel = "plain"

// movingWindows is how many windows may be registered at once when they move. They are given up by halves.
const movingWindows = 32

// benchRow is one measurement.
type benchRow struct {
	Path     string    `json:"path"` // plain, staged, mapped kept, mapped once, ...
	Mode     string    `json:"mode"`
	Bytes    int64     `json:"bytes"`
	Seconds  float64   `json:"seconds"`
	GBps     float64   `json:"gb_per_s"`                   // 1e9 bytes
	OfWall   float64   `json:"of_wall"`                    // of the pinned copy, 0 on the host
	OfPlain  float64   `json:"of_plain,omitempty"`         // with --cold: of the plain reader
	CPUPerGB float64   `json:"cpu_s_per_gb"`               // user and system, of this process
	PerGPU   []float64 `json:"gb_per_s_per_gpu,omitempty"` // where there are several
	Skipped  string    `json:"skip,omitempty"`             // why there is no measurement
}

// benchResult is the result, and the JSON that --json prints.
type benchResult struct {
	File     string       `json:"file"`
	Size     int64        `json:"size"`
	GPUs     []cufile.GPU `json:"gpus"`
	CPUs     int          `json:"cpus"`
	Block    int64        `json:"block"`
	Sample   int64        `json:"sample"`
	Align    int64        `json:"align"`
	Samples  int          `json:"samples"`
	Threads  int          `json:"threads"`
	Depth    int          `json:"depth"`
	Slot     int64        `json:"slot"`
	Window   int64        `json:"window"`
	Refilled bool         `json:"refilled"`
	Wall     float64      `json:"wall_gb_per_s"` // pinned memory to HBM, all GPUs at once
	Walls    []float64    `json:"wall_gb_per_s_per_gpu,omitempty"`
	Rows     []benchRow   `json:"rows"`
}

// benchPlan is one line of the table before it is measured.
type benchPlan struct {
	label string
	path  cufile.Path

	plain      bool // the baseline instead of a path
	kept       bool // registrations of the whole file are kept
	visited    bool // the file was read once before
	sequential bool // other modes say nothing about it
	once       bool // one pass, however short
}

func (c *benchCommand) run(ctx context.Context) error {
	base, sizes, err := c.settle()
	if err != nil {
		return err
	}
	plans, err := c.plans()
	if err != nil {
		return err
	}
	result := &benchResult{File: c.name, CPUs: runtime.NumCPU(), Block: sizes.block, Sample: sizes.sample, Align: sizes.align, Samples: c.samples, Threads: c.threads, Depth: c.depth,
		Slot: sizes.slot, Window: sizes.window, Refilled: c.refill}
	if err := c.measureFile(&sizes, result); err != nil {
		return err
	}
	if c.refill {
		if err := refill(ctx, c.name); err != nil {
			return err
		}
	}
	if err := c.measureWall(ctx, base, result); err != nil {
		return err
	}
	if c.cold {
		err = c.measureCold(ctx, base, sizes, result)
	} else {
		err = c.measurePaths(ctx, base, sizes, plans, result)
	}
	if err != nil {
		return err
	}
	if c.asJSON {
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(result)
	} else {
		c.print(result)
	}
	return errors.Join(err, c.nothing(result))
}

// nothing is the error where none of the paths that were asked for could be measured.
func (c *benchCommand) nothing(r *benchResult) error {
	why := ""
	for _, row := range r.Rows {
		if row.Skipped == "" && row.Path != plainLabel {
			return nil
		}
		if row.Skipped != "" {
			why = row.Path + ": " + row.Skipped
		}
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("no path could be measured: %s", why)
}

// measureFile finds out how much of the file is used. Where that is too little, no path could be measured.
func (c *benchCommand) measureFile(sizes *benchSizes, result *benchResult) error {
	info, err := os.Stat(c.name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file: name a shard, or a file of a mount", c.name)
	}
	sizes.file, result.Size = info.Size(), min(info.Size(), sizes.length)
	if result.Size < sizes.block || result.Size < sizes.sample {
		return fmt.Errorf("%d bytes of %s are used, less than a block or sample: name a larger file, or smaller ones with --block and --sample", result.Size, c.name)
	}
	return nil
}

func (c *benchCommand) measurePaths(ctx context.Context, base cufile.Options, sizes benchSizes, plans []benchPlan, result *benchResult) error {
	for _, p := range plans {
		b := &bench{command: c, base: base, sizes: sizes, plan: p, result: result}
		if err := b.run(ctx); err != nil {
			if ctx.Err() != nil {
				return err
			}
			// One path that does not work here is a finding; the others are measured all the same.
			result.Rows = append(result.Rows, benchRow{Path: p.label, Mode: "-", Skipped: err.Error()})
		}
	}
	return nil
}

type benchSizes struct {
	block, sample, align, slot, window, length int64
	file                                       int64 // all of it
}

// settle reads the flags.
func (c *benchCommand) settle() (o cufile.Options, s benchSizes, err error) {
	c.device.path = string(cufile.Auto)
	if o, err = c.device.options(); err != nil {
		return o, s, err
	}
	for _, f := range []struct {
		flag, text string
		to         *int64
	}{{"block", c.block, &s.block}, {"sample", c.sample, &s.sample}, {"align", c.align, &s.align}, {"slot", c.slot, &s.slot}, {"window", c.window, &s.window}, {"length", c.length, &s.length}} {
		if *f.to, err = size.Parse(f.text); err != nil {
			return o, s, usageError{fmt.Errorf("--%s: %w", f.flag, err)}
		}
	}
	const most = 1 << 30
	if s.block > most || s.sample > most || c.samples < 1 || c.depth < 1 || c.depth > 256 || int64(c.samples) > most/s.sample || c.seconds <= 0 || c.seconds > 3600 {
		return o, s, usageError{errors.New("a block and a gather have at most 1 GiB, a depth is 1 to 256, and seconds are up to 3600")}
	}
	if c.cold && (o.Device == cufile.HostDevice || len(c.gpus) > 1 || c.refill || c.rounds < 1 || c.rounds > 100) {
		return o, s, usageError{errors.New("--cold is for one GPU and 1 to 100 rounds, and not with --refill")}
	}
	for _, m := range c.modes {
		if m != modeSequential && m != modeRandom && m != modeGather {
			return o, s, usageError{fmt.Errorf("--modes knows sequential, random and gather, not %q", m)}
		}
	}
	if c.gpus == nil {
		c.gpus = []int{o.Device}
	}
	o.Threads, o.Slot, o.Window, o.Readers = c.threads, s.slot, s.window, len(c.gpus)
	const page = 64 << 10
	o.Arena = int64(c.depth+1) * (max(s.block, s.sample*int64(c.samples)) + page)
	return o, s, nil
}

// plans makes the lines of the table.
func (c *benchCommand) plans() ([]benchPlan, error) {
	onHost := c.gpus[0] == cufile.HostDevice
	names := c.paths
	if names == nil {
		names = []string{string(cufile.Staged), string(cufile.Mapped)}
		if onHost {
			names = []string{string(cufile.Host)}
		}
	}
	first := cufile.Staged
	if onHost {
		first = cufile.Host
	}
	plans := []benchPlan{{label: plainLabel, path: first, plain: true, sequential: true}}
	kept := benchPlan{label: "mapped kept", path: cufile.Mapped, kept: true, visited: true}
	moving := benchPlan{label: "mapped moving", path: cufile.Mapped, visited: true, sequential: true}
	once := benchPlan{label: "mapped first", path: cufile.Mapped, sequential: true, once: true}
	for _, name := range names {
		switch name {
		case string(cufile.Mapped):
			plans = append(plans, kept, moving, once)
		case "kept":
			plans = append(plans, kept)
		case "moving":
			plans = append(plans, moving)
		case "first":
			plans = append(plans, once)
		default:
			path, err := cufile.ParsePath(name)
			if err != nil {
				return nil, usageError{err}
			}
			plans = append(plans, benchPlan{label: name, path: path})
		}
	}
	return plans, nil
}
