package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/csi/host"
	"github.com/hbmfs/hbmfs/internal/csi/roots"
	"github.com/hbmfs/hbmfs/internal/csi/rpc"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

type hostCommand struct {
	opt      host.Options
	minFree  size.Flag
	kvMemory size.Amount
	log      logFlags
}

func newHostCommand() *cobra.Command {
	c := &hostCommand{}
	cmd := &cobra.Command{
		Use:   "host",
		Short: "Keep the daemons and mounts of this node's volumes",
		Long: `Keep the daemons and mounts of this node's volumes, for the plugin.

It needs root with CAP_SYS_ADMIN, /dev/fuse, and, in a container, the state directory and kubelet's directory with
mountPropagation Bidirectional, and hostPID: to replace the mount of a daemon that died inside of the pods that use it.
Directories that volumes show must be there at the same path.

SIGTERM ends it and leaves daemons and mounts as they are; the next host goes on with them. Where that is a container, its
daemons end with it. The plugin holds their mounts for 30 s then: the next host starts daemons that go on with them, and
readers wait. Later, before Linux 6.9, or without a plugin the next host mounts the volumes again under the pods: readers of
whole files go on meanwhile, others get errors.

State, all of it below --state-dir: volumes/KEY/volume.json (what was asked for and who uses it), volumes/KEY/mnt (the mount),
volumes/KEY/log (of its daemon), volumes/KEY/credentials or token (for root alone).

A checkpoint volume whose last pod has left keeps its daemon until all that is published is at its destination, or until
--drain-patience has passed without a success. A KV volume keeps it, and so its memory, for the time of its attribute keepFor, unless
another volume needs its directory or its memory. Memory of KV volumes is this process's container's: --kv-memory bounds it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&c.opt.StateDir, "state-dir", defaultState, "directory for sockets, mounts and records")
	f.StringVar(&c.opt.CacheDir, "cache-dir", "", "directory on a local disk (ext4, XFS) for bytes of remote sources, shared by all volumes (default: cache in the state directory)")
	f.Var(&c.minFree, "cache-min-free", "least bytes that the cache leaves free of its disk, as in 100GiB; volumes may ask for more (default: a fifth of a disk that has kubelet's directory, too)")
	f.IntVar(&c.opt.MaxDaemons, "max-daemons", 128, "daemons that this node may have, one for each different volume, of 40 to 110 MiB; further volumes are refused; 0 is no limit")
	f.IntVar(&c.opt.MaxOfNamespace, "max-daemons-per-namespace", 64, "daemons that the pods of one namespace may have of those; volumes that administrators made do not count; 0 is no limit")
	f.StringVar(&c.opt.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "kubelet's directory: nothing is mounted for pods anywhere else")
	f.StringVar(&c.opt.HBMFS, "hbmfs", "", "the hbmfs program (default: beside this one, or on the PATH)")
	f.StringArrayVar(&c.opt.AllowSource, "allow-source", nil, "directory of this node below which volumes may show directories; may be given again (default: none)")
	f.StringArrayVar(&c.opt.AllowCheckpoints, "allow-checkpoints", nil, "directory of a local disk of this node below which checkpoint volumes may lie, inline ones below the name of their namespace there; may be given again (default: none)")
	f.StringArrayVar(&c.opt.AllowKV, "allow-kv", nil, "directory of a local disk of this node below which KV volumes may lie, inline ones below the name of their namespace there; may be given again (default: none)")
	f.Var(&c.kvMemory, "kv-memory", "memory that all KV volumes of this node together may take, as in 64GiB, the inline ones of one namespace half of it (default: none, so that KV volumes are on the disk alone)")
	f.Lookup("kv-memory").DefValue = ""
	f.DurationVar(&c.opt.DrainPatience, "drain-patience", time.Hour, "how long a checkpoint volume that no pod uses any more goes on with a drain that gets nothing to its destination")
	f.StringArrayVar(&c.opt.AllowAddress, "allow-address", nil, "loopback, link-local or metadata address of this node, or prefix such as 127.0.0.0/8, at which volumes may have their source; may be given again (default: none)")
	c.log.add(cmd)
	return cmd
}

func (c *hostCommand) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	log, err := c.log.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if err := c.settle(); err != nil {
		return err
	}
	c.opt.Log = log
	h, err := host.New(ctx, c.opt)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }() // the lock of the state directory goes with the process
	if err := h.Start(); err != nil {
		return err
	}
	if err := h.Hold(filepath.Join(c.opt.StateDir, holdSocket)); err != nil {
		return err
	}
	server := rpc.NewServer(log, &rpc.Calls{})
	service := host.Service{Host: h}
	csi.RegisterIdentityServer(server, service)
	csi.RegisterNodeServer(server, service)
	listener, err := rpc.Listen(filepath.Join(c.opt.StateDir, hostSocket))
	if err != nil {
		return err
	}
	at, err := rpc.Listen(filepath.Join(c.opt.StateDir, metricsSocket))
	if err != nil {
		return err
	}
	log.Info("the host answers", "state", c.opt.StateDir, "hbmfs", c.opt.HBMFS, "version", version)
	return serve(ctx, answers(server, listener), page(at, h))
}

// settle fills in flags that were not given, and makes paths those of the mount table.
func (c *hostCommand) settle() error {
	if c.opt.MaxDaemons < 0 || c.opt.MaxOfNamespace < 0 {
		return errors.New("--max-daemons and --max-daemons-per-namespace cannot be negative: 0 is no limit")
	}
	if c.kvMemory < 0 {
		return errors.New("--kv-memory cannot be negative: 0 is none")
	}
	c.opt.CacheMinFree, c.opt.KVMemory = int64(c.minFree), int64(c.kvMemory)
	for _, a := range c.opt.AllowAddress {
		_, err := netip.ParseAddr(a)
		if _, prefixErr := netip.ParsePrefix(a); err != nil && prefixErr != nil {
			return fmt.Errorf("--allow-address %q: want an address such as 127.0.0.1 or a prefix such as 127.0.0.0/8", a)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("hbmfs-csi host mounts for other users, which only root can")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.opt.Helper = []string{self, insideName}
	if c.opt.HBMFS == "" {
		c.opt.HBMFS = filepath.Join(filepath.Dir(self), "hbmfs")
		if _, err := os.Stat(c.opt.HBMFS); err != nil {
			c.opt.HBMFS = "hbmfs"
		}
	}
	if c.opt.HBMFS, err = exec.LookPath(c.opt.HBMFS); err != nil {
		return fmt.Errorf("find hbmfs, which serves the mounts (--hbmfs names it): %w", err)
	}
	if c.opt.HBMFS, err = filepath.Abs(c.opt.HBMFS); err != nil {
		return err
	}
	if err := os.MkdirAll(c.opt.StateDir, 0o755); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	if c.opt.StateDir, err = filepath.Abs(c.opt.StateDir); err != nil {
		return err
	}
	if c.opt.StateDir, err = filepath.EvalSymlinks(c.opt.StateDir); err != nil {
		return fmt.Errorf("find the state directory: %w", err)
	}
	if c.opt.CacheDir == "" {
		c.opt.CacheDir = filepath.Join(c.opt.StateDir, "cache")
	}
	for _, dir := range slices.Concat([]string{c.opt.KubeletDir, c.opt.CacheDir}, c.opt.AllowSource, c.opt.AllowCheckpoints, c.opt.AllowKV) {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("%q: --kubelet-dir, --cache-dir, --allow-source, --allow-checkpoints and --allow-kv want absolute paths", dir)
		}
	}
	return c.checkWritten()
}

// checkWritten refuses directories of checkpoint volumes and KV volumes that have something else in them.
func (c *hostCommand) checkWritten() error {
	for flag, dirs := range map[string][]string{"--allow-checkpoints": c.opt.AllowCheckpoints, "--allow-kv": c.opt.AllowKV} {
		for i, dir := range dirs {
			dirs[i] = filepath.Clean(dir)
			for _, other := range []string{c.opt.StateDir, c.opt.KubeletDir, c.opt.CacheDir} {
				if roots.Overlap(dirs[i], other) {
					return fmt.Errorf("%s %s: programs write there, and %s is this driver's or kubelet's: name a directory beside it", flag, dir, other)
				}
			}
		}
	}
	for _, dir := range c.opt.AllowKV {
		for _, other := range slices.Concat(c.opt.AllowCheckpoints, c.opt.AllowSource) {
			if roots.Overlap(dir, other) {
				return fmt.Errorf("--allow-kv %s: a KV volume has its directory for itself, and other volumes may show %s: name a directory beside it", dir, other)
			}
		}
	}
	return nil
}
