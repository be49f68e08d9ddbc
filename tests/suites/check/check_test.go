// Package check_test tests `hbmfs check` as users run it. Machines that this one is not are tested in package check; a
// GPU that is not there is played by the fake libraries of package cufile.
package check_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

type finding struct{ Group, Name, Level, Found, Why, Fix string }

type report struct {
	Path     string
	Verdict  struct{ Path, Reason, Fix string }
	Findings []finding
}

func (r *report) find(t *testing.T, name string) finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.Name == name {
			return f
		}
	}
	t.Errorf("no line %q", name)
	return finding{}
}

// checked runs `hbmfs check --json`. The patience is for a busy machine: what is tested here does not hang.
func checked(t *testing.T, path string, env []string, args ...string) (r report, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, append([]string{"check", "--json", "--timeout", "60s"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, out, stderr.String())
	}
	return r, cmd.ProcessState.ExitCode()
}

// dataFile is a file of a few MiB.
func dataFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(name, make([]byte, 3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestThisMachineAndItsRecording(t *testing.T) {
	path := blackbox.Given(t).Path()
	file, recording := dataFile(t), filepath.Join(t.TempDir(), "facts.tar.zst")
	live, code := checked(t, path, nil, "--record", recording, file)
	if live.Verdict.Path == "" || live.Verdict.Reason == "" || live.Path != file {
		t.Errorf("%+v", live)
	}
	failed := false
	for _, f := range live.Findings {
		failed = failed || f.Level == "FAIL"
		if f.Found == "" || f.Level == "FAIL" && f.Fix == "" {
			t.Errorf("a line that does not help: %+v", f)
		}
	}
	if want := map[bool]int{false: 0, true: 3}[failed]; code != want {
		t.Errorf("exit code %d, want %d", code, want)
	}
	if kernel := live.find(t, "version"); !strings.HasPrefix(kernel.Found, "Linux ") {
		t.Errorf("%+v", kernel)
	}
	recorded, code2 := checked(t, path, nil, "--root", recording)
	if code2 != code || fmt.Sprint(recorded) != fmt.Sprint(live) {
		t.Errorf("the recording says, with exit code %d: %+v\nthe machine %d: %+v", code2, recorded, code, live)
	}
	out, err := exec.CommandContext(t.Context(), path, "check", "--timeout", "60s", file).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || !strings.Contains(string(out), file+", gpu 0: "+live.Verdict.Path) {
		t.Errorf("the text for people: %v\n%s", err, out)
	}
}

func TestTheReadDecides(t *testing.T) {
	path := blackbox.Given(t).Path()
	gpu, file := blackbox.FakeGPU(t), dataFile(t)
	for name, c := range map[string]struct {
		env        string
		read, text string // level of the line "read", and what it says
		code       int
	}{
		"nvidia-fs":     {"FAKE_CUFILE_MOVED=nvfs", "OK", "reads through nvidia-fs", 0},
		"PCI P2PDMA":    {"FAKE_CUFILE_MOVED=p2p", "OK", "reads by PCI P2PDMA", 0},
		"by the CPU":    {"FAKE_CUFILE_MOVED=posix", "FAIL", "POSIX reads", 3},
		"counts no DMA": {"FAKE_CUFILE_MOVED=nothing", "UNKNOWN", "counted 0 DMA reads", 3},
		"refused":       {"FAKE_CUFILE_REGISTER=5030", "FAIL", "5030", 3},
		"crash":         {"FAKE_CUFILE_READ=crash", "FAIL", "the probe died", 3},
		"other bytes":   {"FAKE_CUFILE_READ=wrong", "FAIL", "other bytes", 3},
	} {
		t.Run(name, func(t *testing.T) {
			r, code := checked(t, path, []string{c.env}, append([]string{"--require", "direct", file}, gpu...)...)
			read := r.find(t, "read")
			if read.Level != c.read || !strings.Contains(read.Found+read.Why, c.text) || code != c.code {
				t.Errorf("exit code %d, %+v, want %d and %s %s", code, read, c.code, c.read, c.text)
			}
			if direct := r.Verdict.Path == "direct"; direct != (c.code == 0) {
				t.Errorf("verdict %+v", r.Verdict)
			}
		})
	}
}

// eventually polls, with the patience that a busy machine needs.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("not within a minute: %s", what)
			return
		}
	}
}

