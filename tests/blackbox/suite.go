package blackbox

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Suite is shared by the tests of a package: the binary, and a directory that every user can reach, for all their
// files.
type Suite struct {
	Binary
	Dir   string
	races string // where the race detector of the binary reports
}

// Main runs tests, which is Run of testing.M, in a suite for the folder name of tests, and returns the exit code. The tests
// find the suite at to. Mounts that they left, and races that the binary reported, are errors.
func Main(name string, to **Suite, tests func() int) int {
	s, err := newSuite(name)
	code := 1
	if err == nil {
		*to = s
		code = tests()
		err = errors.Join(s.reported(), s.leftMounted(), os.RemoveAll(s.Dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func newSuite(name string) (*Suite, error) {
	// Resolved, since /proc/mounts shows no path through a link.
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return nil, err
	}
	s := &Suite{}
	if s.Dir, err = os.MkdirTemp(tmp, "hbmfs-"+name+"-test-"); err != nil {
		return nil, err
	}
	s.races = filepath.Join(s.Dir, "races")
	err = errors.Join(os.Chmod(s.Dir, 0o755), os.Mkdir(s.races, 0o777), os.Chmod(s.races, 0o777))
	// Nobody sees the standard error of a daemon. The detector would sleep a second before each exit, and map its own memory anew for each
	// allocation of 64 KiB or more.
	err = errors.Join(err, os.Setenv("GORACE", "atexit_sleep_ms=20 clear_shadow_mmap_threshold=16777216 log_path="+filepath.Join(s.races, "race")))
	var path string
	if err == nil {
		path, err = s.Program("hbmfs", "HBMFS_BINARY")
	}
	if err == nil {
		s.Binary, err = NewBinary(path)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.Dir))
	}
	return s, nil
}

// Program links or copies a program of cmd to where an ordinary user can run it: the one that a variable of the environment names, or one
// that is built. Under the race detector the variable's name ends in _RACE: a program without the detector does not do.
func (s *Suite) Program(name, variable string) (path string, err error) {
	path = filepath.Join(s.Dir, name)
	if Race {
		variable += "_RACE"
	}
	given := os.Getenv(variable)
	if given == "" {
		return path, Build(name, path)
	}
	if os.Link(given, path) == nil { // no test writes to it
		return path, nil
	}
	program, err := os.ReadFile(given)
	if err != nil {
		return path, fmt.Errorf("copy %s: %w", variable, err)
	}
	return path, os.WriteFile(path, program, 0o755)
}

// NewDir makes a directory that every user can reach, and that goes with the test.
func (s *Suite) NewDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(s.Dir, "t-")
	if err = errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// EndsWell unmounts, and fails the test where the mount or its daemon stays, or where the log tells of a crash.
func (m *Mount) EndsWell(t testing.TB, pid int, log string, patience time.Duration) {
	t.Helper()
	device := m.device(t)
	closed := m.unmount()
	ended := endsWithin(t, pid, device, patience)
	text, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if closed != nil {
		t.Errorf("%v\nlog:\n%s", closed, text)
	}
	if !ended {
		t.Errorf("the daemon %d of %s has not ended %v after the mount\nlog:\n%s", pid, m.dir, patience, text)
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by now
	}
	for _, crash := range []string{"panic", "goroutine ", "internal error"} {
		if bytes.Contains(text, []byte(crash)) {
			t.Errorf("the log speaks of %q:\n%s", crash, text)
		}
	}
}

// unmount is [Mount.Close] without `hbmfs umount`, which looks through all processes of the machine for a daemon that tests know. A mount that is in use
// is left to that command, whose message names the users.
func (m *Mount) unmount() error {
	if unix.Unmount(m.dir, unix.UMOUNT_NOFOLLOW) == nil {
		return nil
	}
	return m.Close()
}

// endsWithin waits for the end of the daemon of a mount that has gone. It is content where another mount namespace has a copy of the mount, which
// keeps the daemon; that namespace may be gone when patience ends, and the daemon end only then.
func endsWithin(t testing.TB, pid int, device string, patience time.Duration) bool {
	t.Helper()
	copied := ""
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if Within(time.Second, func() bool { return Ended(pid) }) {
			return true
		}
		copied = cmp.Or(shownIn(device), copied)
	}
	if copied != "" {
		t.Logf("the daemon %d goes on: the mount namespace of %s had a copy of its mount", pid, copied)
	}
	return copied != ""
}

