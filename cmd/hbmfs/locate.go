package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/internal/where"
)

// locateCommand is hbmfs locate.
type locateCommand struct {
	file   string
	asJSON bool
	stdout io.Writer
}

func newLocateCommand() *cobra.Command {
	c := &locateCommand{}
	cmd := &cobra.Command{
		Use:   "locate FILE",
		Short: "Name the backing files of a file in a mount, for programs that call cuFile themselves",
		Long: `Name the files of this machine that the bytes of FILE lie in, and where in them. FILE is in a mount of hbmfs. A program that
calls cuFile itself (kvikio, DALI, cuDF, DeepSpeed) opens these, and not FILE: cuFile on a file of a FUSE mount is never direct.

A file that is one whole local file is answered by one path. A view has a line for each run of equal pieces: the piece at OFFSET
lies in PATH from byte AT on, the next one STRIDE further. Each path is compared with the file that the daemon reads: device and
inode are the same.

Bytes of a remote source lie in segments of the mount's cache, which may be evicted while no reader has them open. hbmfs
counts no bytes that are read so.`,
		Example: "  hbmfs locate /mnt/pile/train.bin\n  hbmfs locate --json /mnt/pile/train.bin | jq -r .whole",
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.file, c.stdout = args[0], cmd.OutOrStdout()
			return onMounts(cmd, args, c.run)
		},
	}
	cmd.Flags().BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	return cmd
}

func (c *locateCommand) run(ctx context.Context) error {
	l, err := where.Locate(ctx, c.file)
	if err != nil {
		return err
	}
	switch {
	case c.asJSON:
		err = writeJSON(c.stdout, l)
	case l.Whole != "":
		_, err = fmt.Fprintln(c.stdout, l.Whole)
	default:
		t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprint(t, "OFFSET\tLENGTH\tCOUNT\tAT\tSTRIDE\tPATH\n")
		for _, r := range l.Runs {
			at, stride, path := size.Grouped(r.At), "-", r.Path
			if r.Why != "" {
				at, path = "-", "("+r.Why+")"
			}
			if r.Count > 1 {
				stride = size.Grouped(r.Stride)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", size.Grouped(r.Offset), size.Grouped(r.Length), size.Grouped(r.Count), at, stride, path)
		}
		err = t.Flush()
	}
	if err == nil && !l.Local {
		return errProblems
	}
	return err
}
