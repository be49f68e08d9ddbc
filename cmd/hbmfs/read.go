package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/cufile/writer"
	"github.com/hbmfs/hbmfs/internal/inspect"
	"github.com/hbmfs/hbmfs/internal/progress"
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

// readResult is the result, and the JSON that --json prints.
type readResult struct {
	File     string        `json:"file"`
	Bytes    int64         `json:"bytes"`
	SHA256   string        `json:"sha256"`
	Seconds  float64       `json:"seconds"` // of moving and hashing
	Paths    cufile.Moved  `json:"paths"`   // bytes by path
	Choice   cufile.Choice `json:"choice"`  // of the last part
	GPU      *cufile.GPU   `json:"gpu,omitempty"`
	Verified int64         `json:"verified"` // bytes that were compared with the manifest

	unverified string // why none were
}

// A part of a file, how many are under way at once, and how many files are open.
const (
	readSpan  = 32 << 20
	readDepth = 4
	readFiles = 256
)

func (c *readCommand) run(ctx context.Context) (err error) {
	opt, err := c.options()
	if err != nil {
		return err
	}
	opt.Arena = (readDepth + 1) * (readSpan + 64<<10) // and a unit for unaligned bytes
	r, err := cufile.New(ctx, opt)
	if err != nil {
		return c.device.explain(err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for names := range slices.Chunk(c.names, readFiles) {
		if err := c.readAll(ctx, r, names); err != nil {
			return err
		}
	}
	return nil
}

func (c *readCommand) readAll(ctx context.Context, r *cufile.Reader, names []string) (err error) {
	files, errs := r.OpenMany(ctx, names)
	defer func() {
		for _, f := range files {
			if f != nil {
				err = errors.Join(err, f.Close())
			}
		}
	}()
	for i, f := range files {
		if errs[i] != nil {
			return c.device.explain(errs[i])
		}
		result, err := c.move(ctx, f, names[i])
		if err != nil {
			return err
		}
		if gpu := r.GPU(); gpu.UUID != "" {
			result.GPU = &gpu
		}
		if err := c.print(result); err != nil {
			return err
		}
	}
	return nil
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

// move streams the range through the device's memory and hashes the bytes that come back.
func (c *readCommand) move(ctx context.Context, f *cufile.File, name string) (*readResult, error) {
	offset, length := int64(c.offset), int64(c.length)
	if offset < 0 || offset > f.Size() || length < -1 || length > f.Size()-offset {
		return nil, usageError{fmt.Errorf("%s has %d bytes: --offset %d --length %d is not inside", name, f.Size(), offset, length)}
	}
	if length < 0 {
		length = f.Size() - offset
	}
	sums, err := inspect.SumsOf(name, f.Size())
	if err != nil {
		return nil, err
	}
	var plan []cufile.Span
	for at := offset; at < offset+length; {
		// Parts end where the checksums' blocks do, so that whole blocks can be compared.
		n := min(readSpan-at%readSpan, offset+length-at)
		plan = append(plan, cufile.Span{Offset: at, Length: n})
		at += n
	}
	bar := progress.New(c.stderr, "reading", length, true)
	defer bar.Close()
	start := time.Now()
	stream := f.Stream(ctx, plan, readDepth)
	defer stream.Close()
	hash := sha256.New()
	result := &readResult{File: name, Bytes: length, unverified: sums.None()}
	buffer := make([]byte, min(readSpan, length))
	for _, part := range plan {
		v, err := stream.Next(ctx)
		if err != nil {
			return nil, err
		}
		data := buffer[:part.Length]
		err = v.CopyTo(ctx, data, 0)
		result.Choice = v.Choice()
		v.Release()
		if err != nil {
			return nil, err
		}
		hash.Write(data)
		n, err := sums.Check(part.Offset, data)
		if err != nil {
			return nil, fmt.Errorf("verify %s: %w", name, err)
		}
		result.Verified += n
		bar.Add(part.Length)
	}
	result.Seconds = time.Since(start).Seconds()
	result.SHA256 = hex.EncodeToString(hash.Sum(nil))
	result.Paths = f.Moved()
	return result, nil
}

func (c *readCommand) print(r *readResult) error {
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
		fmt.Fprintf(c.stdout, "verified  nothing: %s\n", r.unverified)
		return nil
	}
	fmt.Fprintf(c.stdout, "verified  %d bytes against %s\n", r.Verified, layout.ManifestName)
	return nil
}
