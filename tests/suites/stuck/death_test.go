package stuck_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// The log has the last words of a daemon in the background. SIGQUIT makes a Go program say where it is, as a panic does.
func TestLastWordsAreInTheLog(t *testing.T) {
	blackbox.NeedFUSE(t)
	point, log := suite.NewDir(t), filepath.Join(suite.NewDir(t), "log")
	if r := run(t, "mount", "--log-file", log, mounttest.Golden(t, "nanogpt"), point); r.Code != 0 {
		t.Fatalf("mount: %s", r.Stderr)
	}
	m := suite.At(point)
	defer func() { must(t, m.Close()) }()
	pid, err := m.DaemonPID()
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGQUIT))
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(pid) }) {
		t.Error("the daemon survives SIGQUIT")
	}
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), "SIGQUIT") || !strings.Contains(string(text), "goroutine ") {
		t.Errorf("the log does not say how the daemon died (%v):\n%s", err, text)
	}
}

// A daemon that dies before its mount is ready: the command says how, and where there is more.
func TestDaemonDiesAtItsStart(t *testing.T) {
	blackbox.NeedFUSE(t)
	asked := make(chan struct{}, 16)
	source := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		asked <- struct{}{}
		<-q.Context().Done()
	}))
	defer source.Close()
	for signal, says := range map[syscall.Signal]string{syscall.SIGKILL: "signal: killed", syscall.SIGQUIT: "exit status 2: SIGQUIT"} {
		point, log := suite.NewDir(t), filepath.Join(suite.NewDir(t), "log")
		b := mounttest.Begin(t, suite, suite.Command(t.Context(), "mount", "--log-file", log, source.URL, point))
		select {
		case <-asked:
		case <-time.After(patience):
			t.Fatal("the source is not asked")
		}
		must(t, syscall.Kill(childOf(t, b.Process.Pid), signal))
		said := ""
		if b.End(t) {
			said = b.Said(t)
		}
		if code := b.ProcessState.ExitCode(); code != 1 || !strings.Contains(said, says) || !strings.Contains(said, log) || strings.Count(said, "\n") != 1 {
			t.Errorf("%v: exit code %d and %q, want 1 and one line with %q and the log", signal, code, said, says)
		}
		if text, err := os.ReadFile(log); signal == syscall.SIGQUIT && !strings.Contains(string(text), "goroutine ") {
			t.Errorf("%v: the log does not say where the daemon was (%v):\n%s", signal, err, text)
		}
		mounttest.WantMounted(t, point, false)
	}
}

// childOf finds the daemon that a command has started.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	must(t, err)
	for _, name := range all {
		stat, _ := os.ReadFile(name)                   // it may have ended
		_, after, _ := strings.Cut(string(stat), ") ") // proc_pid_stat(5): the state, and the parent
		if fields := strings.Fields(after); len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			must(t, err)
			return child
		}
	}
	t.Fatalf("process %d has no child", pid)
	return 0
}

// Why fusermount3 refuses, it says itself; that is the error, in the foreground and in the background.
func TestFusermountsOwnWords(t *testing.T) {
	blackbox.NeedRoot(t)
	mounttest.MakeFUSEPublic(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("needs fusermount3")
	}
	closed, logs := suite.NewDir(t), suite.NewDir(t)
	must(t, os.Chown(logs, blackbox.Nobody, blackbox.Nobody))
	for _, flag := range []string{"--show-views", "-f"} { // the first is for any flag but the second
		r := suite.RunAsNobody(t, "mount", flag, "--log-file", filepath.Join(logs, "log"), mounttest.Golden(t, "nanogpt"), closed)
		if says := "no write access to mountpoint"; r.Code != 1 || !strings.Contains(r.Stderr, says) || strings.Contains(r.Stderr, "exited with code") {
			t.Errorf("%s: exit code %d and %q, want 1 and %q", flag, r.Code, r.Stderr, says)
		}
	}
}

// Ctrl-C ends the command although its daemon is stuck before the mount is ready.
func TestInterruptedStartOfAStoppedDaemon(t *testing.T) {
	blackbox.NeedFUSE(t)
	asked := make(chan struct{}, 16)
	source := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		asked <- struct{}{}
		<-q.Context().Done()
	}))
	defer source.Close()
	point := suite.NewDir(t)
	b := mounttest.Begin(t, suite, suite.Command(t.Context(), "mount", "--log-file", filepath.Join(suite.NewDir(t), "log"), source.URL, point))
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal("the source is not asked")
	}
	pid := childOf(t, b.Process.Pid)
	must(t, blackbox.Stop(pid))
	must(t, b.Process.Signal(os.Interrupt))
	if b.End(t) && (b.ProcessState.ExitCode() != 130 || b.Said(t) != "hbmfs: interrupted\n") {
		t.Errorf("exit code %d and %q, want 130 and that it was interrupted", b.ProcessState.ExitCode(), b.Said(t))
	}
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(pid) }) {
		t.Error("the daemon stays")
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	mounttest.WantMounted(t, point, false)
}
