// Package volume_test tests the built hbmfs over real checkpoint volumes, as their users see them: plain programs that write drafts, the
// command line, and readers of what is published.
//
// HBMFS_BINARY names the binary to test; under the race detector the daemon is built with it. Volumes need root: passthrough does.
package volume_test

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

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
)

// patience bounds every wait of these tests.
const patience = 30 * time.Second

// nobody is the ordinary user of these tests, and other is another one.
const (
	nobody = 65534
	other  = 4711
)

var suite *blackbox.Suite

func TestMain(m *testing.M) {
	if verb := os.Getenv(childVerb); verb != "" {
		os.Exit(runChild(verb, os.Args[1:]))
	}
	powerloss.ServeChild()
	os.Exit(blackbox.Main("volume", &suite, m.Run))
}

// volume is a mounted checkpoint volume.
type volume struct {
	*blackbox.Mount
	dir, point, log string
}

// mount mounts a new volume, that everybody may write to.
func mount(t testing.TB, flags ...string) *volume {
	t.Helper()
	blackbox.NeedRoot(t)
	dir := suite.NewDir(t)
	must(t, os.Chmod(dir, 0o777))
	return mountAt(t, dir, flags...)
}

func mountAt(t testing.TB, dir string, flags ...string) *volume {
	t.Helper()
	v := &volume{dir: dir, point: suite.NewDir(t), log: filepath.Join(suite.NewDir(t), "log")}
	var err error
	v.Mount, err = suite.Mount(context.Background(), dir, v.point, append(flags, "--checkpoints", "--allow-other", "--log-file", v.log)...)
	must(t, err)
	t.Cleanup(func() { v.end(t) })
	return v
}

// end unmounts. The volume's daemon must end.
func (v *volume) end(t testing.TB) {
	t.Helper()
	v.EndsWellYet(t, v.log, patience)
}

func (v *volume) status(t testing.TB) *status.Status {
	t.Helper()
	s := v.Status(t)
	if s.Checkpoints == nil {
		t.Fatal("the status has no checkpoints")
	}
	return s
}

func (v *volume) pid(t testing.TB) int {
	t.Helper()
	return v.status(t).PID
}

// said tells whether the status has a refusal with these words.
func (v *volume) said(t testing.TB, words string) {
	t.Helper()
	refused := v.status(t).Checkpoints.Refused
	for _, r := range refused {
		if strings.Contains(r, words) {
			return
		}
	}
	t.Errorf("the status does not say %q: %q", words, refused)
}

// publish renames NAME.tmp to NAME.
func (v *volume) publish(name string) error { return os.Rename(v.Path(name+".tmp"), v.Path(name)) }

// draft makes a draft NAME.tmp with files.
func (v *volume) draft(t testing.TB, name string, files map[string]string) string {
	t.Helper()
	dir := v.Path(name + ".tmp")
	must(t, os.Mkdir(dir, 0o755))
	for file, text := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	return dir
}

// kill ends the daemon, and waits until the next one serves.
func (v *volume) kill(t testing.TB) {
	t.Helper()
	v.Replace(t, patience)
}

// listed gives the names in a directory.
func listed(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// want fails the test where an error is not this one. 0: none.
func want(t testing.TB, what string, err error, errno syscall.Errno) {
	t.Helper()
	if errno == 0 && err == nil || errno != 0 && errors.Is(err, errno) {
		return
	}
	t.Errorf("%s: %v, want %s", what, err, unix.ErrnoName(errno))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs hbmfs to its end.
func run(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := suite.Command(ctx, args...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %q: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// childVerb in the environment makes this program do one thing as another user, and end.
const childVerb = "HBMFS_TEST_CHILD"

// as runs a verb of runChild as a user, and gives what it printed.
func as(t testing.TB, uid uint32, groups []uint32, verb string, args ...string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), childVerb+"="+verb)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// runChild does one thing and prints "ok", or the errno's name.
func runChild(verb string, args []string) int {
	var err error
	switch verb {
	case "mkdir":
		err = os.Mkdir(args[0], 0o755)
	case "write":
		err = os.WriteFile(args[0], []byte(args[1]), 0o640)
	case "read":
		_, err = os.ReadFile(args[0])
	case "rename":
		err = os.Rename(args[0], args[1])
	case "rmdir":
		err = os.Remove(args[0])
	case "fill":
		err = fill(args[0])
	case "ordinary":
		if err = ordinary(args[0], args[1], args[2], args[3]); err != nil {
			fmt.Println(err)
			return 1
		}
	case "list":
		_, err = os.ReadDir(args[0])
	case "past": // PATH STEP
		err = past(args[0], args[1])
	case "ordinary past": // HBMFS DIRECTORY POINT
		err = ordinaryPast(args[0], args[1], args[2])
	case "begin": // PATH
		var d *control.DraftClient
		if d, err = control.BeginDraft(context.Background(), args[0], 0, 1, "test"); err == nil {
			err = d.Drop(context.Background())
		} else {
			fmt.Println(err)
		}
	case "attach":
		_, err = control.AttachDraft(context.Background(), args[0], "test")
	case "changes": // PUBLISHED
		for _, c := range changes {
			if err := c.do(args[0]); err == nil {
				fmt.Println(c.name, "was done")
				return 1
			}
		}
	default:
		err = fmt.Errorf("unknown verb %q", verb)
	}
	var errno syscall.Errno
	switch {
	case err == nil:
		fmt.Println("ok")
	case errors.As(err, &errno):
		fmt.Println(unix.ErrnoName(errno))
	default:
		fmt.Println(err)
	}
	return 0
}