// device is the number of the mount's filesystem, as in mountinfo; "" where nothing is mounted.
func (m *Mount) device(t testing.TB) string {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(m.dir))
	if err != nil {
		t.Error(err)
	}
	if len(mounts) == 0 {
		return ""
	}
	return fmt.Sprintf("%d:%d", mounts[0].Major, mounts[0].Minor)
}

// shownIn names a process in whose mount namespace a filesystem is, wherever it lies there. Tests of other packages make namespaces
// meanwhile, with copies of every mount that there is. In the namespace of the test the number may be another filesystem's by now.
func shownIn(device string) string {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if device == "" || err != nil {
		return ""
	}
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is sound
	for _, proc := range all {
		if ns, err := os.Readlink(proc + "/ns/mnt"); err != nil || ns == own {
			continue
		}
		if text, err := os.ReadFile(proc + "/mountinfo"); err == nil && bytes.Contains(text, []byte(" "+device+" ")) {
			return proc
		}
	}
	return ""
}

func (s *Suite) reported() error {
	reports, err := filepath.Glob(filepath.Join(s.races, "race.*"))
	for _, name := range reports {
		text, readErr := os.ReadFile(name)
		err = errors.Join(err, readErr, fmt.Errorf("hbmfs has a data race:\n%s", text))
	}
	return err
}

// leftMounted detaches mounts that the tests left, and says so.
func (s *Suite) leftMounted() error {
	left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(s.Dir))
	for _, m := range left {
		err = errors.Join(err, fmt.Errorf("a test left %s mounted", m.Mountpoint), Detach(m.Mountpoint))
	}
	return err
}

// Nginx finds the web server, which Debian has where an ordinary user's PATH need not lead.
func Nginx() (path string, err error) {
	if path, err = exec.LookPath("nginx"); err != nil {
		path, err = exec.LookPath("/usr/sbin/nginx")
	}
	return path, err
}

// Ended tells whether a process is gone, or dead and not yet collected by its parent. A process whose first thread is dead
// may have others that still close its files; listing those would miss some while they end.
func Ended(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return true
	}
	_, after, _ := bytes.Cut(stat, []byte(") ")) // proc_pid_stat(5): the state is field 3, the number of threads field 20
	fields := bytes.Fields(after)
	if len(fields) < 18 || (string(fields[0]) != "Z" && string(fields[0]) != "X") {
		return false
	}
	threads, err := strconv.Atoi(string(fields[17]))
	return err == nil && threads <= 1
}

// Stop stops a process, and waits until none of its threads runs: until then one may still answer.
func Stop(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	if !Within(time.Minute, func() bool { return allStopped(pid) }) {
		return fmt.Errorf("process %d runs a minute after it was stopped", pid)
	}
	return nil
}

func allStopped(pid int) bool {
	stats, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/stat"))
	for _, name := range stats {
		stat, readErr := os.ReadFile(name)
		_, after, _ := bytes.Cut(stat, []byte(") "))
		if readErr != nil || !bytes.HasPrefix(after, []byte("T")) {
			return false
		}
	}
	return err == nil && len(stats) > 0
}

// Within waits until ok, for a limited time. It asks ever less often, since many ok are costly: after 10 ms at first, in the end after 50.
func Within(limit time.Duration, ok func() bool) bool {
	began := time.Now()
	for {
		if ok() {
			return true
		}
		waited := time.Since(began)
		if waited > limit {
			return false
		}
		time.Sleep(min(10*time.Millisecond+waited/20, 50*time.Millisecond))
	}
}
