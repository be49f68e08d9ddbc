package blackbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Patience bounds every wait of tests. It is long, since nothing that works waits for its end.
const Patience = time.Minute

// Nobody is the ordinary user of tests: 65534 on every Linux.
const Nobody = 65534

// AsNobody has a command run as that user.
func AsNobody() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody}}
}

// Mounted is a mount of a test, with the test's observations.
type Mounted struct {
	*Mount
	Source, Point string
	Log           string // file
	PID           int    // of the daemon
	device        string // of the filesystem
}

// MountOn mounts source on point. When the test ends the mount must come off, and the daemon must end.
func (s *Suite) MountOn(t testing.TB, source, point string, flags ...string) *Mounted {
	t.Helper()
	m := &Mounted{Source: source, Point: point, Log: filepath.Join(s.NewDir(t), "log")}
	var err error
	m.Mount, err = s.Mount(t.Context(), source, point, append(flags, "--log-file", m.Log)...)
	Must(t, err)
	m.PID, err = m.DaemonPID()
	Must(t, err)
	m.device = m.Mount.device(t)
	t.Cleanup(func() { m.End(t) })
	return m
}

// Ends waits for the end of the daemon of a mount that is no longer in the tree, unless another mount namespace has a copy of the mount.
func (m *Mounted) Ends(t testing.TB) bool {
	t.Helper()
	return endsWithin(t, m.PID, m.device, Patience)
}

// Close is [Mount.Close]. Where the test knows the daemon it waits for its end without `hbmfs umount`, which looks for it in all processes.
func (m *Mounted) Close() error {
	if Ended(m.PID) { // another daemon serves, or nothing is mounted
		return m.Mount.Close()
	}
	if err := m.unmount(); err != nil {
		return err
	}
	for end := time.Now().Add(unmountTimeout); time.Now().Before(end); {
		if Within(time.Second, func() bool { return Ended(m.PID) }) || shownIn(m.device) != "" {
			return nil
		}
	}
	return fmt.Errorf("the daemon %d of %s has not ended %v after the mount", m.PID, m.Point, unmountTimeout)
}

// End unmounts: see [Mount.EndsWell].
func (m *Mounted) End(t testing.TB) {
	t.Helper()
	m.EndsWell(t, m.PID, m.Log, Patience)
}

// LogText is the text of the log.
func (m *Mounted) LogText(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(m.Log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return string(text)
}

// NeedHandover skips where no daemon goes on with the mount of another.
func (m *Mounted) NeedHandover(t testing.TB) {
	t.Helper()
	if s := m.Status(t); s.Handover.Holder != "keeper" {
		t.Skip("no keeper holds the mount: ", s.Handover.Why)
	}
}

// Crash kills the daemon that answers.
func (m *Mounted) Crash(t testing.TB) {
	t.Helper()
	m.PID = m.Status(t).PID
	Must(t, syscall.Kill(m.PID, syscall.SIGKILL))
}

// MountAsNobody is [Suite.MountOn] by an ordinary user, on a new directory.
func (s *Suite) MountAsNobody(t testing.TB, source string) *Mounted {
	t.Helper()
	point, logs := s.NewDir(t), s.NewDir(t)
	Must(t, errors.Join(os.Chown(point, Nobody, Nobody), os.Chown(logs, Nobody, Nobody)))
	m := &Mounted{Mount: s.At(point), Source: source, Point: point, Log: filepath.Join(logs, "log")}
	if r := s.RunAsNobody(t, "mount", "--log-file", m.Log, source, point); r.Code != 0 {
		t.Fatalf("nobody mounts: exit code %d: %s", r.Code, r.Stderr)
	}
	var err error
	m.PID, err = m.DaemonPID()
	Must(t, err)
	t.Cleanup(func() { m.End(t) })
	return m
}

// Result is how a command ended.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Run runs `hbmfs args...` to its end.
func (s *Suite) Run(t testing.TB, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	return s.RunCommand(t, s.Command(ctx, args...))
}

// RunAsNobody is [Suite.Run] by an ordinary user.
func (s *Suite) RunAsNobody(t testing.TB, args ...string) Result {
	t.Helper()
	cmd := s.Command(t.Context(), args...)
	cmd.SysProcAttr = AsNobody()
	cmd.Dir = "/"
	return s.RunCommand(t, cmd)
}

// RunCommand runs a command to its end. Output goes to files: a daemon that is left behind would hold a pipe open.
func (s *Suite) RunCommand(t testing.TB, cmd *exec.Cmd) Result {
	t.Helper()
	dir := s.NewDir(t)
	var out [2][]byte
	var files [2]*os.File
	for i, name := range []string{"stdout", "stderr"} {
		f, err := os.Create(filepath.Join(dir, name))
		Must(t, err)
		defer func() { Must(t, f.Close()) }()
		files[i] = f
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %q: %v", cmd.Args, err)
	}
	for i, f := range files {
		out[i], err = os.ReadFile(f.Name())
		Must(t, err)
	}
	return Result{cmd.ProcessState.ExitCode(), string(out[0]), string(out[1])}
}

// Must fails the test on an error of the test's own doing.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
