package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hbmfs/hbmfs/internal/commands/top"
	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// topCommand is hbmfs top.
type topCommand struct {
	printer
	once, asMetrics    bool
	interval, patience time.Duration
	by                 string
	stdin              io.Reader
}

func newTopCommand() *cobra.Command {
	c := &topCommand{}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the rates, caches and readers of all mounts",
		Long: `Watch the hbmfs mounts of this machine: bytes by path, the fill of caches, paths of readers and their reasons, answer
times, and errors. Up and down select the mount whose details are shown, s sorts, q quits. Where the output is no terminal, a
table is written at every interval.

Rates are differences of two samples. No daemon sees reads by passthrough: of these there are only opens.
A mount whose daemon is gone, stopped or stuck is shown as such, and holds nothing up.

  --once             two samples, --interval apart, and the end
  --once --json      the same for scripts, with each mount's whole status
  --once --metrics   one sample of all metrics for Prometheus, each with the label mount, and hbmfs_up`,
		Example: `  hbmfs top
  hbmfs top --once --json | jq '.mounts[].state'
  hbmfs top --once --metrics > /var/lib/prometheus/node-exporter/hbmfs.prom.new`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.from(cmd)
			c.stdin = cmd.InOrStdin()
			return c.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&c.once, "once", false, "print one sample and end")
	f.BoolVar(&c.asJSON, "json", false, "with --once: print JSON")
	f.BoolVar(&c.asMetrics, "metrics", false, "with --once: print the metrics of all mounts for Prometheus")
	f.DurationVar(&c.interval, "interval", 2*time.Second, "time between samples")
	f.DurationVar(&c.patience, "timeout", pause.Patience, "how long a mount may take to answer")
	addChoice(cmd, &c.by, "sort", top.ByName, strings.Join(top.Orders(), ", ")+": the order of mounts", top.Orders()...)
	return cmd
}

// mountRows is the JSON of hbmfs top and status.
type mountRows struct {
	Time   time.Time `json:"time"`
	Mounts []top.Row `json:"mounts"`
}

// noMounts is printed where there are none.
const noMounts = "no hbmfs is mounted here"

func (c *topCommand) check() error {
	switch {
	case (c.asJSON || c.asMetrics) && !c.once:
		return errors.New("--json and --metrics need --once")
	case c.asJSON && c.asMetrics:
		return errors.New("--json and --metrics: one of them")
	case c.interval <= 0 || c.patience <= 0:
		return errors.New("--interval and --timeout must be more than nothing")
	}
	return nil
}

func (c *topCommand) run(ctx context.Context) error {
	if err := c.check(); err != nil {
		return cli.Mistake{Err: err}
	}
	switch {
	case c.asMetrics:
		samples, err := top.NewSampler(onmount.Self(), "metrics", c.patience).Sample(ctx)
		if err != nil {
			return err
		}
		return top.WriteMetrics(c.stdout, samples)
	case !c.once && isTerminal(c.stdin) && isTerminal(c.stdout):
		screen := &top.Screen{Sampler: top.NewSampler(onmount.Self(), "status", c.patience), Interval: c.interval, By: c.by}
		return screen.Run(ctx, c.stdin.(*os.File), c.stdout.(*os.File)) // terminals are files
	}
	return c.tables(ctx)
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// tables writes a table at every interval until ctx ends, or the second one alone, with its details.
func (c *topCommand) tables(ctx context.Context) error {
	s := top.NewSampler(onmount.Self(), "status", c.patience)
	var rows []top.Row
	for round := 1; ; round++ {
		samples, err := s.Sample(ctx)
		if err != nil {
			return err
		}
		rows = top.Rows(samples, rows)
		top.Sort(rows, c.by)
		switch {
		case c.once && round == 2:
			return c.print(mountRows{time.Now(), rows}, func() { _ = c.write(rows) }) // [output] remembers it
		case !c.once:
			if err := c.write(rows); err != nil {
				return err
			}
		}
		select {
		case <-time.After(c.interval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *topCommand) write(rows []top.Row) error {
	if len(rows) == 0 {
		fmt.Fprintln(c.stdout, noMounts)
		return nil
	}
	err := top.WriteTable(c.stdout, rows, 0)
	for i := 0; c.once && err == nil && i < len(rows); i++ {
		fmt.Fprintln(c.stdout)
		err = top.WriteDetails(c.stdout, &rows[i])
	}
	if !c.once {
		fmt.Fprintln(c.stdout)
	}
	return err
}
