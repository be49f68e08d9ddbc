package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/commands/check"
	"github.com/hbmfs/hbmfs/internal/commands/check/live"
	"github.com/hbmfs/hbmfs/internal/commands/deepspeed"
	"github.com/hbmfs/hbmfs/internal/commands/where"
	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// machineFlags say which machine is looked at: this one, a recording, or a copy.
type machineFlags struct {
	path      string // of data; "" to judge the machine alone
	gpu       int
	root      string
	timeout   time.Duration
	libraries cufile.Libraries
}

// recording gets the facts: of this machine, of a tree or of a recording.
func (m *machineFlags) recording(ctx context.Context) (*check.Recording, error) {
	if m.root != "" {
		return check.Open(m.root)
	}
	self := onmount.Self()
	here := live.Machine{Path: m.path, GPU: m.gpu, Timeout: m.timeout, Libraries: m.libraries, Aside: []string{self, asideName}, Probe: []string{self, probeName}}
	return here.Facts(ctx)
}

// judge judges the facts. Where path is empty, they are of one path already.
func (m *machineFlags) judge(of *check.Machine) *check.Report {
	if m.root == "" {
		return check.Judge(of, "", m.gpu)
	}
	return check.Judge(of, m.path, m.gpu)
}

// checkGPU refuses a value that is no number of a GPU.
func (m *machineFlags) checkGPU() error {
	if m.gpu < 0 {
		return cli.Mistakef("--gpu must be 0 or more, not %d", m.gpu)
	}
	return nil
}

// checkCommand is hbmfs check.
type checkCommand struct {
	printer
	machineFlags
	require   string
	record    string
	deepspeed string // a configuration of DeepSpeed to look at instead
	stdin     io.Reader
}

// checkHelp teaches the needs of GPUDirect Storage. docs/reference/gpudirect.md has each at length.
const checkHelp = `GPUDirect Storage moves bytes from a drive into the memory of a GPU without the CPU. Where something is missing,
NVIDIA's cuFile reads with the CPU instead and says nothing. This command names the missing part.

It looks at the kernel, the driver, the GPU, the storage under PATH, cuFile and the container. Then it reads PATH in a
process of its own with that fallback turned off, and compares cuFile's counters. Each line is

  OK       nothing to do
  WARN     it works without, or may not work with it
  FAIL     direct reads need this change; the line below has the command
  UNKNOWN  it could not be found out from here

and the last lines are the verdict for PATH and one GPU:

  direct   proven: drive to GPU by DMA
  staged   the CPU copies through pinned host memory; the first reason why, and its fix
  host     no GPU can be reached
  unknown  nothing speaks against direct, and nothing proves it

The likeliest reasons, the most frequent first:

  1. The drive cannot do it: an overlay in a container, a virtual or SATA disk,
     NFS over TCP, tmpfs, encryption. It takes ext4 or XFS on NVMe, or a network
     filesystem over RDMA.
  2. No kernel part is set up: either the module nvidia-fs, with an nvme driver
     that knows it, or Linux 6.2 with PCI P2PDMA and the options that NVIDIA's
     driver needs for it.
  3. A container lacks /dev/nvidia-fs* or /run/udev.
  4. ext4 is not mounted with data=ordered, or cufile.json says otherwise.
  5. The IOMMU or ACS sends transfers between devices through the CPU.

PATH may be a file, a directory, or a file in a mount of hbmfs. Of a directory the largest file is read, and of a mount the shards
behind the file. Without PATH the machine alone is judged.

A program that calls cuFile itself on a file of a mount of hbmfs never reads directly, for any verdict. hbmfs locate names the
local file to give it. --deepspeed FILE checks the section aio (use_gds, block_size, queue_depth, thread_count) and the nvme_path
of a DeepSpeed configuration instead.

--record writes the facts to a file for a helper. --root judges such a file, or a directory that is a copy of a machine's /sys,
/proc and /etc. The file holds no environment, no network addresses, no serial numbers and no names of servers. It does hold names
of mount points, PATH, and versions. See: tar --zstd -tvf FILE`

func newCheckCommand() *cobra.Command {
	c := &checkCommand{}
	cmd := &cobra.Command{
		Use:     "check [PATH]",
		Short:   "Say whether a file can be read straight into the GPU, or why not",
		Long:    checkHelp,
		Example: "  hbmfs check /data/pile/train_000001.bin\n  hbmfs check --require direct --gpu 3 /mnt/pile\n  hbmfs check --record facts.tar.zst /data/pile\n  hbmfs check --root facts.tar.zst\n  hbmfs check --deepspeed ds_config.json",
		Args:    atMostOne("the PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.from(cmd)
			c.path, c.stdin = strings.Join(args, ""), cmd.InOrStdin()
			return c.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.gpu, "gpu", 0, "`number` of the GPU that bytes should go to, as in nvidia-smi")
	addChoice(cmd, &c.require, "require", "", "fail unless reads take this path or a better one: direct or staged", check.Direct, check.Staged)
	c.takeJSON(cmd)
	f.StringVar(&c.root, "root", "", "judge a `recording`, or a directory with a copy of a machine, instead of this machine")
	f.StringVar(&c.record, "record", "", "write the facts to this `file`, a tar.zst")
	f.StringVar(&c.deepspeed, "deepspeed", "", "check aio and nvme_path of this configuration `file` of DeepSpeed instead; - is stdin")
	f.DurationVar(&c.timeout, "timeout", 0, "time limit of each step (default: 1s, and 10s for a read that may be direct)")
	addLibraryFlags(f, &c.libraries)
	return cmd
}

func (c *checkCommand) run(ctx context.Context) error {
	if c.deepspeed != "" {
		if c.path != "" || c.require != "" || c.root != "" || c.record != "" {
			return cli.Mistakef("--deepspeed checks a file alone: leave PATH, --require, --root and --record out")
		}
		return c.lintDeepSpeed()
	}
	if c.require == check.Direct && c.path == "" && c.root == "" {
		return cli.Mistakef("--require direct needs a PATH: it is proven file by file")
	}
	if err := c.checkGPU(); err != nil {
		return err
	}
	s, err := c.recording(ctx)
	if err != nil {
		return err
	}
	if c.record != "" {
		if err := s.Save(c.record); err != nil {
			return err
		}
		fmt.Fprintf(c.stderr, "recorded in %s; look before you send it: tar --zstd -tvf %s\n", c.record, c.record)
	}
	report := c.judge(check.Read(s))
	return problems(c.print(report, func() { report.Print(c.stdout) }), report.Failed() || !c.met(report.Verdict.Path))
}

func (c *checkCommand) lintDeepSpeed() error {
	from := c.stdin
	if c.deepspeed != "-" {
		f, err := os.Open(c.deepspeed)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // opened for reading
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, deepspeed.MaxSize+1)) // as much as says that it is too large
	if err != nil {
		return err
	}
	result := struct {
		File     string              `json:"file"`
		Errors   int                 `json:"errors"`
		Findings []deepspeed.Finding `json:"findings"`
	}{File: c.deepspeed, Findings: append([]deepspeed.Finding{}, deepspeed.Lint(text, where.Filesystem)...)}
	for _, f := range result.Findings {
		if f.Level == deepspeed.Error {
			result.Errors++
		}
	}
	err = c.print(result, func() {
		for _, f := range result.Findings {
			fmt.Fprintf(c.stdout, "%s:%s\n", c.deepspeed, f)
		}
		if len(result.Findings) == 0 {
			fmt.Fprintf(c.stdout, "%s: nothing is wrong\n", c.deepspeed)
		}
	})
	return problems(err, result.Errors > 0)
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
