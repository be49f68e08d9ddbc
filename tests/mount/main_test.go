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
	"os"
	"os/exec"
	"path/filepath"
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
	os.Exit(blackbox.Main("mount", &suite, m.Run))
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
	return mountOn(t, source, suite.NewDir(t), flags...)
}

func mountOn(t *testing.T, source, point string, flags ...string) *mounted {
	t.Helper()
	blackbox.NeedFUSE(t)
	m := &mounted{source: source, point: point, log: filepath.Join(suite.NewDir(t), "log")}
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

func (m *mounted) end(t *testing.T) {
	t.Helper()
	m.EndsWell(t, m.pid, m.log, patience)
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
	dir := suite.NewDir(t)
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
