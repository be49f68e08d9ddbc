package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/commands/top"
	"github.com/hbmfs/hbmfs/internal/commands/where"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// locateCommand is hbmfs locate.
type locateCommand struct{ printer }

func newLocateCommand() *cobra.Command {
	c := &locateCommand{}
	return c.work(&cobra.Command{
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
	}, exactArgs(1), c.run)
}

func (c *locateCommand) run(ctx context.Context, paths []string) error {
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
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", size.Grouped(r.Offset), size.Grouped(r.Length), size.Grouped(r.Count), at, stride, top.Printable(path))
	}
}
