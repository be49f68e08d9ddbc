// Package mount_test tests the built hbmfs over real mounts, as its users see it: the command line, the files, the
// exit codes, the log.
//
// Under the race detector the daemon is built with it, too, and a race that it reports fails the run; otherwise
// HBMFS_BINARY names the binary to test. Every mount that a test makes must be gone when the test ends, and so must its
// daemon. Tests that need FUSE or root say so when they skip; root is needed to change users.
package mount_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// patience bounds every wait of these tests. It is long, since nothing that works waits for its end.
const patience = 30 * time.Second

// nobody is the ordinary user of these tests: 65534 on every Linux.
const nobody = 65534

// suite is what all tests share; TestMain makes it.
var suite struct {
	hbmfs blackbox.Binary
	path  string // of the binary
	dir   string // all that tests write lies below, reachable by every user
}

func TestMain(m *testing.M) {
	if verb := os.Getenv(childVerb); verb != "" {
		os.Exit(runChild(verb, os.Args[1:]))
	}
	code, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	// Resolved, since /proc/mounts shows no path through a link.
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return 1, err
	}
	if suite.dir, err = os.MkdirTemp(tmp, "hbmfs-mount-test-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, leftMounted(), os.RemoveAll(suite.dir)) }()
	races := filepath.Join(suite.dir, "races")
	if err := errors.Join(os.Chmod(suite.dir, 0o755), os.Mkdir(races, 0o777), os.Chmod(races, 0o777)); err != nil {
		return 1, err
	}
	suite.path = filepath.Join(suite.dir, "hbmfs")
	if err := provide(suite.path); err != nil {
		return 1, err
	}
	if suite.hbmfs, err = blackbox.NewBinary(suite.path); err != nil {
		return 1, err
	}
	// Nobody sees the standard error of a daemon. The detector would sleep a second before each exit.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=20 log_path="+filepath.Join(races, "race")); err != nil {
		return 1, err
	}
	code = m.Run()
	reports, err := filepath.Glob(filepath.Join(races, "race.*"))
	for _, name := range reports {
		text, readErr := os.ReadFile(name)
		err = errors.Join(err, readErr, fmt.Errorf("hbmfs has a data race:\n%s", text))
	}
	return code, err
}

// provide puts an hbmfs at path, where an ordinary user can run it.
func provide(path string) error {
	given := os.Getenv("HBMFS_BINARY")
	if raceDetector || given == "" {
		args := []string{"build", "-buildvcs=false", "-o", path}
		if raceDetector {
			args = append(args, "-race")
		}
		out, err := exec.Command("go", append(args, "../../cmd/hbmfs")...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("build hbmfs: %w: %s", err, out)
		}
		return nil
	}
	program, err := os.ReadFile(given)
	if err != nil {
		return fmt.Errorf("copy HBMFS_BINARY: %w", err)
	}
	return os.WriteFile(path, program, 0o755)
}

// leftMounted detaches what the tests left mounted, and says so.
func leftMounted() error {
	left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(suite.dir))
	for _, m := range left {
		err = errors.Join(err, fmt.Errorf("a test left %s mounted", m.Mountpoint), blackbox.Detach(m.Mountpoint))
	}
	return err
}

// needFUSE skips a test where nothing can be mounted.
func needFUSE(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
	_ = f.Close() // opened only to learn whether it opens
	if _, err := exec.LookPath("fusermount3"); err != nil && os.Geteuid() != 0 {
		t.Skip("needs FUSE: fusermount3 is not installed, and this is not root")
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
	dir, err := os.MkdirTemp(suite.dir, "t-")
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
	m.Mount, err = suite.hbmfs.Mount(t.Context(), source, point, append(flags, "--log-file", m.log)...)
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
	if !within(patience, func() bool { return ended(m.pid) }) {
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

// ended tells whether a process is gone, or dead and not yet collected by init.
func ended(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	_, after, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(after, []byte("Z")) || bytes.HasPrefix(after, []byte("X"))
}

// within waits until ok, for a limited time.
func within(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
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
	return runCommand(t, suite.hbmfs.Command(ctx, args...))
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
