package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/commands/inspect/readback"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
	"github.com/hbmfs/hbmfs/layout"
)

// deviceFlags are the flags of every command that moves bytes into a device.
type deviceFlags struct {
	to        string
	path      string
	libraries cufile.Libraries
}

func (d *deviceFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.to, "to", "gpu:0", "`destination`: gpu:N or host")
	completeFlag(cmd, "to", "gpu:0", "host")
	addLibraryFlags(f, &d.libraries)
}

// addLibraryFlags adds the flags of libraries that are loaded.
func addLibraryFlags(f *pflag.FlagSet, l *cufile.Libraries) {
	f.StringVar(&l.CUDA, "libcuda", "", "`file` of the CUDA driver library, instead of the system's")
	f.StringVar(&l.CuFile, "libcufile", "", "`file` of the cuFile library, instead of the system's")
	f.StringVar(&l.NVML, "libnvml", "", "`file` of the NVML library, instead of the system's")
}

// options makes the reader's options of flags.
func (d *deviceFlags) options() (cufile.Options, error) {
	o := cufile.Options{Device: cufile.HostDevice, Libraries: d.libraries}
	if d.to != "host" {
		number, ok := strings.CutPrefix(d.to, "gpu:")
		index, err := strconv.Atoi(number)
		if !ok || err != nil || index < 0 {
			return o, cli.Mistakef("--to must be gpu:N or host, not %q", d.to)
		}
		o.Device = index
	}
	var err error
	if o.Path, err = cufile.ParsePath(d.path); err != nil {
		return o, cli.Mistake{Err: err}
	}
	self, err := os.Executable()
	if err == nil { // without it the direct path says that it cannot be proven
		o.Probe = []string{self, probeName}
	}
	return o, nil
}

// readCommand is hbmfs read.
type readCommand struct {
	printer
	device         deviceFlags
	require        string
	offset, length size.Amount
}

func newReadCommand() *cobra.Command {
	c := &readCommand{length: -1}
	cmd := c.work(&cobra.Command{
		Use:   "read FILE...",
		Short: "Read files into GPU memory, verify them, and name the path",
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
	}, someArgs("files to read"), c.run)
	f := cmd.Flags()
	f.Lookup("json").Usage = "print the result as JSON, one object for each file"
	c.device.add(cmd)
	addChoice(cmd, &c.device.path, "path", "auto", "auto, direct, mapped, staged, compat or host", cufile.Paths()...)
	addChoice(cmd, &c.require, "require", "", "fail unless every byte that lies on storage takes this path", cufile.Paths()[1:]...)
	f.Var(&c.offset, "offset", "first byte to read")
	f.Var(&c.length, "length", "bytes to read (default: all)")
	return cmd
}

func (c *readCommand) run(ctx context.Context, names []string) error {
	opt, err := c.options()
	if err != nil {
		return err
	}
	want := readback.Options{Reader: opt, Offset: int64(c.offset), Length: int64(c.length), Progress: c.bar}
	return c.device.explain(readback.Files(ctx, names, want, func(r *readback.Result) error { return c.print(r, func() { c.write(r) }) }))
}

// options settles the meaning of --path and --require together.
func (c *readCommand) options() (cufile.Options, error) {
	if c.require != "" {
		if c.device.path != string(cufile.Auto) && c.device.path != c.require {
			return cufile.Options{}, cli.Mistakef("--path %s and --require %s contradict each other", c.device.path, c.require)
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

func (c *readCommand) write(r *readback.Result) {
	to := "host memory"
	if r.GPU != nil {
		to = fmt.Sprintf("gpu %d (%s)", r.GPU.Index, r.GPU.Name)
	}
	fmt.Fprintf(c.stdout, "%d bytes to %s in %.3f s, hashing included\n", r.Bytes, to, r.Seconds)
	paths, _ := json.Marshal(r.Paths) // it is a map of counts
	fmt.Fprintf(c.stdout, "paths     %s\n", paths)
	if r.Choice.Why != "" {
		fmt.Fprintf(c.stdout, "because   %s: %s\n", r.Choice.Path, r.Choice.Why)
	}
	fmt.Fprintf(c.stdout, "sha256    %s\n", r.SHA256)
	if r.Verified == 0 {
		fmt.Fprintf(c.stdout, "verified  nothing: %s\n", r.Unverified)
		return
	}
	fmt.Fprintf(c.stdout, "verified  %d bytes against %s\n", r.Verified, layout.ManifestName)
}
