package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/commands/warm"
	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// warmCommand is hbmfs warm.
type warmCommand struct {
	printer
	rate   size.Rate
	record string        // a file
	length time.Duration // of the record; 0: reads before it
	replay string        // a file
}

func newWarmCommand() *cobra.Command {
	c := &warmCommand{}
	cmd := &cobra.Command{
		Use:   "warm PATH... [flags]\n  hbmfs warm --record FILE MOUNTPOINT [flags]\n  hbmfs warm --replay FILE MOUNTPOINT [flags]",
		Short: "Bring files of a mount onto this machine before reads",
		Long: `Bring files of a mount, and all files below directories of it, onto this machine. Bytes of a remote source go into the
mount's cache. Bytes of local files go into the kernel's page cache, as far as there is memory for them.

Bytes in the cache are skipped, so an interrupted warm goes on where it was. The command fails if not all stays in the cache. Then
the cache is too small, or full of segments that readers have open (see .hbmfs/status in the mount).

--json prints bytes:

  local     were in the cache before
  fetched   came now
  left      did not stay in the cache
  advised   the kernel was asked to read ahead
  in_mount  are made by the mount, or have no cache to be brought into

--record FILE saves the reads of a mount with a cache since its daemon began, in the order of the first reads. With --for the
record begins now; it ends after that time, or with Ctrl-C. Where another daemon goes on with the mount, the record goes on with
it, and the command says that it has a gap. --replay FILE brings that into another mount of the same dataset, in that order,
before the next job reads it. In a job script:

  hbmfs warm --replay pile.record /mnt/pile      before the job
  hbmfs warm --record pile.record /mnt/pile      after it

A record has segments of the cache (hbmfs mount --cache-segment), so a sample that was read brings its segment. Reads from the
kernel's page cache are not recorded, and a replay counts as no read. A replay leaves out files of another version, files that the
user may not read, and bytes for which the cache has no room. It fails if other bytes did not come. With --json it prints bytes:

  local          were in the cache before
  fetched        came now
  left           did not come
  beyond         have no room in the cache
  other_version  are of files that have another version now
  missing        are of files that are not there
  denied         are of files that this user may not read
  not_cached     are of files that the cache does not keep`,
		Example: `  hbmfs warm /mnt/pile
  hbmfs warm --rate-limit 500MB/s /mnt/pile/train
  hbmfs warm --record pile.record --for 10m /mnt/pile
  hbmfs warm --replay pile.record /mnt/pile`,
		Args: someArgs("files or directories to warm"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.check(len(args)); err != nil {
				return err
			}
			return c.onMounts(cmd, args, func(ctx context.Context) error { return c.run(ctx, args) })
		},
	}
	cmd.Flags().StringVar(&c.record, "record", "", "save the order of reads of the mount to this `file`")
	cmd.Flags().DurationVar(&c.length, "for", 0, "with --record: record reads from now on, for so long or until Ctrl-C, as in 10m")
	cmd.Flags().StringVar(&c.replay, "replay", "", "bring the bytes that this `file` records, in its order")
	cmd.Flags().Var(&c.rate, "rate-limit", "bytes per second at most, such as 500MB/s (default: no limit)")
	c.takeJSON(cmd)
	return cmd
}

func (c *warmCommand) check(paths int) error {
	switch {
	case c.record != "" && c.replay != "":
		return cli.Mistakef("--record and --replay exclude each other")
	case c.record+c.replay != "" && paths != 1:
		return cli.Mistakef("a record is of one mount, not of %d: name its mount point", paths)
	case c.length != 0 && c.record == "":
		return cli.Mistakef("--for belongs to --record FILE")
	case c.length < 0:
		return cli.Mistakef("--for is a time above zero, as in 10m")
	case c.record != "" && c.rate > 0:
		return cli.Mistakef("--rate-limit does not belong to --record, which reads nothing")
	}
	return nil
}

func (c *warmCommand) run(ctx context.Context, paths []string) error {
	switch {
	case c.record != "":
		return c.runRecord(ctx, paths[0])
	case c.replay != "":
		return c.runReplay(ctx, paths[0])
	}
	began := time.Now()
	files, total, err := warm.FilesBelow(ctx, paths)
	if err != nil {
		return err
	}
	add, end := c.bar("warming", total, true)
	w := warm.New(files, total, int64(c.rate), add)
	err = untilInterrupted(ctx, w.Run)
	end()
	done := w.Summary()
	done.Seconds = time.Since(began).Seconds()
	switch {
	case errors.Is(err, control.ErrNotHBMFS):
		err = fmt.Errorf("%w: name files or directories of a mount, which hbmfs status lists", err)
	case errors.Is(err, onmount.ErrInterrupted) && !c.asJSON:
		fmt.Fprintln(c.stderr, "what came stays in the cache: the same command goes on there")
	}
	err = errors.Join(err, c.print(done, func() {
		if err == nil { // otherwise the sums are of a part
			printWarm(c.stdout, &done)
		}
	}))
	if err == nil && done.Left > 0 {
		return fmt.Errorf("%s did not stay in the cache: it is too small, its room is in use, or a view has only parts of segments (then warm the shards); .hbmfs/status of the mount says more", size.Decimal(done.Left))
	}
	return err
}

// untilInterrupted runs work until it is over, or ctx is. A read that waits for a source, or for a daemon, cannot be called off: it ends with this
// process.
func untilInterrupted(ctx context.Context, work func(context.Context) error) error {
	over := make(chan error, 1)
	go func() { over <- work(ctx) }()
	select {
	case err := <-over:
		return err
	case <-ctx.Done():
		return onmount.ErrInterrupted
	}
}

func printWarm(out io.Writer, d *warm.Summary) {
	fmt.Fprintf(out, "%s files, %s, in %.1f s\n", size.Grouped(int64(d.Files)), size.Decimal(d.Bytes), d.Seconds)
	printBytes(out, []bytesOf{
		{d.Local, "were in the cache already"},
		{d.Fetched, "were fetched, at " + perSecond(d.Fetched, d.Seconds)},
		{d.Left, "are not in the cache"},
		{d.Advised, "lie in local files: the kernel was asked to read them into its page cache"},
		{d.InMount, "are made by the mount, or have no cache to be brought into (hbmfs mount --cache-dir)"},
	})
}

// bytesOf counts bytes that a command brought, or did not.
type bytesOf struct {
	n    int64
	what string
}

// printBytes prints a line for each part that there is.
func printBytes(out io.Writer, parts []bytesOf) {
	for _, p := range parts {
		if p.n > 0 {
			fmt.Fprintf(out, "  %s %s\n", size.Decimal(p.n), p.what)
		}
	}
}
