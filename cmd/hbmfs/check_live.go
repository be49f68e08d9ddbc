package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/aside"
	"github.com/hbmfs/hbmfs/internal/check"
)

// asideName is the hidden command that asks what may hang, in a process that can be left behind.
const asideName = "check-aside"

// Patience with what may hang, where --timeout does not say. The check stays below three seconds on a machine that
// cannot read directly anyway; a driver's start and a first read can take many.
const (
	asidePatience = time.Second
	readPatience  = 10 * time.Second
)

// patience is what --timeout says, or otherwise.
func (c *checkCommand) patience(otherwise time.Duration) time.Duration {
	if c.timeout > 0 {
		return c.timeout
	}
	return otherwise
}

// newAsideCommand is what checkCommand.aside runs: it writes a recording to its output.
func newAsideCommand() *cobra.Command {
	return &cobra.Command{
		Use:    asideName,
		Hidden: true, // not for people
		Args:   cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeAside(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
}

// writeAside asks the driver ("driver"), or looks at a path ("path", PATH).
func writeAside(ctx context.Context, args []string, w io.Writer) error {
	if len(args) == 2 && args[0] == "path" {
		t, err := check.LookAt(ctx, args[1])
		if err != nil {
			return err
		}
		s := check.NewSnapshot()
		if err := s.SetTarget(t); err != nil {
			return err
		}
		return s.Record(w)
	}
	s, err := captureRoot(check.CaptureDriver)
	if err != nil {
		return err
	}
	return s.Record(w)
}

func captureRoot(capture func(fs.FS) (*check.Snapshot, error)) (*check.Snapshot, error) {
	root, err := os.OpenRoot("/")
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	return capture(root.FS())
}

// answer is what a process aside gave.
type answer struct {
	s   *check.Snapshot
	err error
}

// aside starts this program again to ask what may hang.
func (c *checkCommand) aside(ctx context.Context, args ...string) <-chan answer {
	got := make(chan answer, 1)
	ctx, cancel := context.WithTimeout(ctx, c.patience(asidePatience))
	go func() {
		defer cancel()
		var s *check.Snapshot
		out, err := aside.Output(ctx, append([]string{self(), asideName}, args...)...)
		if err == nil {
			s, err = check.Load(bytes.NewReader(out))
		}
		got <- answer{s, err}
	}()
	return got
}

// live gets the facts of this machine and reads the file.
func (c *checkCommand) live(ctx context.Context) (*check.Snapshot, error) {
	driver := c.aside(ctx, "driver")
	var looked <-chan answer
	if c.path != "" {
		looked = c.aside(ctx, "path", c.path)
	}
	s, err := captureRoot(check.Capture)
	if err != nil {
		return nil, err
	}
	if a := <-driver; a.err == nil {
		s.Merge(a.s)
	} else if errors.Is(a.err, aside.ErrSilent) {
		s.SetDriverSilent()
	} else {
		return nil, a.err
	}
	if err := addEnvironment(s); err != nil {
		return nil, err
	}
	if looked == nil {
		return s, ctx.Err()
	}
	a := <-looked
	switch {
	case errors.Is(a.err, aside.ErrSilent):
		return s, s.SetTarget(check.Target{Path: c.path, Silent: true})
	case a.err != nil:
		return nil, a.err
	}
	s.Merge(a.s)
	return s, errors.Join(ctx.Err(), c.prove(ctx, s))
}

// addEnvironment adds what two of cuFile's variables change.
func addEnvironment(s *check.Snapshot) error {
	if forced, err := strconv.ParseBool(os.Getenv("CUFILE_FORCE_COMPAT_MODE")); err == nil && forced {
		s.SetForcedCompat()
	}
	name := os.Getenv("CUFILE_ENV_PATH_JSON")
	if name == "" {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("CUFILE_ENV_PATH_JSON names a file that cuFile cannot open: %w", err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	return s.SetConfig(f)
}

// prove reads the file with compat mode off, where there is a GPU to read into.
func (c *checkCommand) prove(ctx context.Context, s *check.Snapshot) error {
	m := check.Read(s)
	switch {
	case m.Silent:
		return s.SetProof(check.Proof{Verdict: "unknown", Why: "not tried: the driver does not answer"})
	case m.Target.File == "":
		return s.SetProof(check.Proof{Verdict: "unknown", Why: m.Target.Note})
	case c.libraries == (cufile.Libraries{}) && (m.Driver == "" || c.gpu >= len(m.GPUs)):
		return nil // there is no GPU to read into
	}
	patience := c.patience(readPatience)
	if c.timeout == 0 && check.Judge(m, "", c.gpu).Failed() {
		patience = asidePatience
	}
	before, counts := check.NVFSReads(s)
	proof, err := c.read(ctx, m.Target, patience)
	if err != nil {
		return err
	}
	if counts {
		if a := <-c.aside(ctx, "driver"); a.err == nil {
			after, _ := check.NVFSReads(a.s)
			proof.Why += fmt.Sprintf("; nvidia-fs counted %d reads of this host meanwhile", after-before)
		}
	}
	return s.SetProof(proof)
}

// read asks cuFile's probe about every file that the target's bytes lie in: all must be proven.
func (c *checkCommand) read(ctx context.Context, t *check.Target, patience time.Duration) (check.Proof, error) {
	self, err := os.Executable()
	if err != nil {
		return check.Proof{}, err
	}
	// The probe counts GPUs as nvidia-smi does, and sees all that this container has.
	if err := errors.Join(os.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), os.Unsetenv("CUDA_VISIBLE_DEVICES")); err != nil {
		return check.Proof{}, err
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last check.Proof
	seen := map[string]bool{}
	err = t.Open(within, func(file *os.File, _ string) error {
		place, err := check.PlaceOf(file)
		if err != nil || seen[place.Dev] || last.Verdict != "" && last.Verdict != string(cufile.Proven) {
			return err
		}
		seen[place.Dev] = true
		got := make(chan cufile.Proof, 1)
		again, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = again.Close() }() // opened for reading
			got <- cufile.Prove(within, []string{self, probeName}, c.libraries, c.gpu, again)
		}()
		if p, ok := aside.Wait(within, got); ok && within.Err() == nil {
			last = check.Proof{Verdict: string(p.Verdict), Why: p.Why}
			return nil
		}
		last = check.Proof{Verdict: "unknown", Why: fmt.Sprintf("a read without compat mode did not end within %v", patience)}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		return check.Proof{Verdict: "unknown", Why: err.Error()}, nil //nolint:nilerr // why it could not be tried is the result
	}
	return last, ctx.Err()
}
