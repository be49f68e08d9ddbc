package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/internal/commands/cachedir"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// cacheCommand is one of the commands below hbmfs cache. Mounts may use the directory meanwhile.
type cacheCommand struct {
	printer
	dir string
}

func newCacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cache",
		Short: "List, verify and empty the cache of remote datasets",
		Long: `Look into a directory that hbmfs mount --cache-dir keeps remote datasets in, without a mount. Mounts may use it at the
same time: they fetch removed bytes again, and a reader that has them open reads on.

A cache has segments: parts of objects of at most --cache-segment bytes, each with checksums of every MiB.`,
	}
	addCommands(cmd, newCacheListCommand(), newCacheStatsCommand(), newCacheVerifyCommand(), newCacheRemoveCommand())
	return cmd
}

// bind gives a command below hbmfs cache its argument, its flag and its work.
func (c *cacheCommand) bind(cmd *cobra.Command, run func(context.Context, *store.Store) error) *cobra.Command {
	return c.work(cmd, exactArgs(1), func(ctx context.Context, paths []string) error {
		c.dir = paths[0]
		s, err := cachedir.Open(c.dir)
		if err != nil {
			return err
		}
		return errors.Join(run(ctx, s), s.Close())
	})
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
		return c.print(map[string]any{"directory": c.dir, "segments": all}, func() { c.printObjects(all) })
	})
}

// printObjects sums segments up by object. They are ordered.
func (c *cacheCommand) printObjects(all []store.Segment) {
	t := c.table("SOURCE\tOBJECT\tSEGMENTS\tCACHED\tSIZE\t")
	defer t.Flush()
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
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%.0f%%\n", cli.Printable(first.Source), cli.Printable(first.Object), n, size.Decimal(bytes), size.Decimal(first.Size), part)
	}
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
		return c.print(totals, func() { c.printTotals(totals) })
	})
}

func (c *cacheCommand) printTotals(t *cachedir.Totals) {
	fmt.Fprintf(c.stdout, "%s: %s in %s segments; the disk has %s, %s free\n", t.Directory, size.Decimal(t.Bytes), size.Grouped(int64(t.Segments)), size.Decimal(t.DiskSize), size.Decimal(t.DiskFree))
	if t.Oldest != nil {
		fmt.Fprintf(c.stdout, "written from %s to %s\n", t.Oldest.Format(time.DateTime), t.Newest.Format(time.DateTime))
	}
	if t.Damaged > 0 {
		fmt.Fprintf(c.stdout, "%d segments are damaged: hbmfs cache verify --remove %s\n", t.Damaged, t.Directory)
	}
	if len(t.Sources) == 0 {
		return
	}
	fmt.Fprintln(c.stdout)
	table := c.table("SOURCE\tOBJECTS\tSEGMENTS\tCACHED")
	defer table.Flush()
	for _, s := range t.Sources {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", cli.Printable(s.Source), size.Grouped(int64(s.Objects)), size.Grouped(int64(s.Segments)), size.Decimal(s.Bytes))
	}
}

func newCacheVerifyCommand() *cobra.Command {
	c, remove := &cacheCommand{}, false
	cmd := c.bind(&cobra.Command{
		Use:   "verify DIR",
		Short: "Compare all bytes of a cache with their checksums",
		Long: `Read all of the cache DIR and compare it with the checksums that were made as the bytes came. The exit code is 3 when a
segment is damaged, also if --remove took it out: a mount fetches it again when it is read.

Files of hf://, gs://, az:// and oci:// that are here as a whole are also compared with the hashes of their source. These are
SHA-256, CRC-32C or MD5.`,
		Example: "  hbmfs cache verify /nvme/hbmfs\n  hbmfs cache verify --remove --json /nvme/hbmfs",
	}, func(ctx context.Context, s *store.Store) error {
		found, err := cachedir.Verify(ctx, c.dir, s, remove, c.bar)
		if err != nil {
			return err
		}
		return problems(c.print(found, func() { c.printVerification(found) }), len(found.Damaged) > 0)
	})
	cmd.Flags().BoolVar(&remove, "remove", false, "remove damaged segments")
	return cmd
}

func (c *cacheCommand) printVerification(v *cachedir.Verification) {
	rate := perSecond(v.Bytes, v.Seconds)
	fmt.Fprintf(c.stdout, "%s: %s in %s segments, read at %s, %d damaged, %d of them removed\n", v.Directory, size.Decimal(v.Bytes), size.Grouped(int64(v.Segments)), rate, len(v.Damaged), v.Removed)
	for _, g := range v.Damaged {
		what := "unknown object"
		if g.Object != "" {
			what = cli.Printable(fmt.Sprintf("%s of %s from byte %d on", g.Object, g.Source, g.Offset))
		}
		fmt.Fprintf(c.stdout, "  %s (%s): %s\n", g.File, what, g.Damage)
	}
}

func newCacheRemoveCommand() *cobra.Command {
	c, which := &cacheCommand{}, cachedir.Filter{}
	cmd := c.bind(&cobra.Command{
		Use:   "rm DIR",
		Short: "Take sources or objects out of a cache",
		Long: `Take the sources and objects that --source and --object name out of the cache DIR, or --all, and say how much that was. It
asks nothing: mounts fetch removed bytes again. Space is free once no reader has a removed segment open.

In a pattern * stands for any characters, / among them, and ? for one. Where both are given, both must fit.`,
		Example: "  hbmfs cache rm --source 's3://bucket/pile*' /nvme/hbmfs\n  hbmfs cache rm --object 'train/*' /nvme/hbmfs\n  hbmfs cache rm --all /nvme/hbmfs",
	}, func(ctx context.Context, s *store.Store) error {
		done, err := cachedir.Remove(ctx, c.dir, s, which)
		return errors.Join(c.print(done, func() {
			fmt.Fprintf(c.stdout, "%s: freed %s in %s segments\n", c.dir, size.Decimal(done.Bytes), size.Grouped(int64(done.Segments)))
		}), err)
	})
	f := cmd.Flags()
	f.StringVar(&which.Source, "source", "", "`pattern` of sources, as hbmfs cache ls shows them")
	f.StringVar(&which.Object, "object", "", "`pattern` of objects")
	f.BoolVar(&which.All, "all", false, "remove everything, damaged segments too")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if which.All == (which.Source != "" || which.Object != "") {
			return cli.Mistakef("name the segments to remove: --source, --object or both, or --all")
		}
		return nil
	}
	return cmd
}
