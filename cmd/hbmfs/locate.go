package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/commands/where"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// locateCommand is hbmfs locate.
type locateCommand struct {
	extents bool
	printer
}

func newLocateCommand() *cobra.Command {
	c := &locateCommand{}
	cmd := c.work(&cobra.Command{
		Use:   "locate FILE",
		Short: "Name the backing files of a file in a mount",
		Long: `Name the files of this machine that the bytes of FILE lie in, and where in them. FILE is in a mount of hbmfs. A program
that calls cuFile itself (kvikio, DALI, cuDF, DeepSpeed) opens these, and not FILE. cuFile on a file of a FUSE mount is never
direct.

A file that is one whole local file is answered by one path. A view has a line for each run of equal pieces. The piece at OFFSET
lies in PATH from byte AT on, the next one STRIDE further. Each path is compared with the file that the daemon reads: device and
inode are the same.

Bytes of a remote source lie in segments of the mount's cache, which may be evicted while no reader has them open. hbmfs
counts no bytes that are read so.

--extents prints the answer that GPU readers get over the control channel. Paths are then relative to the mount's source, or below
segments/ of its cache. Bytes that hbmfs makes, such as the header of tokens.npy, are marked "inline". Bytes that are not on this
machine yet are marked "pending". The table shows equal pieces at equal distances in one line; --json lists each piece.`,
		Example: `  hbmfs locate /mnt/pile/train.bin
  hbmfs locate --json /mnt/pile/train.bin | jq -r .whole
  hbmfs locate --extents /mnt/pile/.hbmfs/views/tokens.npy
  hbmfs locate --extents --json /mnt/pile/train.bin | jq '.extents[0]'`,
	}, exactArgs(1), c.run)
	cmd.Flags().BoolVar(&c.extents, "extents", false, "print the extents that the daemon tells GPU readers")
	return cmd
}

func (c *locateCommand) run(ctx context.Context, paths []string) error {
	if c.extents {
		return c.runExtents(ctx, paths[0])
	}
	l, err := where.Locate(ctx, paths[0])
	if err != nil {
		return err
	}
	return problems(c.print(l, func() { c.write(l) }), !l.Local)
}

func (c *locateCommand) write(l *where.Location) {
	if l.Whole != "" {
		fmt.Fprintln(c.stdout, l.Whole)
		return
	}
	t := c.table("OFFSET\tLENGTH\tCOUNT\tAT\tSTRIDE\tPATH")
	defer t.Flush()
	for _, r := range l.Runs {
		at, stride, path := size.Grouped(r.At), "-", r.Path
		if r.Why != "" {
			at, path = "-", "("+r.Why+")"
		}
		if r.Count > 1 {
			stride = size.Grouped(r.Stride)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", size.Grouped(r.Offset), size.Grouped(r.Length), size.Grouped(r.Count), at, stride, cli.Printable(path))
	}
}
