package mount_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// A source that cannot be mounted is refused in one sentence, with the exit code that the help promises, and nothing
// stays.
func TestRefusals(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := mounttest.Golden(t, "nanogpt")
	point := suite.NewDir(t)
	file := filepath.Join(suite.NewDir(t), "file")
	must(t, os.WriteFile(file, nil, 0o644))
	log := filepath.Join(suite.NewDir(t), "log")
	for _, c := range []struct {
		what string
		args []string
		code int
		says string
	}{
		{"no source", []string{filepath.Join(source, "absent"), point}, 1, "absent: no such file or directory"},
		{"no mount point", []string{source, filepath.Join(point, "absent", "deeper")}, 1, "does not exist: mkdir -p"},
		{"the mount point is a file", []string{source, file}, 1, "is not a directory"},
		{"the source is a device", []string{"/dev/null", point}, 1, "neither a directory nor a file"},
		{"another format", []string{"--format", "megatron", source, point}, 1, "megatron"},
		{"an unknown format", []string{"--format", "nonsense", source, point}, 2, `"nonsense" is none of`},
		{"an unknown type", []string{"--dtype", "u7", source, point}, 2, "u7"},
		{"an unknown flag", []string{"--nonsense", source, point}, 2, "nonsense"},
		{"an unknown option", []string{"-o", "nonsense", source, point}, 2, "nonsense"},
		{"an option without its value", []string{"-o", "uid", source, point}, 2, "needs a value"},
		{"a wrong umask", []string{"--umask", "9", source, point}, 2, "umask"},
		{"a wrong uid", []string{"--uid", "99999999999", source, point}, 2, "uid"},
		{"a negative gid", []string{"--gid", "-7", source, point}, 2, "gid"},
		{"flags that do not fit", []string{"--decode", source, point}, 2, "--decode needs --cache-dir"},
		{"a source of no kind", []string{"ftp://host/pile", point}, 2, "there are s3://"},
		{"too few arguments", []string{source}, 2, "usage"},
		{"too many arguments", []string{source, point, point}, 2, "usage"},
		{"a log that cannot be written", []string{"--log-file", "/proc/no/log", source, point}, 1, "log"},
	} {
		args := append([]string{"mount", "--log-file", log}, c.args...)
		r := run(t, args...)
		lines := strings.Count(strings.TrimSpace(r.Stderr), "\n") + 1
		if r.Code != c.code || !strings.Contains(r.Stderr, c.says) || !strings.HasPrefix(r.Stderr, "hbmfs: ") || lines != 1 {
			t.Errorf("%s: exit code %d and %q, want %d and one line that says %q", c.what, r.Code, r.Stderr, c.code, c.says)
		}
		mounttest.WantMounted(t, point, false)
	}
	for _, args := range [][]string{{"umount", point}, {"umount", filepath.Join(point, "absent")}, {"umount", "/"}} {
		if r := run(t, args...); r.Code != 1 || !strings.Contains(r.Stderr, "nothing of hbmfs is mounted") {
			t.Errorf("%q of what is no mount: exit code %d: %s", args, r.Code, r.Stderr)
		}
	}
	if r := run(t, "inspect", filepath.Join(source, "absent")); r.Code != 1 {
		t.Errorf("inspect of nothing: exit code %d, want 1: %s", r.Code, r.Stderr)
	}
}

