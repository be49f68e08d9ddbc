package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/check"
	"github.com/hbmfs/hbmfs/internal/check/live"
	"github.com/hbmfs/hbmfs/internal/cufilejson"
	"github.com/hbmfs/hbmfs/internal/deepspeed"
	"github.com/hbmfs/hbmfs/internal/onmount"
	"github.com/hbmfs/hbmfs/internal/where"
)

// asideName is the hidden command that puts questions which may hang, in a process that can be left behind.
const asideName = "check-aside"

// checkCommand is hbmfs check.
type checkCommand struct {
	path      string // "" to judge the machine alone
	gpu       int
	require   string
	root      string
	record    string
	deepspeed string // a configuration of DeepSpeed to look at instead
	asJSON    bool
	timeout   time.Duration
	libraries cufile.Libraries

	stdin          io.Reader
	stdout, stderr io.Writer
}

// checkHelp teaches the needs of GPUDirect Storage. docs/gpudirect.md has each at length.
const checkHelp = `GPUDirect Storage moves bytes from a drive into the memory of a GPU without the CPU. Where something is missing,
NVIDIA's cuFile reads with the CPU instead and says nothing. This command names the missing part.

It looks at the kernel, the driver, the GPU, the storage under PATH, cuFile and the container. Then it reads PATH in a
process of its own with that fallback turned off, and compares cuFile's counters. Each line is

  OK       nothing to do
  WARN     it works without, or may not work with it
  FAIL     direct reads do not work before this is changed; the line below has the command
  UNKNOWN  it could not be found out from here

and the last lines are the verdict for PATH and one GPU:

  direct   proven: drive to GPU by DMA
  staged   the CPU copies through pinned host memory; the first reason why, and its fix
  host     no GPU can be reached
  unknown  nothing speaks against direct, and nothing proves it

The likeliest reasons, the most frequent first:

  1. The data is not on a drive that can do it: an overlay in a container, a virtual or SATA disk, NFS over TCP,
     tmpfs, encryption. It takes ext4 or XFS on NVMe, or a network filesystem over RDMA.
  2. No kernel part is set up: either the module nvidia-fs, with an nvme driver that knows it, or Linux 6.2 with PCI
     P2PDMA and the options that NVIDIA's driver needs for it.
  3. A container lacks /dev/nvidia-fs* or /run/udev.
  4. ext4 is not mounted with data=ordered, or cufile.json says otherwise.
  5. The IOMMU or ACS sends transfers between devices through the CPU.

PATH may be a file, a directory (its largest file is read), or a file in a mount of hbmfs (the shards behind it are
judged). Without PATH the machine alone is judged.

A program that calls cuFile itself on a file of a mount of hbmfs never reads directly, whatever the verdict: hbmfs locate names
the local file to give it. --deepspeed FILE checks the section aio (use_gds, block_size, queue_depth, thread_count) and the
nvme_path of a DeepSpeed configuration instead, as hbmfs cufile-json --lint checks cufile.json.

--record writes the facts to a file for a helper. --root judges such a file, or a directory that is a copy of a
machine's /sys, /proc and /etc. The file holds no environment, no network addresses, no serial numbers and no
names of servers; it does hold names of mount points, PATH, and versions. See: tar --zstd -tvf FILE`

func newCheckCommand() *cobra.Command {
	c := &checkCommand{}
	cmd := &cobra.Command{
		Use:     "check [PATH]",
		Short:   "Say whether reads of a file go straight into the GPU, and if not, why and what to do",
		Long:    checkHelp,
		Example: "  hbmfs check /data/pile/train_000001.bin\n  hbmfs check --require direct --gpu 3 /mnt/pile\n  hbmfs check --record facts.tar.zst /data/pile\n  hbmfs check --root facts.tar.zst\n  hbmfs check --deepspeed ds_config.json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{fmt.Errorf("at most 1 argument, the PATH, not %d", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				c.path = args[0]
			}
			c.stdin, c.stdout, c.stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return c.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.gpu, "gpu", 0, "the GPU that bytes should go to, as nvidia-smi counts them")
	addChoice(cmd, &c.require, "require", "", "fail unless reads take this path or a better one: direct or staged", check.Direct, check.Staged)
	f.BoolVar(&c.asJSON, "json", false, "print the result as JSON")
	f.StringVar(&c.root, "root", "", "judge a recording, or a directory that is a copy of a machine, instead of this one")
	f.StringVar(&c.record, "record", "", "write the facts to this file, a tar.zst")
	f.StringVar(&c.deepspeed, "deepspeed", "", "check the section aio and the nvme_path of this configuration of DeepSpeed, - for stdin, instead of the machine")
	f.DurationVar(&c.timeout, "timeout", 0, "how long the driver, PATH and the read may each take (default 1s, and 10s for a read that may be direct)")
	f.StringVar(&c.libraries.CUDA, "libcuda", "", "the CUDA driver library, instead of the system's")
	f.StringVar(&c.libraries.CuFile, "libcufile", "", "the cuFile library, instead of the system's")
	f.StringVar(&c.libraries.NVML, "libnvml", "", "the NVML library, instead of the system's")
	return cmd
}

