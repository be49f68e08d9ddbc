package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/internal/commands/plan"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// planCommand is hbmfs plan.
type planCommand struct {
	file       string // a description, or empty for this node
	here       bool   // this node, too
	calibrate  []string
	epoch      size.Flag
	checkpoint size.Flag
	weights    size.Flag
	price      float64
	html       string
	sys        string
	stdin      io.Reader
	printer
}

func newPlanCommand() *cobra.Command {
	c := &planCommand{}
	example := false
	cmd := &cobra.Command{
		Use:   "plan [FILE.yaml]",
		Short: "Estimate rates and costs of each path into GPU memory",
		Long: `Estimate, by a model, how fast the GPUs of a node would read by each path. It names the stage that binds, and the number
of GPUs that should read at once. The model has the cost of registering memory, and the time and price of an epoch, a checkpoint
or a load of weights.

Nothing is measured and no GPU is touched. Three things go in:

  the node   this one, from sysfs; or FILE.yaml (- for stdin), which describes nodes that you have or think of buying
  figures    of one or two GPUs, by hbmfs bench --json, with --calibrate; else those of an H200 host
  the jobs   from FILE.yaml, or --epoch, --checkpoint, --weights

Every result is a range: low with all assumptions low, high with all high. The paths:

  pinned     a copy of memory that is pinned already: the wall, which no path beats
  mapped     the page cache, registered with the GPU; read once, registering binds
  staged     threads copy through pinned slots; with many GPUs the CPUs bind, and more threads would make it worse
  plain      one thread for each GPU reads, then copies: a program without hbmfs
  direct     drive to GPU by DMA; only where FILE.yaml says direct: true, which hbmfs check can prove

Calibrated on one and two H200s, the model met four and eight within 15%. docs/reference/planning.md names the limits of the
model.`,
		Example: `  hbmfs plan --example | hbmfs plan -                 a node with GPUs
  hbmfs plan                                          this node
  hbmfs plan --epoch 2TB --weights 140GB --price 30   time and cost of jobs here
  hbmfs plan --example > node.yaml                    a description to edit
  hbmfs plan node.yaml --html report.html             a page of charts
  hbmfs plan node.yaml --here                         this node beside others

  hbmfs bench --gpus 0 --json --modes sequential --threads 4 data >1x4.json
  hbmfs bench --gpus 0,1 --json --modes sequential --threads 8 data >2x8.json
  hbmfs plan node.yaml --calibrate 1x4.json --calibrate 2x8.json`,
		Args: atMostOne("one description (several nodes go in one file)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.from(cmd)
			if c.stdin = cmd.InOrStdin(); example {
				_, err := c.stdout.Write(plan.Example)
				return err
			}
			c.file = strings.Join(args, "")
			return c.run(cmd.Context())
		},
	}
	c.takeJSON(cmd)
	c.flags(cmd.Flags(), &example)
	return cmd
}

func (c *planCommand) flags(f *pflag.FlagSet, example *bool) {
	f.StringArrayVar(&c.calibrate, "calibrate", nil, "`file` with a result of hbmfs bench --json; may be given again")
	f.Var(&c.epoch, "epoch", "size of a dataset that is read from storage, such as 2TB")
	f.Var(&c.checkpoint, "checkpoint", "size of a checkpoint that is written each half hour")
	f.Var(&c.weights, "weights", "size of weights that are read from storage")
	f.Float64Var(&c.price, "price", 0, "price of the node for an hour, where the description has none")
	f.BoolVar(&c.here, "here", false, "compare this node with those of FILE.yaml")
	f.StringVar(&c.html, "html", "", "write a page with charts to this `file`, and print nothing")
	f.BoolVar(example, "example", false, "print a description with every key, to edit")
	f.StringVar(&c.sys, "sys", "/sys", "`directory` of sysfs")
	_ = f.MarkHidden("sys") // for tests: the flag exists
}

func (c *planCommand) run(ctx context.Context) error {
	if c.asJSON && c.html != "" {
		return cli.Mistakef("--json and --html exclude each other")
	}
	d, err := c.describe()
	if err != nil {
		return err
	}
	jobs, err := c.jobs()
	if err != nil {
		return err
	}
	calibration, err := c.calibration()
	if err != nil {
		return err
	}
	for i := range d.Nodes {
		if d.Nodes[i].PricePerHour == 0 {
			d.Nodes[i].PricePerHour = c.price
		}
	}
	report, err := plan.Build(ctx, d.Nodes, append(d.Jobs, jobs...), calibration)
	if err != nil {
		return err
	}
	if c.html != "" {
		return c.writePage(report)
	}
	return c.print(report, func() { report.Print(c.stdout) })
}

// describe gives the nodes: of the file, or this one. A file may hold jobs only.
func (c *planCommand) describe() (*plan.Description, error) {
	d := &plan.Description{}
	if c.file != "" {
		f := c.stdin
		if c.file != "-" {
			file, err := os.Open(c.file)
			if err != nil {
				return nil, err
			}
			defer func() { _ = file.Close() }() // it is only read
			f = file
		}
		var err error
		if d, err = plan.Parse(f); err != nil {
			return nil, fmt.Errorf("%s: %w", c.file, err)
		}
	}
	if len(d.Nodes) > 0 && !c.here {
		return d, nil
	}
	node, err := plan.Discover(c.sys)
	if err != nil {
		return nil, err
	}
	d.Nodes = append([]plan.Node{*node}, d.Nodes...)
	return d, nil
}

// jobs are those of the flags.
func (c *planCommand) jobs() ([]plan.Job, error) {
	var jobs []plan.Job
	for _, j := range []struct {
		size size.Flag
		job  plan.Job
	}{
		{c.epoch, plan.Job{Name: "an epoch", Kind: plan.Epoch, Passes: 1}},
		{c.checkpoint, plan.Job{Name: "a checkpoint each half hour", Kind: plan.Checkpoint, Passes: 1, Interval: 1800}},
		{c.weights, plan.Job{Name: "a load of weights", Kind: plan.Weights, Passes: 1}},
	} {
		if j.job.Size = plan.Size(j.size); j.size > 0 {
			jobs = append(jobs, j.job)
		}
	}
	if !(c.price >= 0 && c.price <= 1e6) {
		return nil, cli.Mistakef("--price is 0 to 1000000 an hour")
	}
	return jobs, nil
}

func (c *planCommand) calibration() (*plan.Calibration, error) {
	if len(c.calibrate) == 0 {
		return plan.Measured(), nil
	}
	var results []*plan.Bench
	for _, name := range c.calibrate {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		b, err := plan.ParseBench(f)
		_ = f.Close() // it was only read
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, b)
	}
	return plan.Calibrate(results)
}

func (c *planCommand) writePage(r *plan.Report) error { return replaceFile(c.html, r.WriteHTML) }
