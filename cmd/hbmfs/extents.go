package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/commands/top"
	"github.com/hbmfs/hbmfs/internal/commands/where"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// extentsCommand is hbmfs extents.
type extentsCommand struct{ printer }

func newExtentsCommand() *cobra.Command {
	c := &extentsCommand{}
	cmd := c.work(&cobra.Command{
		Use:   "extents FILE",
		Short: "Say where the bytes of a file in a mount lie",
		Long: `Ask the daemon where every byte of FILE lies, over the control channel that GPU readers use. FILE is in a mount of
hbmfs; the paths of the answer are relative to the mount's source. Bytes that hbmfs makes, such as the header of
tokens.npy, are in no file of the source: they are marked "inline". Bytes of a remote source lie in files
below segments/ of the mount's cache, or are marked "pending" as long as they are not on this machine.

The table shows equal pieces at equal distances in one line. --json lists each piece:

  {"size": 1034, "extents": [{"logical": 0, "length": 128, "path": "", "offset": 0, "flags": ["inline"]}, ...]}`,
		Example: "  hbmfs extents /mnt/pile/.hbmfs/views/tokens.npy\n  hbmfs extents --json /mnt/pile/train.bin | jq '.extents[0]'",
	}, exactArgs(1), c.run)
	cmd.Flags().Lookup("json").Usage = "print the result as JSON, piece by piece"
	return cmd
}

func (c *extentsCommand) run(ctx context.Context, paths []string) error {
	f, err := os.Open(paths[0])
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	info, err := control.Info(f)
	if err != nil {
		return err
	}
	extents, err := where.Extents(ctx, f, "hbmfs extents")
	if err != nil {
		return err
	}
	if !c.asJSON {
		c.printTable(paths[0], info, extents)
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

func (c *extentsCommand) printTable(file string, info control.FileInfo, extents []where.Extent) {
	pieces := int64(0)
	for _, e := range extents {
		pieces += e.Count
	}
	fmt.Fprintf(c.stdout, "%s: %s, %s pieces in %s extents, alignment %d\n\n", top.Printable(file), size.Decimal(info.Size), size.Grouped(pieces), size.Grouped(int64(len(extents))), info.Alignment)
	t := c.table("LOGICAL\tLENGTH\tCOUNT\tOFFSET\tSTRIDE\tPATH")
	defer t.Flush()
	for _, e := range extents {
		path, offset, stride := top.Printable(e.Name), size.Grouped(e.Offset), "-"
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
