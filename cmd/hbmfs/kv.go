package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/commands/kvadmin"
	"github.com/hbmfs/hbmfs/internal/commands/top"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// kvCommand is one of the commands below hbmfs kv.
type kvCommand struct{ printer }

func newKVCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "List namespaces of KV volumes, count hits, verify, clear",
		Long: `Look after a KV volume, which hbmfs kv mount has mounted at MOUNT. Engines keep blocks of their KV caches there: in
namespaces, one for each model and layout, of blocks of one size. Blocks lie in slots of preallocated files, in memory before the
disk. A new block takes the place of the one that nobody holds and that was found the longest ago. A namespace is an entry of
MOUNT, and its mode says who may read and write.

docs/guide/kv-volumes.md says when a volume pays, and which blocks survive a crash.`,
	}
	addCommands(cmd, newKVMountCommand(), newKVListCommand(), newKVStatsCommand(), newKVVerifyCommand(), newKVClearCommand())
	return cmd
}

// bind gives a command below hbmfs kv its arguments, its flag and its work on a mounted volume, whose namespaces are those that are named.
func (c *kvCommand) bind(cmd *cobra.Command, args cobra.PositionalArgs, run func(context.Context, *kvadmin.Volume, string) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = args, completeDirectories
	c.takeJSON(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.onMounts(cmd, args[:1], func(ctx context.Context) error {
			v, err := kvadmin.Open(args[0], args[1:])
			if err != nil {
				return err
			}
			return run(ctx, v, args[0])
		})
	}
	return cmd
}

func newKVListCommand() *cobra.Command {
	c := &kvCommand{}
	return c.bind(&cobra.Command{
		Use:   "ls MOUNT",
		Short: "List the namespaces of a KV volume",
		Long: `List the namespaces of the KV volume at MOUNT: whose they are, who may use them, and how large a block is. MEMORY and
DISK are their sizes there, and BLOCKS the number of blocks. A block that is in memory and on the disk counts twice. HITS says how
many keys of a hundred were found since the daemon began, and USED when somebody used them last.`,
		Example: "  hbmfs kv ls /mnt/kv\n  hbmfs kv ls --json /mnt/kv | jq -r '.namespaces[].name'",
	}, exactArgs(1), func(_ context.Context, v *kvadmin.Volume, _ string) error {
		return c.print(v.KV, func() {
			t := c.table("NAME\tMODE\tUSER\tBLOCK\tMEMORY\tDISK\tBLOCKS\tHITS\tUSED")
			defer t.Flush()
			for i := range v.Namespaces {
				n := &v.Namespaces[i]
				fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, n.Mode, n.UID, size.Binary(n.BlockBytes), size.Binary(int64(n.Memory.Allocated)), size.Binary(int64(n.Disk.Allocated)),
					size.Grouped(int64(n.Memory.Blocks+n.Disk.Blocks)), top.HitRate(n.Hits, n.Misses), n.Used.Local().Format(time.DateTime))
			}
		})
	})
}

func newKVStatsCommand() *cobra.Command {
	c := &kvCommand{}
	return c.bind(&cobra.Command{
		Use:   "stats MOUNT [NAMESPACE...]",
		Short: "Count hits, evictions and pins of a KV volume",
		Long: `Print the counts of the namespaces that are named, or of all, of the KV volume at MOUNT. They count keys that were found,
by tier, and not found. They count blocks that were stored, that were there already, and for which there was no room. They also
count evictions, bytes that were copied between the tiers, and failures. It names the processes that hold pins and reservations.
Counts begin anew with each daemon.`,
		Example: "  hbmfs kv stats /mnt/kv\n  hbmfs kv stats --json /mnt/kv llama-8b",
	}, someArgs("mounts"), func(_ context.Context, v *kvadmin.Volume, _ string) error {
		return c.print(v.KV, func() {
			t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
			top.WriteKV(t, v.KV, true)
			t.Flush()
		})
	})
}

func newKVVerifyCommand() *cobra.Command {
	c := &kvCommand{}
	return c.bind(&cobra.Command{
		Use:   "verify MOUNT [NAMESPACE...]",
		Short: "Compare blocks of a KV volume with their checksums",
		Long: `Have the daemon of MOUNT read all blocks of the named namespaces, or of all. It compares them with the checksums that
engines gave (CRC-32C). A block that does not match is dropped. Blocks without a checksum are counted. A block that is in memory
and on the disk is compared in both, and counts twice. Engines go on meanwhile.

It needs the right to write the namespaces. The exit code is 3 when something was damaged. Ctrl-C stops it.`,
		Example: "  hbmfs kv verify /mnt/kv\n  hbmfs kv verify --json /mnt/kv llama-8b",
	}, someArgs("mounts"), func(ctx context.Context, v *kvadmin.Volume, mount string) error {
		all, err := v.Verify(ctx, c.bar)
		if err != nil {
			return err
		}
		damaged := false
		err = c.print(map[string]any{"mount": mount, "namespaces": all}, func() {
			if len(all) == 0 {
				fmt.Fprintf(c.stdout, "%s has no namespaces\n", mount)
			}
			for _, n := range all {
				fmt.Fprintf(c.stdout, "%s: %s in %s blocks, read at %s, %d damaged and dropped, %s without a checksum\n", n.Namespace, size.Decimal(int64(n.Bytes)), size.Grouped(int64(n.Blocks)),
					perSecond(int64(n.Bytes), n.Seconds), n.Damaged, size.Grouped(int64(n.Unknown)))
			}
		})
		for _, n := range all {
			damaged = damaged || n.Damaged > 0
		}
		return problems(err, damaged)
	})
}

func newKVClearCommand() *cobra.Command {
	c, all := &kvCommand{}, false
	cmd := c.bind(&cobra.Command{
		Use:   "clear MOUNT NAMESPACE...",
		Short: "Remove all blocks of namespaces of a KV volume",
		Long: `Remove all blocks of the namespaces that are named, or of --all, from the KV volume at MOUNT. It asks nothing: engines
compute the blocks again. Blocks that somebody has pinned are found no more, and go when the last pin goes. Their space on the
disk is then free for others. Their memory is free once no engine has them open.

It needs the right to write the namespaces. The names stay.`,
		Example: "  hbmfs kv clear /mnt/kv llama-8b\n  hbmfs kv clear --all /mnt/kv",
	}, someArgs("mounts"), func(ctx context.Context, v *kvadmin.Volume, mount string) error {
		names, blocks, err := v.Clear(ctx)
		if err != nil {
			return err
		}
		return c.print(map[string]any{"mount": mount, "namespaces": names, "blocks": blocks}, func() {
			fmt.Fprintf(c.stdout, "%s: removed %s blocks of %d namespaces\n", mount, size.Grouped(int64(blocks)), len(names))
		})
	})
	cmd.Flags().BoolVar(&all, "all", false, "all namespaces")
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		if all == (len(args) > 1) {
			return cli.Mistakef("name the namespaces to clear, or --all")
		}
		return nil
	}
	return cmd
}
