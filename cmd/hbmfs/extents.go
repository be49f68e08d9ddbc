package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/commands/where"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// runExtents asks the daemon where every byte of a file lies.
func (c *locateCommand) runExtents(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	info, err := control.Info(f)
	if err != nil {
		return err
	}
	extents, err := where.Extents(ctx, f, "hbmfs locate")
	if err != nil {
		return err
	}
	if !c.asJSON {
		c.printExtents(path, info, extents)
		return nil
	}
	out := bufio.NewWriter(c.stdout)
	return errors.Join(writeExtentsJSON(out, info.Size, extents), out.Flush())
}

// writeExtentsJSON writes piece by piece: a regular view can have many millions.
func writeExtentsJSON(w *bufio.Writer, size int64, extents []where.Extent) error {
	fmt.Fprintf(w, `{"size": %d, "extents": [`, size)
	separator := "\n"
	for _, e := range extents {
		path, err := json.Marshal(e.Name)
		if err != nil {
			return err
		}
		flags := "[]"
		switch {
		case e.Flags&control.ExtentPending != 0:
			flags = `["pending"]`
		case e.Flags&control.ExtentMount != 0:
			flags = `["inline"]`
		}
		for k := range e.Count {
			fmt.Fprintf(w, `%s{"logical": %d, "length": %d, "path": %s, "offset": %d, "flags": %s}`, separator, e.Logical+k*e.Length, e.Length,
				path, e.Offset+k*e.Stride, flags)
			separator = ",\n"
		}
	}
	_, err := fmt.Fprint(w, "\n]}\n")
	return err
}

func (c *locateCommand) printExtents(file string, info control.FileInfo, extents []where.Extent) {
	pieces := int64(0)
	for _, e := range extents {
		pieces += e.Count
	}
	fmt.Fprintf(c.stdout, "%s: %s, %s pieces in %s extents, alignment %d\n\n", cli.Printable(file), size.Decimal(info.Size), size.Grouped(pieces), size.Grouped(int64(len(extents))), info.Alignment)
	t := c.table("LOGICAL\tLENGTH\tCOUNT\tOFFSET\tSTRIDE\tPATH")
	defer t.Flush()
	for _, e := range extents {
		path, offset, stride := cli.Printable(e.Name), size.Grouped(e.Offset), "-"
		switch {
		case e.Flags&control.ExtentPending != 0:
			path, offset = "(not on this machine yet)", "-"
		case e.Flags&control.ExtentMount != 0:
			path, offset = "(inline)", "-"
		}
		if e.Count > 1 {
			stride = size.Grouped(e.Stride)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", size.Grouped(e.Logical), size.Grouped(e.Length), size.Grouped(e.Count), offset, stride, path)
	}
}
