package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/progress"
	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/internal/status"
	"github.com/hbmfs/hbmfs/internal/top"
)

// kvCommand has the fields of all commands below hbmfs kv.
type kvCommand struct {
	mount          string
	names          []string
	asJSON         bool
	stdout, stderr io.Writer
}

func newKVCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Look after KV volumes: list namespaces, count hits, verify blocks, clear",
		Long: `Look after a KV volume, which hbmfs mount --kv has mounted at MOUNT. Engines keep blocks of their KV caches there: in namespaces, one for each
model and layout, of blocks of one size. Blocks lie in slots of preallocated files, in memory before the disk; what nobody holds and nobody
has found for the longest time makes room. A namespace is an entry of MOUNT, and its mode says who may read and write.

docs/kv-volumes.md says when a volume pays, and what survives what.`,
	}
	addCommands(cmd, newKVListCommand(), newKVStatsCommand(), newKVVerifyCommand(), newKVClearCommand())
	return cmd
}

// bind gives a command below hbmfs kv its arguments, its flag and its work.
func (c *kvCommand) bind(cmd *cobra.Command, names cobra.PositionalArgs, run func(context.Context) error) *cobra.Command {
	cmd.Args = names
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	cmd.Flags().BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.mount, c.names, c.stdout, c.stderr = args[0], args[1:], cmd.OutOrStdout(), cmd.ErrOrStderr()
		return onMounts(cmd, args[:1], run)
	}
	return cmd
}

// status reads the status of the volume, and keeps the namespaces that were named.
func (c *kvCommand) status() (*status.KV, error) {
	root, err := control.Root(c.mount)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, fs.ControlName, "status"))
	if err != nil {
		return nil, err
	}
	s := &status.Status{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read the status of %s: %w", root, err)
	}
	if s.KV == nil {
		return nil, fmt.Errorf("%s is no KV volume: hbmfs mount --kv makes one", root)
	}
	if len(c.names) == 0 {
		return s.KV, nil
	}
	var wanted []status.Namespace
	for _, name := range c.names {
		found := false
		for _, n := range s.KV.Namespaces {
			if n.Name == name {
				wanted, found = append(wanted, n), true
			}
		}
		if !found {
			return nil, fmt.Errorf("%s has no namespace %q: hbmfs kv ls %s lists them", root, name, c.mount)
		}
	}
	s.KV.Namespaces = wanted
	return s.KV, nil
}

func newKVListCommand() *cobra.Command {
	c := &kvCommand{}
	return c.bind(&cobra.Command{
		Use:   "ls MOUNT",
		Short: "List the namespaces of a KV volume",
		Long: `List the namespaces of the KV volume at MOUNT: whose they are and who may use them, how large a block is, how many blocks memory and disk have and
what they take there, how many keys of a hundred were found since the daemon began, and when somebody used them last.`,
		Example: "  hbmfs kv ls /mnt/kv\n  hbmfs kv ls --json /mnt/kv | jq -r '.namespaces[].name'",
	}, exactArgs(1), func(context.Context) error {
		s, err := c.status()
		if err != nil {
			return err
		}
		if c.asJSON {
			return writeJSON(c.stdout, s)
		}
		t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprint(t, "NAME\tMODE\tUSER\tBLOCK\tMEMORY\tDISK\tBLOCKS\tHITS\tUSED\n")
		for i := range s.Namespaces {
			n := &s.Namespaces[i]
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, n.Mode, n.UID, size.Binary(n.BlockBytes), size.Binary(int64(n.Memory.Allocated)), size.Binary(int64(n.Disk.Allocated)),
				size.Grouped(int64(n.Memory.Blocks+n.Disk.Blocks)), top.HitRate(n.Hits, n.Misses), n.Used.Local().Format(time.DateTime))
		}
		return t.Flush()
	})
}

func newKVStatsCommand() *cobra.Command {
	c := &kvCommand{}
	return c.bind(&cobra.Command{
		Use:   "stats MOUNT [NAMESPACE...]",
		Short: "Count hits, evictions and pins of a KV volume",
		Long: `Print the counts of namespaces of the KV volume at MOUNT, of all where none is named: keys that were found, by tier, and not found; blocks that were
stored, that were there already, and for which there was no room; evictions, bytes that were copied between the tiers, failures; and the processes
that hold pins and reservations. Counts begin anew with each daemon.`,
		Example: "  hbmfs kv stats /mnt/kv\n  hbmfs kv stats --json /mnt/kv llama-8b",
	}, someArgs("mounts"), func(context.Context) error {
		s, err := c.status()
		if err != nil {
			return err
		}
		if c.asJSON {
			return writeJSON(c.stdout, s)
		}
		t := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		top.WriteKV(t, s, true)
		return t.Flush()
	})
}

// kvVerification is the result of hbmfs kv verify for one namespace.
type kvVerification struct {
	Namespace string  `json:"namespace"`
	Blocks    uint64  `json:"blocks"`
	Bytes     uint64  `json:"bytes"`
	Unknown   uint64  `json:"without_checksum"`
	Damaged   uint64  `json:"damaged"`
	Seconds   float64 `json:"seconds"`
}

