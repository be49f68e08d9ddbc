// Package bench measures the rate of each path from a file into memory of a GPU. Beside them it measures a plain reader
// and the wall: a copy of pinned memory, which no path can beat.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/hbmfs/hbmfs/cufile"
)

// Options select the measurements.
type Options struct {
	File    string
	Paths   []string // of cufile, or kept, moving, first: ways of mapped; nil for the usual ones
	Modes   []string // nil for all that the file has
	GPUs    []int    // or cufile.HostDevice alone
	Reader  cufile.Options
	Block   int64 // bytes
	Sample  int64 // bytes
	Align   int64 // bytes: random places are multiples of it
	Length  int64 // bytes of the file that are used at most
	Samples int   // of a gather, and at most of a batch of whole samples
	Depth   int   // blocks or gathers under way at once
	Refill  bool  // bring the file into the page cache in huge pages first
	Seconds float64

	whole int64    // bytes of the file
	field *samples // of the file; nil where it holds no field
}

// Check refuses options that cannot be measured.
func (o *Options) Check() error {
	const most = 1 << 30
	if o.Block > most || o.Sample > most || o.Samples < 1 || o.Depth < 1 || o.Depth > 256 || int64(o.Samples) > most/o.Sample || o.Seconds <= 0 || o.Seconds > 3600 {
		return errors.New("a block and a gather have at most 1 GiB, a depth is 1 to 256, and seconds are up to 3600")
	}
	for _, m := range o.Modes {
		if m != Sequential && m != Random && m != Gather && m != Samples {
			return fmt.Errorf("--modes knows sequential, random, gather and samples, not %q", m)
		}
	}
	_, err := o.plans()
	return err
}

// Measure measures. The error is that of a result without any figure, too.
func (o *Options) Measure(ctx context.Context) (*Result, error) {
	plans, err := o.plans()
	if err != nil {
		return nil, err
	}
	result := &Result{File: o.File, CPUs: runtime.NumCPU(), Block: o.Block, Sample: o.Sample, Align: o.Align, Samples: o.Samples, Threads: o.Reader.Threads, Depth: o.Depth,
		Slot: o.Reader.Slot, Window: o.Reader.Window, Refilled: o.Refill}
	if err := o.measureFile(result); err != nil {
		return nil, err
	}
	most, err := o.findSamples()
	if err != nil {
		return nil, err
	}
	const page = 64 << 10
	o.Reader.Readers = len(o.GPUs)
	o.Reader.Arena = int64(o.Depth+1) * (max(o.Block, most, o.Sample*int64(o.Samples)) + page)
	if o.Refill {
		if err := refill(ctx, o.File); err != nil {
			return nil, err
		}
	}
	if err := o.measureWall(ctx, result); err != nil {
		return nil, err
	}
	if err := o.measurePaths(ctx, plans, result); err != nil {
		return nil, err
	}
	return result, nil
}

// The ways to read.
const (
	Sequential = "sequential"
	Random     = "random"
	Gather     = "gather"
	Samples    = "samples"
)

// Plain is the line of the baseline.
const Plain = "plain"

// movingWindows is how many windows may be registered at once when they move. They are given up by halves.
const movingWindows = 32

// Row is one measurement.
type Row struct {
	Path     string    `json:"path"` // plain, staged, mapped kept, mapped once, ...
	Mode     string    `json:"mode"`
	Bytes    int64     `json:"bytes"`
	Seconds  float64   `json:"seconds"`
	GBps     float64   `json:"gb_per_s"`                   // 1e9 bytes
	OfWall   float64   `json:"of_wall"`                    // of the pinned copy, 0 on the host
	CPUPerGB float64   `json:"cpu_s_per_gb"`               // user and system, of this process
	Samples  float64   `json:"samples_per_s,omitempty"`    // of mode samples
	PerGPU   []float64 `json:"gb_per_s_per_gpu,omitempty"` // where there are several
	Skipped  string    `json:"skip,omitempty"`             // why there is no measurement
}

// Result is the result, and the JSON that --json prints.
type Result struct {
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
	Rows     []Row        `json:"rows"`
}

// plan is one line of the table before it is measured.
type plan struct {
	label string
	path  cufile.Path

	plain      bool // the baseline instead of a path
	kept       bool // registrations of the whole file are kept
	visited    bool // the file was read once before
	sequential bool // other modes say nothing about it
	once       bool // one pass, however short
}

// Nothing is the error where none of the paths that were asked for could be measured.
func (r *Result) Nothing() error {
	why := ""
	for _, row := range r.Rows {
		if row.Skipped == "" && row.Path != Plain {
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
func (o *Options) measureFile(result *Result) error {
	info, err := os.Stat(o.File)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file: name a shard, or a file of a mount", o.File)
	}
	o.whole, result.Size = info.Size(), min(info.Size(), o.Length)
	if result.Size < o.Block || result.Size < o.Sample {
		return fmt.Errorf("%d bytes of %s are used, less than a block or sample: name a larger file, or smaller ones with --block and --sample", result.Size, o.File)
	}
	return nil
}

// findSamples finds the samples of the file, and the modes that it can be read in. It returns the bytes of the largest sample.
func (o *Options) findSamples() (largest int64, err error) {
	asked := slices.Contains(o.Modes, Samples)
	if o.Modes != nil && !asked {
		return 0, nil
	}
	const most = 1 << 30
	if o.field, err = samplesOf(o.File, o.Length); o.field != nil && err == nil {
		largest = o.field.largest()
		switch {
		case o.field.count == 0:
			err = fmt.Errorf("%s has no sample in its first bytes: give a larger --length", o.File)
		case largest > most:
			err = fmt.Errorf("a sample of %s has %d bytes, more than 1 GiB", o.File, largest)
		}
	}
	if err != nil && !asked {
		o.field, largest, err = nil, 0, nil // the other modes can be measured
	}
	switch {
	case err != nil:
		return 0, err
	case asked && o.field == nil:
		return 0, fmt.Errorf("%s holds no field of samples: name fields/NAME.npy or fields/NAME.values.npy of a mount's views", o.File)
	case o.Modes == nil:
		o.Modes = []string{Sequential, Random, Gather}
		if o.field != nil {
			o.Modes = append(o.Modes, Samples)
		}
	}
	return largest, nil
}

func (o *Options) measurePaths(ctx context.Context, plans []plan, result *Result) error {
	for _, p := range plans {
		b := &line{opt: o, plan: p, result: result}
		if err := b.run(ctx); err != nil {
			if ctx.Err() != nil {
				return err
			}
			// One path that does not work here is a finding; the others are measured all the same.
			result.Rows = append(result.Rows, Row{Path: p.label, Mode: "-", Skipped: err.Error()})
		}
	}
	return nil
}

// plans makes the lines of the table.
func (o *Options) plans() ([]plan, error) {
	onHost := o.GPUs[0] == cufile.HostDevice
	names := o.Paths
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
	plans := []plan{{label: Plain, path: first, plain: true, sequential: true}}
	kept := plan{label: "mapped kept", path: cufile.Mapped, kept: true, visited: true}
	moving := plan{label: "mapped moving", path: cufile.Mapped, visited: true, sequential: true}
	once := plan{label: "mapped first", path: cufile.Mapped, sequential: true, once: true}
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
				return nil, err
			}
			plans = append(plans, plan{label: name, path: path})
		}
	}
	return plans, nil
}