// Ctrl-C while a source does not answer ends the command and its daemon, as an interruption.
func TestInterruptedStart(t *testing.T) {
	blackbox.NeedFUSE(t)
	asked := make(chan struct{}, 16)
	source := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		asked <- struct{}{}
		<-q.Context().Done()
	}))
	defer source.Close()
	for _, flag := range []string{"--show-views", "-f"} { // the first is for any flag but the second
		point, said := suite.NewDir(t), filepath.Join(suite.NewDir(t), "stderr")
		stderr, err := os.Create(said)
		must(t, err)
		cmd := suite.Command(t.Context(), "mount", flag, "--log-file", filepath.Join(suite.NewDir(t), "log"), source.URL, point)
		cmd.Stderr = stderr
		must(t, cmd.Start())
		select {
		case <-asked:
		case <-time.After(patience):
			t.Errorf("%s: the source is not asked", flag)
		}
		must(t, cmd.Process.Signal(os.Interrupt))
		_ = cmd.Wait() // the exit code says it
		must(t, stderr.Close())
		text, err := os.ReadFile(said)
		if code := cmd.ProcessState.ExitCode(); err != nil || code != 130 || string(text) != "hbmfs: interrupted\n" {
			t.Errorf("%s: exit code %d and %q, want 130 and that it was interrupted (%v)", flag, code, text, err)
		}
		mounttest.WantMounted(t, point, false)
	}
}

func TestSecondMountIsRefused(t *testing.T) {
	m := mount(t, mounttest.Golden(t, "nanogpt"))
	r := run(t, "mount", "--log-file", m.Log, mounttest.Golden(t, "megatron"), m.Point)
	if r.Code != 1 || !strings.Contains(r.Stderr, "is an hbmfs mount already") {
		t.Errorf("a second mount: exit code %d: %s", r.Code, r.Stderr)
	}
	if err := mounttest.CompareTrees(m.Source, m.Point); err != nil {
		t.Error(err)
	}
}

// The command returns when the mount can be used, and its message says what is mounted.
func TestBackgroundMount(t *testing.T) {
	blackbox.NeedFUSE(t)
	point, log := suite.NewDir(t), filepath.Join(suite.NewDir(t), "log")
	source := mounttest.Golden(t, "nanogpt")
	r := run(t, "mount", "--log-file", log, "--log-level", "debug", "-o", "ro,nodev,nosuid,noexec,noatime,defaults,comment=x", source, point)
	if r.Code != 0 || !strings.Contains(r.Stdout, source+" is mounted on "+point+": 2 files") {
		t.Fatalf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if err := mounttest.CompareTrees(source, point); err != nil {
		t.Error(err)
	}
	table, err := os.ReadFile("/proc/mounts")
	must(t, err)
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, point) && (!strings.HasPrefix(line, source+" ") || !strings.Contains(line, " fuse.hbmfs ") || !strings.Contains(line, "nosuid")) {
			t.Errorf("the mount table says %q", line)
		}
	}
	must(t, suite.At(point).Close())
}

// A user who mounts from a place can unmount that place afterwards: the daemon does not stay in it.
func TestDaemonLeavesItsDirectory(t *testing.T) {
	m := mount(t, mounttest.Golden(t, "nanogpt"))
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", m.PID)); err != nil || cwd != "/" {
		t.Errorf("the daemon keeps %s busy (%v)", cwd, err)
	}
}

