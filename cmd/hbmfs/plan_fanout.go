package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/internal/commands/fanout"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/internal/text/usage"
)

// fanOut is the part of hbmfs plan about many nodes and one dataset.
type fanOut struct {
	nodes               []int
	origin, cache, node size.Rate
}

// What is assumed: an origin and caches behind 10 Gb/s each, and a node as docs/benchmarks-remote.md measured one with two CPUs.
const (
	linkRate = 1_250_000_000
	nodeRate = 765_000_000
)

func (f *fanOut) flags(flags *pflag.FlagSet) {
	f.origin, f.cache, f.node = linkRate, linkRate, nodeRate
	flags.IntSliceVar(&f.nodes, "fan-out", nil, "nodes that read the dataset of --epoch at once, as in 100,1000: how many caches they need")
	flags.Var(&f.origin, "origin-rate", "with --fan-out: what the origin sends, to all together")
	flags.Var(&f.cache, "cache-rate", "with --fan-out: what one cache sends, by its link, disk and CPUs")
	flags.Var(&f.node, "node-rate", "with --fan-out: what one node takes in")
}

// fansOut tells whether the command is about many nodes, and refuses what does not go with it.
func (c *planCommand) fansOut(flags *pflag.FlagSet) (bool, error) {
	if len(c.fanOut.nodes) == 0 {
		for _, name := range []string{"origin-rate", "cache-rate", "node-rate"} {
			if flags.Changed(name) {
				return false, usage.Errorf("--%s belongs to --fan-out", name)
			}
		}
		return false, nil
	}
	if c.epoch == 0 {
		return false, usage.Errorf("--fan-out needs the size of the dataset: --epoch 2TB")
	}
	for _, name := range []string{"calibrate", "checkpoint", "weights", "price", "here", "html"} {
		if flags.Changed(name) {
			return false, usage.Errorf("--%s and --fan-out exclude each other: --fan-out is about the network alone", name)
		}
	}
	if c.file != "" {
		return false, usage.Errorf("--fan-out takes no description of nodes: it is about the network alone")
	}
	return true, nil
}

func (c *planCommand) runFanOut(ctx context.Context) error {
	var reports []*fanout.Report
	for _, n := range c.fanOut.nodes {
		r, err := fanout.Build(ctx, fanout.Cluster{Nodes: n, Size: int64(c.epoch), Origin: float64(c.fanOut.origin), Cache: float64(c.fanOut.cache), Node: float64(c.fanOut.node)})
		if err != nil {
			if ctx.Err() == nil {
				err = usage.Error{Err: err}
			}
			return err
		}
		reports = append(reports, r)
	}
	return c.print(struct {
		Version int              `json:"version"` // of this structure
		FanOut  []*fanout.Report `json:"fan_out"`
	}{1, reports}, func() {
		for i, r := range reports {
			if i > 0 {
				fmt.Fprintln(c.stdout)
			}
			c.printFanOut(r)
		}
	})
}

func (c *planCommand) printFanOut(r *fanout.Report) {
	rate := func(n float64) string { return size.Decimal(int64(n)) + "/s" }
	fmt.Fprintf(c.stdout, "%s nodes read %s at once; the origin sends %s, a cache %s, and a node takes %s\n", size.Grouped(int64(r.Nodes)), size.Decimal(r.Size), rate(r.Origin), rate(r.Cache), rate(r.Node))
	w := c.table("CACHES\tORIGIN SENDS\tA CACHE KEEPS\tAND SENDS\tTO THE LAST NODE\tBINDS\tSIMULATED: IN STEP\tEACH ELSEWHERE\t")
	defer w.Flush()
	for _, row := range r.Rows {
		keeps, sends, mark := "-", "-", ""
		if row.Caches > 0 {
			keeps, sends = size.Decimal(row.Keeps), size.Decimal(row.Carries)
		}
		if row.Enough {
			mark = "<- enough"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row.Caches, size.Decimal(int64(row.FromHere*float64(r.Size))), keeps, sends, longTime(row.Time), row.Binds, longTime(row.InStep), longTime(row.Elsewhere), mark)
	}
}

// longTime is a time in the unit that people would use.
func longTime(seconds float64) string {
	switch {
	case seconds < 600:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 2*3600:
		return fmt.Sprintf("%.0f min", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("%.1f h", seconds/3600)
	}
	return fmt.Sprintf("%.1f d", seconds/86400)
}
