package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/hbmfs/hbmfs/internal/commands/bench"
)

func (c *benchCommand) write(r *bench.Result) {
	for _, g := range r.GPUs {
		fmt.Fprintf(c.stdout, "gpu %d   %s, PCI %s, NUMA node %d\n", g.Index, g.Name, g.PCI, g.NUMA)
	}
	fmt.Fprintf(c.stdout, "file    %s, %d bytes; block %d, window %d, gather %d x %d at multiples of %d, depth %d, %d CPUs\n",
		r.File, r.Size, r.Block, r.Window, r.Samples, r.Sample, r.Align, r.Depth, r.CPUs)
	if r.Wall > 0 {
		fmt.Fprintf(c.stdout, "wall    %.1f GB/s, pinned memory to HBM%s\n", r.Wall, perGPU(r.Walls))
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "PATH\tMODE\tGB/s\tOF WALL\tCPU s/GB\t")
	for _, row := range r.Rows {
		switch {
		case row.Skipped != "":
			fmt.Fprintf(w, "%s\t%s\t-\t-\t-\t  %s\n", row.Path, row.Mode, row.Skipped)
		case row.OfWall == 0:
			fmt.Fprintf(w, "%s\t%s\t%.2f\t-\t%.3f\t%s\n", row.Path, row.Mode, row.GBps, row.CPUPerGB, samplesRate(row.Samples))
		default:
			fmt.Fprintf(w, "%s\t%s\t%.2f\t%.2f\t%.3f\t%s%s\n", row.Path, row.Mode, row.GBps, row.OfWall, row.CPUPerGB, samplesRate(row.Samples), perGPU(row.PerGPU))
		}
	}
	w.Flush()
}

// samplesRate says how many samples were read in a second, where they were counted.
func samplesRate(samples float64) string {
	if samples == 0 {
		return ""
	}
	return fmt.Sprintf("  %.0f samples/s", samples)
}

// perGPU lists rates where there are several GPUs.
func perGPU(rates []float64) string {
	if len(rates) < 2 {
		return ""
	}
	text := "  GPUs:"
	for _, rate := range rates {
		text += fmt.Sprintf(" %.1f", rate)
	}
	return text
}