// mount(8) starts /sbin/mount.fuse.hbmfs for an fstab line.
func TestMountCommandOfTheSystem(t *testing.T) {
	blackbox.NeedRoot(t)
	const helper = "/sbin/mount.fuse.hbmfs"
	if _, err := exec.LookPath("mount"); err != nil {
		t.Skip("needs mount(8)")
	}
	// An installed hbmfs is not the one under test, and must stay.
	if err := os.Symlink(suite.Path(), helper); errors.Is(err, os.ErrExist) {
		t.Skipf("needs %s for itself, and one is installed", helper)
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { must(t, os.Remove(helper)) }()
	point, source, log := suite.NewDir(t), mounttest.Golden(t, "nanogpt"), filepath.Join(suite.NewDir(t), "log")
	r := suite.RunCommand(t, exec.Command("mount", "-t", "fuse.hbmfs", source, point, "-o", "allow_other,nofail,x-systemd.automount,show_views,umask=022,decode,cache_dir="+suite.NewDir(t)+",log_file="+log))
	if r.Code != 0 {
		t.Fatalf("mount -t fuse.hbmfs: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if _, err := os.ReadDir(filepath.Join(point, ".hbmfs")); err != nil {
		t.Error(err)
	}
	if got := mounttest.ReadAs(t, true, filepath.Join(point, "train.bin")); got != "ok" {
		t.Errorf("allow_other, but nobody reads: %s", got)
	}
	if st := mounttest.Lstat(t, filepath.Join(point, "train.bin")); st.Mode&0o777 != 0o444 {
		t.Errorf("mode %o, want 444", st.Mode&0o777)
	}
	if r := suite.RunCommand(t, exec.Command("umount", point)); r.Code != 0 {
		t.Errorf("umount(8): exit code %d: %s", r.Code, r.Stderr)
		must(t, suite.At(point).Close())
	}
	if is, err := blackbox.IsMounted(point); err != nil || is {
		t.Errorf("mounted after umount(8): %v, %v", is, err)
	}
	for _, c := range []struct{ args, says string }{{"-o nonsense", "nonsense: not known"}, {"-o uid", "needs a value"}, {"-o uid=x", "-o uid=x"}, {"-o options=ro", "not known"}, {"-f", "fake"}, {"extra", "usage"}} {
		r := suite.RunCommand(t, exec.Command(helper, append([]string{source, point}, strings.Fields(c.args)...)...))
		if r.Code == 0 || !strings.Contains(r.Stderr, c.says) {
			t.Errorf("%s %s: exit code %d: %s", helper, c.args, r.Code, r.Stderr)
		}
	}
}

// mount.fuse.hbmfs can be called by any path.
func TestMountHelperByItsPath(t *testing.T) {
	blackbox.NeedFUSE(t)
	helper := filepath.Join(suite.NewDir(t), "mount.fuse.hbmfs")
	must(t, os.Symlink(suite.Path(), helper))
	point, source := suite.NewDir(t), mounttest.Golden(t, "nanogpt")
	r := suite.RunCommand(t, exec.Command(helper, source, point, "-s", "-n", "-o", "rw,log_file="+filepath.Join(suite.NewDir(t), "log"), "-t", "fuse.hbmfs"))
	if r.Code != 0 {
		t.Fatalf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if err := mounttest.CompareTrees(source, point); err != nil {
		t.Error(err)
	}
	must(t, suite.At(point).Close())
}

// A mount point that is missing is made, and goes with the mount; one that was there stays.
func TestMissingMountPoint(t *testing.T) {
	source, log := mounttest.Golden(t, "nanogpt"), filepath.Join(suite.NewDir(t), "log")
	dir := suite.NewDir(t)
	point := filepath.Join(dir, "pile")
	there := func() bool {
		_, err := os.Lstat(point)
		return err == nil
	}
	mountOn := func(flags ...string) blackbox.Result {
		return run(t, append([]string{"mount", "--dtype=u16", "--log-file", log, source, point}, flags...)...)
	}
	blackbox.NeedFUSE(t)
	if r := run(t, "mount", "--log-file", log, filepath.Join(source, "absent"), point); r.Code != 1 || there() {
		t.Errorf("a mount that failed, exit code %d, left its mount point: %v", r.Code, there())
	}
	for range 2 {
		if r := mountOn(); r.Code != 0 || r.Stderr != "" {
			t.Fatalf("exit code %d: %s", r.Code, r.Stderr)
		}
		if _, err := os.Stat(filepath.Join(point, "train.bin")); err != nil {
			t.Error(err)
		}
		if r := run(t, "umount", point); r.Code != 0 || there() {
			t.Errorf("umount, exit code %d, left the mount point that was made: %v: %s", r.Code, there(), r.Stderr)
		}
	}
	must(t, os.Mkdir(point, 0o755))
	if r := mountOn(); r.Code != 0 {
		t.Fatalf("exit code %d: %s", r.Code, r.Stderr)
	}
	if r := run(t, "umount", point); r.Code != 0 || !there() {
		t.Errorf("umount, exit code %d, took away a mount point that was there: %s", r.Code, r.Stderr)
	}
}
