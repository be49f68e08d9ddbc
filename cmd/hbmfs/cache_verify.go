package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/internal/cachedir"
	"github.com/hbmfs/hbmfs/internal/progress"
	"github.com/hbmfs/hbmfs/internal/size"
)

func newCacheVerifyCommand() *cobra.Command {
	c, remove := &cacheCommand{}, false
	cmd := c.bind(&cobra.Command{
		Use:   "verify DIR",
		Short: "Compare all bytes of a cache with their checksums",
		Long: `Read all of the cache DIR and compare it with the checksums that were made as the bytes came. The exit code is 3 when a
segment is damaged, also if --remove took it out: a mount fetches it again when it is read.`,
		Example: "  hbmfs cache verify /nvme/hbmfs\n  hbmfs cache verify --remove --json /nvme/hbmfs",
	}, func(ctx context.Context, s *store.Store) error {
		found, err := cachedir.Verify(ctx, c.dir, s, remove, func(total int64) (add func(int64), end func()) {
			bar := progress.New(c.stderr, "verifying", total, true)
			return bar.Add, bar.Close
		})
		if err != nil {
			return err
		}
		if c.asJSON {
			err = c.printJSON(found)
		} else {
			c.printVerification(found)
		}
		if err == nil && len(found.Damaged) > 0 {
			err = errProblems
		}
		return err
	})
	cmd.Flags().BoolVar(&remove, "remove", false, "take damaged segments out")
	return cmd
}

func (c *cacheCommand) printVerification(v *cachedir.Verification) {
	rate := size.Decimal(int64(float64(v.Bytes) / max(v.Seconds, 1e-6)))
	fmt.Fprintf(c.stdout, "%s: %s in %s segments, read at %s/s, %d damaged, %d of them removed\n", v.Directory, size.Decimal(v.Bytes), size.Grouped(int64(v.Segments)), rate, len(v.Damaged), v.Removed)
	for _, g := range v.Damaged {
		what := "unknown object"
		if g.Object != "" {
			what = fmt.Sprintf("%s of %s from byte %d on", g.Object, g.Source, g.Offset)
		}
		fmt.Fprintf(c.stdout, "  %s (%s): %s\n", g.File, what, g.Damage)
	}
}

func newCacheRemoveCommand() *cobra.Command {
	c := &cacheCommand{}
	var source, object string
	var all bool
	cmd := c.bind(&cobra.Command{
		Use:   "rm DIR",
		Short: "Take sources or objects out of a cache",
		Long: `Take the sources and objects that --source and --object name out of the cache DIR, or --all, and say how much that was. It
asks nothing: mounts fetch removed bytes again. Space is free once no reader has a removed segment open.

In a pattern * stands for any characters, / among them, and ? for one. Where both are given, both must fit.`,
		Example: "  hbmfs cache rm --source 's3://bucket/pile*' /nvme/hbmfs\n  hbmfs cache rm --object 'train/*' /nvme/hbmfs\n  hbmfs cache rm --all /nvme/hbmfs",
	}, func(ctx context.Context, s *store.Store) error {
		done, err := cachedir.Remove(ctx, c.dir, s, cachedir.Choice{Source: source, Object: object, All: all})
		if c.asJSON {
			return errors.Join(c.printJSON(done), err)
		}
		fmt.Fprintf(c.stdout, "%s: freed %s in %s segments\n", c.dir, size.Decimal(done.Bytes), size.Grouped(int64(done.Segments)))
		return err
	})
	f := cmd.Flags()
	f.StringVar(&source, "source", "", "pattern of sources, as hbmfs cache ls shows them")
	f.StringVar(&object, "object", "", "pattern of objects")
	f.BoolVar(&all, "all", false, "everything, damaged segments too")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if all == (source != "" || object != "") {
			return usageError{errors.New("name the segments to remove: --source, --object or both, or --all")}
		}
		return nil
	}
	return cmd
}
