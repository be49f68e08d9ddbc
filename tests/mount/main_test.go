// Package mount_test tests the built hbmfs over real mounts, as its users see it: the command line, the files, the
// exit codes, the log.
//
// Under the race detector the daemon is built with it, too, and a race that it reports fails the run; otherwise
// HBMFS_BINARY names the binary to test. Every mount that a test makes must be gone when the test ends, and so must its
// daemon. Tests that need FUSE or root say so when they skip; root is needed to change users.
package mount_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// patience bounds every wait of these tests. It is long, since nothing that works waits for its end.
const patience = 30 * time.Second

// nobody is the ordinary user of these tests: 65534 on every Linux.
const nobody = 65534

// suite is what all tests share; TestMain makes it.
var suite *blackbox.Suite

func TestMain(m *testing.M) {
	if verb := os.Getenv(childVerb); verb != "" {
		os.Exit(runChild(verb, os.Args[1:]))
	}
	var err error
	if suite, err = blackbox.NewSuite("mount", raceDetector); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(suite.Run(m.Run))
}

// needFUSE skips a test where nothing can be mounted.
func needFUSE(t *testing.T) {
	t.Helper()
	if err := blackbox.CanMount(); err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
}

// needRoot skips a test that changes users, or kills what root alone may.
func needRoot(t *testing.T) {
	t.Helper()
	needFUSE(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// newDir makes a directory that every user can reach, and that goes with the test.
func newDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(suite.Dir, "t-")
	if err != nil {
		t.Fatal(err)
	}
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// mounted is a mount of a test, with what the test looks at.
type mounted struct {
	*blackbox.Mount
	source, point string
	log           string // file
	pid           int    // of the daemon
}

// mount mounts source on a new directory. When the test ends it must come off, and the daemon must end.
func mount(t *testing.T, source string, flags ...string) *mounted {
	t.Helper()
	return mountOn(t, source, newDir(t), flags...)
}

func mountOn(t *testing.T, source, point string, flags ...string) *mounted {
	t.Helper()
	needFUSE(t)
	m := &mounted{source: source, point: point, log: filepath.Join(newDir(t), "log")}
	var err error
	m.Mount, err = suite.Mount(t.Context(), source, point, append(flags, "--log-file", m.log)...)
	if err != nil {
		t.Fatal(err)
	}
	if m.pid, err = m.DaemonPID(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.end(t) })
	return m
}

// end unmounts, and fails the test when the mount or the daemon stays, or when the daemon logged a crash.
func (m *mounted) end(t *testing.T) {
	t.Helper()
	if err := m.Close(); err != nil {
		t.Errorf("%v\nlog:\n%s", err, m.logText(t))
	}
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(m.pid) }) {
		t.Errorf("the daemon %d of %s has not ended %v after the mount\nlog:\n%s", m.pid, m.point, patience, m.logText(t))
		_ = syscall.Kill(m.pid, syscall.SIGKILL) // it may have ended by now
	}
	for _, crash := range []string{"panic", "goroutine ", "internal error"} {
		if text := m.logText(t); strings.Contains(text, crash) {
			t.Errorf("the log speaks of %q:\n%s", crash, text)
		}
	}
}

func (m *mounted) logText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(m.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return string(text)
}

// result is how a command ended.
type result struct {
	code           int
	stdout, stderr string
}

// run runs `hbmfs args...` to its end. Output goes to files: a daemon that is left behind would hold a pipe open.
func run(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	return runCommand(t, suite.Command(ctx, args...))
}

func runCommand(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	dir := newDir(t)
	var out [2][]byte
	var files [2]*os.File
	for i, name := range []string{"stdout", "stderr"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { must(t, f.Close()) }()
		files[i] = f
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %q: %v", cmd.Args, err)
	}
	for i, f := range files {
		if out[i], err = os.ReadFile(f.Name()); err != nil {
			t.Fatal(err)
		}
	}
	return result{cmd.ProcessState.ExitCode(), string(out[0]), string(out[1])}
}

// must fails the test on an error of the test's own doing.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writeFiles writes files below dir: slash-separated name to content.
func writeFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o644))
	}
}
