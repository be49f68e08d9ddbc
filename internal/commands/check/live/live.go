// Package live gets the facts of this machine for package check, and proves a read. hbmfs check uses it unless it is
// given a recording. Questions that may hang are asked in processes that can be left behind.
package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/commands/check"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// Patience with questions that may hang, where Timeout does not say. The check stays below three seconds on a machine
// that cannot read directly anyway; a driver's start and a first read can take many.
const (
	asidePatience = time.Second
	readPatience  = 10 * time.Second
)

// Machine is this machine, about to be looked at.
type Machine struct {
	Path      string        // a file or directory to look at and to read; "" for the machine alone
	GPU       int           // as nvidia-smi counts them
	Timeout   time.Duration // for the driver, for Path and for the read, each; 0 for the constants above
	Libraries cufile.Libraries
	Aside     []string // a command that calls [Aside] with the arguments that follow
	Probe     []string // a command that calls [cufile.RunProbe]
}

// patience is Timeout if set, else otherwise.
func (m *Machine) patience(otherwise time.Duration) time.Duration {
	if m.Timeout > 0 {
		return m.Timeout
	}
	return otherwise
}

// Aside asks the driver ("driver"), or looks at a path ("path", PATH), and writes a recording to w. It may hang.
func Aside(ctx context.Context, args []string, w io.Writer) error {
	if err := aside.Begin(w); err != nil {
		return err
	}
	if len(args) == 2 && args[0] == "path" {
		t, err := check.LookAt(ctx, args[1])
		if err != nil {
			return err
		}
		s := check.NewRecording()
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

func captureRoot(capture func(fs.FS) (*check.Recording, error)) (*check.Recording, error) {
	root, err := os.OpenRoot("/")
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	return capture(root.FS())
}

// answer is the recording of a process aside.
type answer struct {
	s   *check.Recording
	err error
}

// ask starts a process for a question that may hang.
func (m *Machine) ask(ctx context.Context, args ...string) <-chan answer {
	got := make(chan answer, 1)
	go func() { // ends shortly after patience is over
		var s *check.Recording
		out, err := aside.Output(ctx, m.patience(asidePatience), slices.Concat(m.Aside, args)...)
		if err == nil {
			s, err = check.Load(bytes.NewReader(out))
		}
		got <- answer{s, err}
	}()
	return got
}

// Facts gets the facts of this machine and reads the file. It changes two environment variables of this process, CUDA_DEVICE_ORDER
// and CUDA_VISIBLE_DEVICES, so that a GPU has the number that nvidia-smi gives it.
func (m *Machine) Facts(ctx context.Context) (*check.Recording, error) {
	driver := m.ask(ctx, "driver")
	var looked <-chan answer
	if m.Path != "" {
		looked = m.ask(ctx, "path", m.Path)
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
		return s, s.SetTarget(check.Target{Path: m.Path, Silent: true})
	case a.err != nil:
		return nil, a.err
	}
	s.Merge(a.s)
	return s, errors.Join(ctx.Err(), m.prove(ctx, s))
}

// addEnvironment adds the changes by two of cuFile's variables.
func addEnvironment(s *check.Recording) error {
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
func (m *Machine) prove(ctx context.Context, s *check.Recording) error {
	facts := check.Read(s)
	switch {
	case facts.Silent:
		return s.SetProof(check.Proof{Verdict: "unknown", Why: "not tried: the driver does not answer"})
	case facts.Target.File == "":
		return s.SetProof(check.Proof{Verdict: "unknown", Why: facts.Target.Note})
	case m.Libraries == (cufile.Libraries{}) && (facts.Driver == "" || m.GPU >= len(facts.GPUs)):
		return nil // there is no GPU to read into
	}
	patience := m.patience(readPatience)
	if m.Timeout == 0 && check.Judge(facts, "", m.GPU).Failed() {
		patience = asidePatience
	}
	before, counts := check.NVFSReads(s)
	proof, err := m.read(ctx, facts.Target, patience)
	if err != nil {
		return err
	}
	if counts {
		if a := <-m.ask(ctx, "driver"); a.err == nil {
			after, _ := check.NVFSReads(a.s)
			proof.Why += fmt.Sprintf("; nvidia-fs counted %d reads of this host meanwhile", after-before)
		}
	}
	return s.SetProof(proof)
}

// read asks cuFile's probe about every file that the target's bytes lie in: all must be proven.
func (m *Machine) read(ctx context.Context, t *check.Target, patience time.Duration) (check.Proof, error) {
	// The probe counts GPUs as nvidia-smi does, and sees all that this container has.
	if err := errors.Join(os.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), os.Unsetenv("CUDA_VISIBLE_DEVICES")); err != nil {
		return check.Proof{}, err
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last check.Proof
	seen := map[string]bool{}
	err := t.Open(within, func(file *os.File, _ string) error {
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
			got <- cufile.Prove(within, m.Probe, m.Libraries, m.GPU, again)
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