// running says whether a process has this in its environment.
func running(t *testing.T, variable string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name) // of others it cannot be read, and many are gone by now
		if err == nil && strings.Contains(string(data), variable) {
			return true
		}
	}
	return false
}

func TestAReadThatHangsIsEnded(t *testing.T) {
	t.Parallel() // it waits
	path := blackbox.Given(t).Path()
	gpu, file := blackbox.FakeGPU(t), dataFile(t)
	mark := "HBMFS_CHECK_TEST=" + file
	r, code := checked(t, path, []string{"FAKE_CUFILE_READ=hang", mark}, append([]string{"--timeout", "4s", file}, gpu...)...)
	if read := r.find(t, "read"); read.Level != "UNKNOWN" || !strings.Contains(read.Found, "did not end within 4s") || code == 0 && r.Verdict.Path == "direct" {
		t.Errorf("%+v, exit code %d", read, code)
	}
	eventually(t, "the process that read is gone", func() bool { return !running(t, mark) })
}

func TestAFileOfAMountIsJudgedByItsShards(t *testing.T) {
	blackbox.NeedRoot(t)
	hbmfs := blackbox.Given(t)
	path := hbmfs.Path()
	gpu, source := blackbox.FakeGPU(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "shard.bin"), make([]byte, 3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := hbmfs.Mount(t.Context(), source, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	direct, code := checked(t, path, []string{"FAKE_CUFILE_MOVED=nvfs"}, append([]string{m.Path("shard.bin")}, gpu...)...)
	if direct.Verdict.Path != "direct" || code != 0 {
		t.Errorf("exit code %d, %+v", code, direct.Verdict)
	}
	below, _ := checked(t, path, nil, filepath.Join(source, "shard.bin"))
	above, want := direct.find(t, "filesystem"), below.find(t, "filesystem")
	if above.Found != "hbmfs, which reads from "+want.Found {
		t.Errorf("through the mount: %+v\nat the source: %+v", above, want)
	}
}

func TestAMountThatDoesNotAnswer(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel() // it waits
	hbmfs := blackbox.Given(t)
	path := hbmfs.Path()
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "shard.bin"), make([]byte, 3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m, err := hbmfs.Mount(t.Context(), source, dir)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := m.DaemonPID()
	if err != nil {
		t.Fatal(errors.Join(err, m.Close()))
	}
	if err := blackbox.Stop(pid); err != nil {
		t.Fatal(errors.Join(err, m.Close()))
	}
	defer func() {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Error(err)
		}
		// The process that was left behind keeps the mount busy until the kernel is done with it.
		eventually(t, "the mount can be taken away", func() bool {
			_, err := hbmfs.Output(context.Background(), "umount", dir)
			return err == nil
		})
		if err := m.Close(); err != nil { // nothing is mounted any more, or it is detached
			t.Error(err)
		}
	}()
	r, code := checked(t, path, nil, "--timeout", "2s", m.Path("shard.bin"))
	if line := r.find(t, "path"); line.Level != "FAIL" || !strings.Contains(line.Found, "does not answer") || code != 3 {
		t.Errorf("%+v, exit code %d", line, code)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	path := blackbox.Given(t).Path()
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no such file":          {[]string{"/no/such/file"}, 1, "/no: no such file"},
		"no such recording":     {[]string{"--root", "/no/such/recording"}, 1, "no such file"},
		"not a recording":       {[]string{"--root", "check_test.go"}, 1, "must be one that hbmfs check --record made"},
		"unknown path":          {[]string{"--require", "magic"}, 2, "direct, staged"},
		"direct without a file": {[]string{"--require", "direct"}, 2, "needs a PATH"},
		"negative GPU":          {[]string{"--gpu", "-1"}, 2, "0 or more"},
		"two paths":             {[]string{"a", "b"}, 2, "1 arg"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), path, append([]string{"check", "--timeout", "60s"}, c.args...)...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != c.code || !strings.Contains(string(out), c.want) || strings.Count(string(out), "\n") != 1 {
				t.Errorf("%v, want exit code %d and one line with %q:\n%s", err, c.code, c.want, out)
			}
		})
	}
}
