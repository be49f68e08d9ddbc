package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/progress"
	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/internal/warm"
)

// warmCommand is hbmfs warm.
type warmCommand struct {
	paths  []string
	rate   size.Rate
	asJSON bool

	stdout, stderr io.Writer
}

func newWarmCommand() *cobra.Command {
	c := &warmCommand{}
	cmd := &cobra.Command{
		Use:   "warm PATH...",
		Short: "Bring files of a mount onto this machine before they are read",
		Long: `Bring files of a mount, and all files below directories of it, onto this machine: bytes of a remote source into the
mount's cache, bytes of local files into the kernel's page cache, as far as there is memory for them.

Bytes in the cache are skipped, so an interrupted warm goes on where it was. The command fails when not all stays in the
cache: then it is too small, or full of segments that readers have open (see .hbmfs/status in the mount).

--json prints bytes:

  local     were in the cache before
  fetched   came now
  left      did not stay in the cache
  advised   the kernel was asked to read ahead
  in_mount  are made by the mount, or have no cache to be brought into`,
		Example: "  hbmfs warm /mnt/pile\n  hbmfs warm --rate-limit 500MB/s /mnt/pile/train /mnt/pile/.hbmfs/views/tokens.npy",
		Args:    someArgs("files or directories to warm"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.paths, c.stdout, c.stderr = args, cmd.OutOrStdout(), cmd.ErrOrStderr()
			return onMounts(cmd, args, c.run)
		},
	}
	cmd.Flags().Var(&c.rate, "rate-limit", "bytes per second at most, as in 500MB/s (default: as fast as they come)")
	cmd.Flags().BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	return cmd
}

func (c *warmCommand) run(ctx context.Context) error {
	began := time.Now()
	files, total, err := warm.FilesBelow(ctx, c.paths)
	if err != nil {
		return err
	}
	bar := progress.New(c.stderr, "warming", total, true)
	w := warm.New(files, total, int64(c.rate), bar.Add)
	over := make(chan error, 1)
	go func() { over <- w.Run(ctx) }()
	select {
	case err = <-over:
	case <-ctx.Done(): // a read that waits for a source cannot be called off: it ends with this process
		err = errInterrupted
	}
	bar.Close()
	done := w.Summary()
	done.Seconds = time.Since(began).Seconds()
	if c.asJSON {
		out, jsonErr := json.MarshalIndent(done, "", "  ")
		fmt.Fprintf(c.stdout, "%s\n", out)
		err = errors.Join(err, jsonErr)
	} else {
		printWarm(c.stdout, &done)
	}
	if err == nil && done.Left > 0 {
		return fmt.Errorf("%s did not stay in the cache: it is too small, its room is in use, or a view has only parts of segments (then warm the shards); .hbmfs/status of the mount says more", size.Decimal(done.Left))
	}
	return err
}

func printWarm(out io.Writer, d *warm.Summary) {
	fmt.Fprintf(out, "%s files, %s, in %.1f s\n", size.Grouped(int64(d.Files)), size.Decimal(d.Bytes), d.Seconds)
	for _, line := range []struct {
		n    int64
		what string
	}{
		{d.Local, "were in the cache already"},
		{d.Fetched, "were fetched, at " + size.Decimal(int64(float64(d.Fetched)/max(d.Seconds, 1e-6))) + "/s"},
		{d.Left, "are not in the cache"},
		{d.Advised, "lie in local files: the kernel was asked to read them into its page cache"},
		{d.InMount, "are made by the mount, or have no cache to be brought into (hbmfs mount --cache-dir)"},
	} {
		if line.n > 0 {
			fmt.Fprintf(out, "  %s %s\n", size.Decimal(line.n), line.what)
		}
	}
}
