package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/writer"
	"github.com/hbmfs/hbmfs/internal/progress"
	"github.com/hbmfs/hbmfs/internal/readback"
	"github.com/hbmfs/hbmfs/internal/size"
	"github.com/hbmfs/hbmfs/layout"
)

// probeName is the hidden command that proves the direct path in a process of its own.
const probeName = "cufile-probe"

// probeWrites is its argument for writing instead of reading.
const probeWrites = "writes"

// deviceFlags are the flags of every command that moves bytes into a device.
type deviceFlags struct {
	to        string
	path      string
	libraries cufile.Libraries
}

func (d *deviceFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.to, "to", "gpu:0", "where to: gpu:N or host")
	completeFlag(cmd, "to", "gpu:0", "host")
	f.StringVar(&d.libraries.CUDA, "libcuda", "", "the CUDA driver library, instead of the system's")
	f.StringVar(&d.libraries.CuFile, "libcufile", "", "the cuFile library, instead of the system's")
	f.StringVar(&d.libraries.NVML, "libnvml", "", "the NVML library, instead of the system's")
}

// options makes the reader's options of flags.
func (d *deviceFlags) options() (cufile.Options, error) {
	o := cufile.Options{Device: cufile.HostDevice, Libraries: d.libraries}
	if d.to != "host" {
		number, ok := strings.CutPrefix(d.to, "gpu:")
		index, err := strconv.Atoi(number)
		if !ok || err != nil || index < 0 {
			return o, usageError{fmt.Errorf("--to must be gpu:N or host, not %q", d.to)}
		}
		o.Device = index
	}
	var err error
	if o.Path, err = cufile.ParsePath(d.path); err != nil {
		return o, usageError{err}
	}
	self, err := os.Executable()
	if err == nil { // without it the direct path says that it cannot be proven
		o.Probe = []string{self, probeName}
	}
	return o, nil
}

// readCommand is hbmfs read.
type readCommand struct {
	device  deviceFlags
	require string
	names   []string
	offset  size.Amount
	length  size.Amount
	asJSON  bool

	stdout, stderr io.Writer
}

func newReadCommand() *cobra.Command {
	c := &readCommand{length: -1}
	cmd := &cobra.Command{
		Use:   "read FILE...",
		Short: "Move files into GPU memory, verify them there, and say which path their bytes took",
		Long: `Move each file, of a mount or any other, into the memory of a GPU or of the host. The bytes are copied back from
there and hashed; where ` + layout.ManifestName + ` lies beside the file, they are compared with its checksums.

Paths:
  auto    the fastest that is proven to work; the answer says which and why
  direct  storage to GPU by DMA (GPUDirect Storage), only if it is proven for this file on this machine
  mapped  page cache to GPU by DMA, no copy by the CPU
  staged  read into pinned memory, overlapped with copies to the GPU
  compat  NVIDIA's libcufile with its own POSIX reads
  host    read into host memory

A path that was asked for and is not available is an error, never another path.`,
		Example: "  hbmfs read /mnt/pile/.hbmfs/views/tokens.bin\n  hbmfs read --to host --json shard_000.bin\n  hbmfs read --require direct /mnt/pile/train_000001.bin",
		Args:    someArgs("files to read"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.names, c.stdout, c.stderr = args, cmd.OutOrStdout(), cmd.ErrOrStderr()
			return onMounts(cmd, args, c.run)
		},
	}
	f := cmd.Flags()
	c.device.add(cmd)
	addChoice(cmd, &c.device.path, "path", "auto", "auto, direct, mapped, staged, compat or host", cufile.Paths()...)
	addChoice(cmd, &c.require, "require", "", "fail unless every byte that lies on storage takes this path", cufile.Paths()[1:]...)
	f.Var(&c.offset, "offset", "first byte to read")
	f.Var(&c.length, "length", "bytes to read, -1 for all")
	f.BoolVar(&c.asJSON, "json", false, "print the result as JSON, one object for each file")
	return cmd
}

// someArgs is for commands that take one thing or more.
func someArgs(things string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError{fmt.Errorf("name the %s: usage: %s", things, cmd.UseLine())}
		}
		return nil
	}
}

// newProbeCommand is the command of cufile.Options.Probe, and, with an argument, of writer.Options.Probe. Their input and output
// are these packages' own.
func newProbeCommand() *cobra.Command {
	return &cobra.Command{
		Use:    probeName,
		Hidden: true, // not for people
		Args:   cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] == probeWrites {
				return writer.RunProbe(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			}
			return cufile.RunProbe(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

func (c *readCommand) run(ctx context.Context) error {
	opt, err := c.options()
	if err != nil {
		return err
	}
	want := readback.Options{Reader: opt, Offset: int64(c.offset), Length: int64(c.length), Progress: c.progress}
	err = readback.Files(ctx, c.names, want, c.print)
	if errors.Is(err, readback.ErrOutside) {
		return usageError{err}
	}
	return c.device.explain(err)
}

func (c *readCommand) progress(total int64) (add func(int64), end func()) {
	bar := progress.New(c.stderr, "reading", total, true)
	return bar.Add, bar.Close
}

// options settles the meaning of --path and --require together.
func (c *readCommand) options() (cufile.Options, error) {
	if c.require != "" {
		if c.device.path != string(cufile.Auto) && c.device.path != c.require {
			return cufile.Options{}, usageError{fmt.Errorf("--path %s and --require %s contradict each other", c.device.path, c.require)}
		}
		c.device.path = c.require
	}
	if c.device.path == string(cufile.Host) {
		c.device.to = "host"
	}
	return c.device.options()
}

// explain adds a hint where there is no GPU.
func (d *deviceFlags) explain(err error) error {
	if errors.Is(err, cufile.ErrNoLibrary) && d.to != "host" && d.path != string(cufile.Compat) && d.path != string(cufile.Direct) {
		return fmt.Errorf("%w; --to host works without a GPU", err)
	}
	return err
}

func (c *readCommand) print(r *readback.Result) error {
	if c.asJSON {
		return writeJSON(c.stdout, r)
	}
	to := "host memory"
	if r.GPU != nil {
		to = fmt.Sprintf("gpu %d (%s)", r.GPU.Index, r.GPU.Name)
	}
	fmt.Fprintf(c.stdout, "%d bytes to %s in %.3f s, hashing included\n", r.Bytes, to, r.Seconds)
	paths, err := json.Marshal(r.Paths)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "paths     %s\n", paths)
	if r.Choice.Why != "" {
		fmt.Fprintf(c.stdout, "because   %s: %s\n", r.Choice.Path, r.Choice.Why)
	}
	fmt.Fprintf(c.stdout, "sha256    %s\n", r.SHA256)
	if r.Verified == 0 {
		fmt.Fprintf(c.stdout, "verified  nothing: %s\n", r.Unverified)
		return nil
	}
	fmt.Fprintf(c.stdout, "verified  %d bytes against %s\n", r.Verified, layout.ManifestName)
	return nil
}
