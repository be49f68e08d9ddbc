package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/commands/check"
	"github.com/hbmfs/hbmfs/internal/commands/cufilejson"
)

// cufileJSONCommand is hbmfs cufile-json.
type cufileJSONCommand struct {
	printer
	machineFlags
	workload string // read, checkpoint or weights
	output   string
}

const cufileJSONHelp = `cufile.json configures NVIDIA's cuFile (GPUDirect Storage). It is /etc/cufile.json, or the file that CUFILE_ENV_PATH_JSON names.
One is written for this machine, the filesystem of PATH, and --for a workload, each value with its reason as a comment:

  read         a dataset, in pieces of a few MB and at random
  checkpoint   large files are written and read
  weights      large files are read once, as fast as they come`

func newCuFileJSONCommand() *cobra.Command {
	c := &cufileJSONCommand{}
	cmd := &cobra.Command{
		Use:     "cufile-json [PATH]",
		Short:   "Write a cufile.json for this machine",
		Long:    cufileJSONHelp,
		Example: "  hbmfs cufile-json --for weights --gpu 0 /data/pile > cufile.json",
		Args:    atMostOne("the PATH of the data"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.from(cmd)
			c.path = strings.Join(args, "")
			return c.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	addChoice(cmd, &c.workload, "for", cufilejson.Read, "the workload: read, checkpoint or weights", cufilejson.Read, cufilejson.Checkpoint, cufilejson.Weights)
	f.IntVar(&c.gpu, "gpu", 0, "`number` of the GPU in use, as in nvidia-smi")
	f.StringVar(&c.output, "output", "", "write to this `file` instead of stdout")
	f.StringVar(&c.root, "root", "", "take the facts from a `recording` of hbmfs check, or a directory with a copy of a machine")
	return cmd
}

func (c *cufileJSONCommand) run(ctx context.Context) error {
	if err := c.checkGPU(); err != nil {
		return err
	}
	text, err := c.write(ctx)
	if err != nil {
		return err
	}
	return c.emit(text)
}

// emit writes a cufile.json to where it was asked for.
func (c *cufileJSONCommand) emit(text []byte) error {
	write := func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}
	if c.output != "" {
		return replaceFile(c.output, write)
	}
	return write(c.stdout)
}

func (c *cufileJSONCommand) write(ctx context.Context) ([]byte, error) {
	s, err := c.recording(ctx)
	if err != nil {
		return nil, err
	}
	m := check.Read(s)
	node := cufilejson.Node{GPUs: len(m.GPUs), Filesystem: m.Filesystem(), Version: m.CuFileVersion()}
	if c.root == "" {
		node.CPUs = runtime.NumCPU()
	}
	if c.gpu < len(m.GPUs) {
		node.GPU, node.HBM = fmt.Sprintf("GPU %d, %s", c.gpu, m.GPUs[c.gpu].Name), m.GPUs[c.gpu].HBM
	}
	node.P2PDMA = m.NVFS == "" && m.P2PDMA == check.Yes && m.Driver != ""
	verdict := c.judge(m).Verdict
	if verdict.Path == check.Staged || verdict.Path == check.Host {
		node.Blocked = verdict.Reason
	}
	return cufilejson.Write(node, c.workload)
}
