package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/daemon/dataset"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/layout"
)

// lsCommand is hbmfs ls.
type lsCommand struct {
	printer
	options dataset.Options
}

func newLsCommand() *cobra.Command {
	c := &lsCommand{}
	cmd := c.work(&cobra.Command{
		Use:   "ls SOURCE",
		Short: "List the files of a source without mounting it",
		Long: `List the files that a mount of SOURCE would show: size in bytes, date of the last change, name. SOURCE is a directory, s3://BUCKET/PREFIX
or http(s)://HOST/DIRECTORY/, as of hbmfs mount. No byte of a file is read.

Files that a mount would leave out, or that may not be read, are named with the reason, and the exit code is 3.`,
		Example: "  hbmfs ls s3://bucket/pile\n  hbmfs ls https://host/pile/\n  hbmfs ls --json s3://bucket/pile | jq '[.files[].size] | add'",
	}, exactArgs(1), c.run)
	addRequestFlags(cmd.Flags(), &c.options)
	return cmd
}

// sourceFiles is the JSON of hbmfs ls.
type sourceFiles struct {
	Source   string           `json:"source"`
	Files    []sourceFile     `json:"files"`
	Problems []layout.Problem `json:"problems"`
}

type sourceFile struct {
	Name     string    `json:"name"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Version  string    `json:"version"`
}

func (c *lsCommand) run(ctx context.Context, paths []string) error {
	source, err := openSource(ctx, paths[0], &c.options, c.stderr)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // opened for reading: nothing is lost
	all := sourceFiles{Source: source.Name, Files: []sourceFile{}, Problems: append([]layout.Problem{}, source.Listing.Problems...)}
	for _, o := range source.Listing.Objects {
		all.Files = append(all.Files, sourceFile{o.Name, o.Size, o.ModTime, o.Version})
	}
	return problems(c.print(all, func() { c.write(all) }), len(all.Problems) > 0)
}

func (c *lsCommand) write(all sourceFiles) {
	for _, f := range all.Files {
		modified := "-"
		if !f.Modified.IsZero() {
			modified = f.Modified.Local().Format("2006-01-02 15:04")
		}
		fmt.Fprintf(c.stdout, "%15d  %16s  %s\n", f.Size, modified, cli.Printable(f.Name))
	}
	for _, p := range all.Problems {
		fmt.Fprintln(c.stderr, cli.Printable(p.String()))
	}
}
