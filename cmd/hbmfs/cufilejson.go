package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/commands/check"
	"github.com/hbmfs/hbmfs/internal/commands/cufilejson"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// cufileJSONCommand is hbmfs cufile-json.
type cufileJSONCommand struct {
	printer
	machineFlags
	workload string // read, checkpoint or weights
	lint     string // a file to check instead, "-" for stdin
	require  string
	output   string
	aboutGPU bool // --gpu was given
	stdin    io.Reader
}

const cufileJSONHelp = `cufile.json configures NVIDIA's cuFile (GPUDirect Storage). It is /etc/cufile.json, or the file that CUFILE_ENV_PATH_JSON names.
cuFile ignores keys that it does not know without a word, and stops at the first value that it does not like.

Without --lint, one is written for this machine and --for a workload, each value with its reason as a comment:

  read         a dataset, in pieces of a few MB and at random
  checkpoint   large files are written and read
  weights      large files are read once, as fast as they come

With --lint FILE, that file is checked. The list names

  syntax   that cuFile does not understand
  keys     that are unknown, misspelt, in a wrong section, or there twice
  values   in quotes, out of range, no multiple of 64 KB or 4 KB, or in bytes where KB are meant
  settings that contradict each other or do nothing

--gpu N also compares with the memory of that GPU, and PATH with the filesystem of the data. --require direct wants reads that never fall
back to the CPU.`

func newCuFileJSONCommand() *cobra.Command {
	c := &cufileJSONCommand{}
	cmd := &cobra.Command{
		Use:   "cufile-json [PATH]",
		Short: "Write a cufile.json for this machine, or find mistakes in one",
		Long:  cufileJSONHelp,
		Example: "  hbmfs cufile-json --for weights --gpu 0 /data/pile > cufile.json\n" +
			"  hbmfs cufile-json --lint /etc/cufile.json",
		Args: atMostOne("the PATH of the data"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.from(cmd)
			c.path, c.stdin, c.aboutGPU = strings.Join(args, ""), cmd.InOrStdin(), cmd.Flags().Changed("gpu")
			return c.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	addChoice(cmd, &c.workload, "for", cufilejson.Read, "the workload: read, checkpoint or weights", cufilejson.Read, cufilejson.Checkpoint, cufilejson.Weights)
	f.IntVar(&c.gpu, "gpu", 0, "`number` of the GPU in use, as in nvidia-smi")
	f.StringVar(&c.output, "output", "", "write to this `file` instead of stdout")
	f.StringVar(&c.lint, "lint", "", "check this `file`; - is stdin")
	f.BoolVar(&c.asJSON, "json", false, "with --lint: print the findings as JSON")
	addChoice(cmd, &c.require, "require", "", "with --lint: direct, if reads must never fall back to the CPU", check.Direct)
	f.StringVar(&c.root, "root", "", "take the facts from a `recording` of hbmfs check, or a directory with a copy of a machine")
	return cmd
}

func (c *cufileJSONCommand) run(ctx context.Context) error {
	if err := c.checkGPU(); err != nil {
		return err
	}
	if c.lint == "" && (c.asJSON || c.require != "") {
		return cli.Mistakef("--json and --require go with --lint FILE")
	}
	if c.lint != "" {
		return c.runLint(ctx)
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

func (c *cufileJSONCommand) runLint(ctx context.Context) error {
	text, err := readConfiguration(c.stdin, c.lint, cufilejson.MaxSize)
	if err != nil {
		return err
	}
	opts := cufilejson.Options{Direct: c.require == check.Direct}
	if c.aboutGPU || c.path != "" || c.root != "" {
		s, err := c.recording(ctx)
		if err != nil {
			return err
		}
		m := check.Read(s)
		opts.Filesystem, opts.Version = m.Filesystem(), m.CuFileVersion()
		if c.aboutGPU && c.gpu >= len(m.GPUs) {
			return fmt.Errorf("there is no GPU %d here, %d were found; leave --gpu out to check the file alone", c.gpu, len(m.GPUs))
		}
		if c.aboutGPU {
			opts.HBM = m.GPUs[c.gpu].HBM
		}
	}
	result := cufilejson.Lint(text, opts)
	return problems(c.report(result), result.Errors() > 0)
}

// readConfiguration reads a file, - for stdin, or as much of it as says that it is too large.
func readConfiguration(stdin io.Reader, name string, most int64) ([]byte, error) {
	from := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // opened for reading
		from = f
	}
	return io.ReadAll(io.LimitReader(from, most+1))
}

// lintJSON is the JSON of a configuration that was checked.
func lintJSON(file string, r *cufilejson.Result) any {
	return struct {
		File     string               `json:"file"`
		Errors   int                  `json:"errors"`
		Findings []cufilejson.Finding `json:"findings"`
	}{file, r.Errors(), append([]cufilejson.Finding{}, r.Findings...)}
}

func (c *cufileJSONCommand) report(r cufilejson.Result) error {
	if c.asJSON {
		return writeJSON(c.stdout, lintJSON(c.lint, &r))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(c.stdout, "%s:%s\n", c.lint, f)
	}
	if len(r.Findings) == 0 {
		fmt.Fprintf(c.stdout, "%s: nothing is wrong\n", c.lint)
	} else {
		fmt.Fprintf(c.stdout, "%s: %d errors, %d warnings\n", c.lint, r.Errors(), len(r.Findings)-r.Errors())
	}
	return nil
}
