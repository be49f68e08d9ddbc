package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/internal/mounts/onmount"
	"github.com/hbmfs/hbmfs/internal/text/progress"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// printer is where a command prints its result, and how.
type printer struct {
	asJSON         bool
	stdout, stderr io.Writer
}

// takeJSON gives cmd the flag --json.
func (p *printer) takeJSON(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.asJSON, "json", false, "print the result as JSON")
}

// work gives cmd its arguments, the flag --json, and its work on paths, which its arguments are.
func (p *printer) work(cmd *cobra.Command, args cobra.PositionalArgs, work func(ctx context.Context, paths []string) error) *cobra.Command {
	p.takeJSON(cmd)
	cmd.Args = args
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.onMounts(cmd, args, func(ctx context.Context) error { return work(ctx, args) })
	}
	return cmd
}

// onMounts does the work of cmd on paths, which may lie in mounts.
func (p *printer) onMounts(cmd *cobra.Command, paths []string, work func(ctx context.Context) error) error {
	p.from(cmd)
	return onmount.Do(cmd.Context(), paths, p.stderr, work)
}

// from has it print where cmd does.
func (p *printer) from(cmd *cobra.Command) { p.stdout, p.stderr = cmd.OutOrStdout(), cmd.ErrOrStderr() }

// print prints a result: for programs, or for people.
func (p *printer) print(result any, people func()) error {
	if p.asJSON {
		return writeJSON(p.stdout, result)
	}
	people()
	return nil
}

// table prints aligned columns below a head.
func (p *printer) table(head string) *tabwriter.Writer {
	t := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, head)
	return t
}

// bar shows how far work is, until end is called.
func (p *printer) bar(doing string, total int64, bytes bool) (add func(int64), end func()) {
	bar := progress.New(p.stderr, doing, total, bytes)
	return bar.Add, bar.Close
}

// perSecond is a rate for people.
func perSecond(bytes int64, seconds float64) string {
	return size.Decimal(int64(float64(bytes)/max(seconds, 1e-6))) + "/s"
}

// problems ends a command that has printed its result, err aside: with [errProblems] where it has found some.
func problems(err error, found bool) error {
	if err == nil && found {
		return errProblems
	}
	return err
}

// output is where a command prints. It remembers that something could not be written: a result that was cut is no success, and
// most printing functions cannot say so.
type output struct {
	to io.Writer

	mu  sync.Mutex // guards err
	err error
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.to.Write(p)
	o.err = err
	return n, err
}

func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// writeJSON prints a result for programs. Commands in it have & and >, which are not escaped.
func writeJSON(w io.Writer, value any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(value)
}
