package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/internal/cachedir"
	"github.com/hbmfs/hbmfs/internal/size"
)

// cacheCommand has the fields of all commands below hbmfs cache. Mounts may use the directory meanwhile.
type cacheCommand struct {
	dir            string
	asJSON         bool
	stdout, stderr io.Writer
}

func newCacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "Look into the cache of remote datasets, verify it, and free its space",
		Long: `Look into a directory that hbmfs mount --cache-dir keeps remote datasets in, without a mount. Mounts may use it at the
same time: they fetch removed bytes again, and a reader that has them open reads on.

A cache has segments: parts of objects of at most --cache-segment bytes, each with checksums of every MiB.`,
	}
	addCommands(cmd, newCacheListCommand(), newCacheStatsCommand(), newCacheVerifyCommand(), newCacheRemoveCommand())
	return cmd
}

// bind gives a command below hbmfs cache its argument, its flag and its work.
func (c *cacheCommand) bind(cmd *cobra.Command, run func(context.Context, *store.Store) error) *cobra.Command {
	cmd.Args = exactArgs(1)
	cmd.Flags().BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.dir, c.stdout, c.stderr = args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()
		return onMounts(cmd, args, func(ctx context.Context) error {
			s, err := cachedir.Open(c.dir)
			if err != nil {
				return err
			}
			return errors.Join(run(ctx, s), s.Close())
		})
	}
	return cmd
}

func (c *cacheCommand) printJSON(value any) error {
	return writeJSON(c.stdout, value)
}

func newCacheListCommand() *cobra.Command {
	c := &cacheCommand{}
	return c.bind(&cobra.Command{
		Use:   "ls DIR",
		Short: "List the objects that a cache has bytes of",
		Long: `List the objects that the cache DIR has bytes of, and how many of each. An object that was replaced at its source has
a line for each version. --json lists the segments.`,
		Example: "  hbmfs cache ls /nvme/hbmfs\n  hbmfs cache ls --json /nvme/hbmfs | jq '.segments[].object'",
	}, func(ctx context.Context, s *store.Store) error {
		all, err := cachedir.List(ctx, s)
		if err != nil {
			return err
		}
		if c.asJSON {
			return c.printJSON(struct {
				Directory string          `json:"directory"`
				Segments  []store.Segment `json:"segments"`
			}{c.dir, all})
		}
		return c.printObjects(all)
	})
}

// printObjects sums segments up by object. They are ordered.
func (c *cacheCommand) printObjects(all []store.Segment) error {
	t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "SOURCE\tOBJECT\tSEGMENTS\tCACHED\tSIZE\t\n")
	for len(all) > 0 {
		first, n, bytes := all[0], 0, int64(0)
		for n < len(all) && all[n].Source == first.Source && all[n].Object == first.Object && all[n].Version == first.Version {
			bytes += all[n].Bytes
			n++
		}
		all = all[n:]
		if first.Damage != "" {
			fmt.Fprintf(t, "?\t(damaged: hbmfs cache verify --remove)\t%d\t%s\t?\t\n", n, size.Decimal(bytes))
			continue
		}
		part := 100.0
		if first.Size > 0 {
			part = 100 * float64(bytes) / float64(first.Size)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%.0f%%\n", first.Source, first.Object, n, size.Decimal(bytes), size.Decimal(first.Size), part)
	}
	return t.Flush()
}

func newCacheStatsCommand() *cobra.Command {
	c := &cacheCommand{}
	return c.bind(&cobra.Command{
		Use:   "stats DIR",
		Short: "Say how much a cache has of which source",
		Long: `Say how much the cache DIR has of which source, and how full its disk is. A mount's hits and evictions
are in its .hbmfs/status.`,
		Example: "  hbmfs cache stats /nvme/hbmfs",
	}, func(ctx context.Context, s *store.Store) error {
		all, err := cachedir.List(ctx, s)
		if err != nil {
			return err
		}
		totals, err := cachedir.TotalsOf(c.dir, all)
		if err != nil {
			return err
		}
		if c.asJSON {
			return c.printJSON(totals)
		}
		return printTotals(c.stdout, totals)
	})
}

func printTotals(w io.Writer, t *cachedir.Totals) error {
	fmt.Fprintf(w, "%s: %s in %s segments; the disk has %s, %s free\n", t.Directory, size.Decimal(t.Bytes), size.Grouped(int64(t.Segments)), size.Decimal(t.DiskSize), size.Decimal(t.DiskFree))
	if t.Oldest != nil {
		fmt.Fprintf(w, "written from %s to %s\n", t.Oldest.Format(time.DateTime), t.Newest.Format(time.DateTime))
	}
	if t.Damaged > 0 {
		fmt.Fprintf(w, "%d segments are damaged: hbmfs cache verify --remove %s\n", t.Damaged, t.Directory)
	}
	if len(t.Sources) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "SOURCE\tOBJECTS\tSEGMENTS\tCACHED\n")
	for _, s := range t.Sources {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Source, size.Grouped(int64(s.Objects)), size.Grouped(int64(s.Segments)), size.Decimal(s.Bytes))
	}
	return table.Flush()
}