func (c *checkCommand) run(ctx context.Context) error {
	if c.deepspeed != "" {
		if c.path != "" || c.require != "" || c.root != "" || c.record != "" {
			return usageError{errors.New("--deepspeed checks a file alone: leave PATH, --require, --root and --record out")}
		}
		return c.lintDeepSpeed()
	}
	if c.require == check.Direct && c.path == "" && c.root == "" {
		return usageError{errors.New("--require direct needs a PATH: it is proven file by file")}
	}
	if c.gpu < 0 {
		return usageError{fmt.Errorf("--gpu must be 0 or more, not %d", c.gpu)}
	}
	s, err := c.snapshot(ctx)
	if err != nil {
		return err
	}
	if c.record != "" {
		if err := c.save(s); err != nil {
			return err
		}
	}
	judged := ""
	if c.root != "" {
		judged = c.path
	}
	report := check.Judge(check.Read(s), judged, c.gpu)
	if err := c.print(report); err != nil {
		return err
	}
	if report.Failed() || !c.met(report.Verdict.Path) {
		return errProblems
	}
	return nil
}

func (c *checkCommand) lintDeepSpeed() error {
	text, err := readConfiguration(c.stdin, c.deepspeed, deepspeed.MaxSize)
	if err != nil {
		return err
	}
	result := cufilejson.Result{Findings: deepspeed.Lint(text, where.Filesystem)}
	if c.asJSON {
		err = writeJSON(c.stdout, lintJSON{c.deepspeed, result.Errors(), append([]cufilejson.Finding{}, result.Findings...), ""})
	} else {
		for _, f := range result.Findings {
			fmt.Fprintf(c.stdout, "%s:%s\n", c.deepspeed, f)
		}
		if len(result.Findings) == 0 {
			fmt.Fprintf(c.stdout, "%s: nothing is wrong\n", c.deepspeed)
		}
	}
	if err == nil && result.Errors() > 0 {
		err = errProblems
	}
	return err
}

// met says whether a path is the one that --require asks for. Reads that may be direct are staged at least.
func (c *checkCommand) met(path string) bool {
	switch c.require {
	case check.Direct:
		return path == check.Direct
	case check.Staged:
		return path != check.Host
	}
	return true
}

func (c *checkCommand) print(r *check.Report) error {
	if !c.asJSON {
		r.Print(c.stdout)
		return nil
	}
	return writeJSON(c.stdout, r)
}

// save writes a recording, whole or not at all.
func (c *checkCommand) save(s *check.Snapshot) error {
	f, err := os.CreateTemp(filepath.Dir(c.record), ".hbmfs-check-*")
	if err != nil {
		return err
	}
	err = errors.Join(s.Record(f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), c.record)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	fmt.Fprintf(c.stderr, "recorded in %s; look before you send it: tar --zstd -tvf %s\n", c.record, c.record)
	return nil
}

// snapshot gets the facts: of this machine, of a tree or of a recording.
func (c *checkCommand) snapshot(ctx context.Context) (*check.Snapshot, error) {
	if c.root == "" {
		m := live.Machine{Path: c.path, GPU: c.gpu, Timeout: c.timeout, Libraries: c.libraries, Aside: []string{onmount.Self(), asideName}, Probe: []string{onmount.Self(), probeName}}
		return m.Facts(ctx)
	}
	info, err := os.Stat(c.root)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		root, err := os.OpenRoot(c.root)
		if err != nil {
			return nil, err
		}
		defer func() { _ = root.Close() }() // opened for reading
		return check.CaptureTree(root.FS())
	}
	f, err := os.Open(c.root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	return check.Load(f)
}

// newAsideCommand is the command that package live runs.
func newAsideCommand() *cobra.Command {
	return &cobra.Command{
		Use:    asideName,
		Hidden: true, // not for people
		Args:   cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return live.Aside(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
}