func newKVVerifyCommand() *cobra.Command {
	c := &kvCommand{}
	return c.bind(&cobra.Command{
		Use:   "verify MOUNT [NAMESPACE...]",
		Short: "Compare blocks of a KV volume with their checksums",
		Long: `Have the daemon read all blocks of namespaces of the KV volume at MOUNT, of all where none is named, and compare them with the checksums that engines
gave (CRC-32C). A block that does not match is dropped. Blocks without a checksum are counted. Engines go on meanwhile.

It needs the right to write the namespaces. The exit code is 3 when something was damaged. Ctrl-C stops it.`,
		Example: "  hbmfs kv verify /mnt/kv\n  hbmfs kv verify --json /mnt/kv llama-8b",
	}, someArgs("mounts"), func(ctx context.Context) error {
		all := []kvVerification{}
		damaged := uint64(0)
		err := c.each(ctx, func(name string, n *control.Namespace) error {
			v, err := c.verify(ctx, name, n)
			damaged += v.Damaged
			all = append(all, v)
			return err
		})
		if err != nil {
			return err
		}
		if c.asJSON {
			err = writeJSON(c.stdout, map[string]any{"mount": c.mount, "namespaces": all})
		} else {
			for _, v := range all {
				fmt.Fprintf(c.stdout, "%s: %s in %s blocks, read at %s/s, %d damaged and dropped, %s without a checksum\n", v.Namespace, size.Decimal(int64(v.Bytes)), size.Grouped(int64(v.Blocks)),
					size.Decimal(int64(float64(v.Bytes)/max(v.Seconds, 1e-6))), v.Damaged, size.Grouped(int64(v.Unknown)))
			}
		}
		if err == nil && damaged > 0 {
			return errProblems
		}
		return err
	})
}

// verify compares the blocks of one namespace.
func (c *kvCommand) verify(ctx context.Context, name string, n *control.Namespace) (v kvVerification, err error) {
	v.Namespace = name
	began := time.Now()
	var bar *progress.Bar
	defer func() { bar.Close() }()
	for cursor := uint64(0); ; {
		part, err := n.Verify(ctx, cursor)
		if err != nil {
			return v, err
		}
		if bar == nil {
			bar = progress.New(c.stderr, "verifying "+name+", slots", int64(part.Slots), false)
		}
		bar.Add(int64(part.At - cursor))
		v.Blocks, v.Bytes, v.Unknown, v.Damaged = v.Blocks+part.Blocks, v.Bytes+part.Bytes, v.Unknown+part.Unknown, v.Damaged+part.Damaged
		if v.Seconds = time.Since(began).Seconds(); part.Cursor == 0 {
			return v, nil
		}
		cursor = part.Cursor
	}
}

// each calls f with the namespaces that were named, open for writing, or with all.
func (c *kvCommand) each(ctx context.Context, f func(name string, n *control.Namespace) error) error {
	s, err := c.status()
	if err != nil {
		return err
	}
	client, err := control.Dial(ctx, c.mount, "hbmfs kv")
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // all was answered
	for _, one := range s.Namespaces {
		n, err := client.OpenKV(ctx, control.KVOpen{Name: one.Name, Flags: control.KVWrite})
		if errors.Is(err, syscall.EACCES) {
			return fmt.Errorf("%w: it belongs to user %d, with mode %s", err, one.UID, one.Mode)
		}
		if err != nil {
			return err
		}
		if err := errors.Join(f(one.Name, n), n.Close()); err != nil {
			return err
		}
	}
	return nil
}

func newKVClearCommand() *cobra.Command {
	c, all := &kvCommand{}, false
	cmd := c.bind(&cobra.Command{
		Use:   "clear MOUNT NAMESPACE...",
		Short: "Remove all blocks of namespaces of a KV volume",
		Long: `Remove all blocks of the namespaces that are named, or of --all, from the KV volume at MOUNT. It asks nothing: engines compute the blocks again. Blocks
that somebody has pinned are found no more, and go when the last pin goes. What the namespaces took of the disk is free for others; what they took of
memory is, once no engine has them open.

It needs the right to write the namespaces. The names stay.`,
		Example: "  hbmfs kv clear /mnt/kv llama-8b\n  hbmfs kv clear --all /mnt/kv",
	}, someArgs("mounts"), func(ctx context.Context) error {
		s, err := c.status()
		if err != nil {
			return err
		}
		blocks := uint64(0)
		for i := range s.Namespaces {
			blocks += s.Namespaces[i].Memory.Blocks + s.Namespaces[i].Disk.Blocks
		}
		cleared := []string{}
		err = c.each(ctx, func(name string, n *control.Namespace) error {
			cleared = append(cleared, name)
			return n.Clear(ctx)
		})
		if err != nil {
			return err
		}
		if c.asJSON {
			return writeJSON(c.stdout, map[string]any{"mount": c.mount, "namespaces": cleared, "blocks": blocks})
		}
		fmt.Fprintf(c.stdout, "%s: removed %s blocks of %d namespaces\n", c.mount, size.Grouped(int64(blocks)), len(cleared))
		return nil
	})
	cmd.Flags().BoolVar(&all, "all", false, "all namespaces")
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		if all == (len(args) > 1) {
			return usageError{errors.New("name the namespaces to clear, or --all")}
		}
		return nil
	}
	return cmd
}
