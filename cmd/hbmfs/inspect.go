package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/commands/inspect"
	"github.com/hbmfs/hbmfs/internal/daemon/dataset"
	"github.com/hbmfs/hbmfs/internal/text/address"
	"github.com/hbmfs/hbmfs/layout"
)

// inspectCommand is hbmfs inspect.
type inspectCommand struct {
	printer
	format  string
	dtype   string
	verify  bool
	options dataset.Options
}

func newInspectCommand() *cobra.Command {
	c := &inspectCommand{}
	names, about := layout.Formats()
	var formats strings.Builder
	for i := range names {
		fmt.Fprintf(&formats, "  %-12s %s\n", names[i], about[i])
	}
	cmd := c.work(&cobra.Command{
		Use:   "inspect SOURCE",
		Short: "Describe a dataset: its format, its views, and problems",
		Long: `Recognize the formats of a directory, a file or an address (` + address.Forms("or") + `), and read their indexes in full.
List sets of shards, views, and every problem found. The exit code is 3 when there are problems.

With --verify the bytes themselves are compared with the checksums of ` + layout.ManifestName + `, which hbmfs pack writes.
Without one, files of hf:// and gs:// are compared with the hashes of their source: SHA-256, Git's of small files, or CRC-32C of gs://.

A set is read by a loader as one stream: the shards of one directory, format, split and element type. ALIGN is the largest power
of two that divides every place where tokens begin: 4096 and more suit direct I/O.

Formats:
` + formats.String(),
		Example: "  hbmfs inspect /data/pile\n  hbmfs inspect --json /data/pile | jq '.sets[].tokens'\n  hbmfs inspect --verify /data/packed\n  hbmfs inspect s3://bucket/pile",
	}, exactArgs(1), c.run)
	f := cmd.Flags()
	f.BoolVar(&c.verify, "verify", false, "read all bytes and compare them with the manifest")
	addChoice(cmd, &c.format, "format", "", "look for this format only", names...)
	addRequestFlags(f, &c.options)
	f.StringVar(&c.dtype, "dtype", "", "element `type` of headerless token files: uint16, uint32, int64, ... (default: guessed)")
	return cmd
}

func (c *inspectCommand) run(ctx context.Context, paths []string) error {
	from := paths[0]
	opt, err := layoutOptions(c.format, c.dtype)
	if err != nil {
		return err
	}
	opt.Manifest = inspect.Manifest(from)
	ctx, why := c.options.UntilDark(ctx)
	source, err := openSource(ctx, from, &c.options, c.stderr)
	if err != nil {
		return why(err)
	}
	defer func() { _ = source.Close() }() // opened for reading: nothing is lost
	if address.IsRemote(from) {
		from = source.Name // without the query that may sign it
	}
	listing := source.Listing
	result, err := inspect.Dataset(ctx, from, listing.Objects, opt, inspect.Options{Verify: c.verify, Progress: c.bar})
	if err != nil {
		return why(err)
	}
	if _, err := os.Stat(from); errors.Is(err, syscall.ENOTCONN) { // every file is a problem then, and none is the dataset's
		return fmt.Errorf("the daemon of the mount that %s lies in ended meanwhile: mount it again", from)
	}
	result.Problems = append(result.Problems, listing.Problems...)
	return problems(c.print(result, func() { c.write(result) }), len(result.Problems) > 0)
}
