package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/dataset"
	"github.com/hbmfs/hbmfs/internal/inspect"
	"github.com/hbmfs/hbmfs/internal/progress"
	"github.com/hbmfs/hbmfs/layout"
)

// inspectCommand is hbmfs inspect.
type inspectCommand struct {
	source string
	format string
	dtype  string
	asJSON bool
	verify bool

	options dataset.Options

	stdout, stderr io.Writer
}

func newInspectCommand() *cobra.Command {
	c := &inspectCommand{}
	names, about := layout.Formats()
	var formats strings.Builder
	for i := range names {
		fmt.Fprintf(&formats, "  %-12s %s\n", names[i], about[i])
	}
	cmd := &cobra.Command{
		Use:   "inspect SOURCE",
		Short: "Say what a dataset is, which views it has, and what is wrong with it",
		Long: `Recognize the formats of a directory, a file or an s3:// or http:// source, read their indexes in full, and list sets of shards, views, and every
problem found. The exit code is 3 when there are problems.

With --verify the bytes themselves are compared with the checksums of ` + layout.ManifestName + `, which hbmfs pack writes.

A set is what a loader reads as one stream: the shards of one directory, format, split and element type. ALIGN is the
largest power of two that divides every place where tokens begin: 4096 and more suit direct I/O.

Formats:
` + formats.String(),
		Example: "  hbmfs inspect /data/pile\n  hbmfs inspect --json /data/pile | jq '.sets[].tokens'\n  hbmfs inspect --verify /data/packed\n  hbmfs inspect s3://bucket/pile",
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.source, c.stdout, c.stderr = args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()
			return onMounts(cmd, args, c.run)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	f.BoolVar(&c.verify, "verify", false, "read all bytes and compare them with the manifest")
	addChoice(cmd, &c.format, "format", "", "look for this format only", names...)
	addRequestFlags(f, &c.options)
	f.StringVar(&c.dtype, "dtype", "", "element type of headerless token files: u16, u32, ...")
	return cmd
}

func (c *inspectCommand) run(ctx context.Context) error {
	opt, err := layoutOptions(c.format, c.dtype)
	if err != nil {
		return err
	}
	opt.Manifest = inspect.Manifest(c.source)
	source, err := openSource(ctx, c.source, &c.options, c.stderr)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // opened for reading: nothing is lost
	listing := source.Listing
	result, err := inspect.Dataset(ctx, c.source, listing.Objects, opt, inspect.Options{Verify: c.verify, Progress: c.progress})
	if err != nil {
		return err
	}
	if _, err := os.Stat(c.source); errors.Is(err, syscall.ENOTCONN) { // every file is a problem then, and none is the dataset's
		return fmt.Errorf("the daemon of the mount that %s lies in ended meanwhile: mount it again", c.source)
	}
	result.Problems = append(result.Problems, listing.Problems...)
	if err := c.print(result); err != nil {
		return err
	}
	if len(result.Problems) > 0 {
		return errProblems
	}
	return nil
}

func (c *inspectCommand) progress(doing string, total int64, bytes bool) (add func(int64), end func()) {
	bar := progress.New(c.stderr, doing, total, bytes)
	return bar.Add, bar.Close
}

func (c *inspectCommand) print(r *inspect.Report) error {
	if !c.asJSON {
		return printInspection(c.stdout, r)
	}
	return writeJSON(c.stdout, r)
}
