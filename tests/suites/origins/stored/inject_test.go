package stored_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// needInjection skips where no system call of another process can be made to fail.
func needInjection(t *testing.T) {
	t.Helper()
	if err := blackbox.CanInject(); err != nil {
		t.Skipf("needs strace (make test installs it) and the right to use it: %v", err)
	}
}

// injection is strace at a daemon. It has system calls fail, be slow, or be the daemon's last.
type injection struct {
	cmd *exec.Cmd
	out string // what strace saw
	off func()
}

// inject has what happen to the system calls of the daemon named call, until the injection ends: error=EIO, signal=SIGKILL
// before the call is made, delay_exit=MICROSECONDS after it. With a path, only to those that are made on it.
func inject(t *testing.T, m *sitetest.Mounted, call, what, path string) *injection {
	t.Helper()
	i := &injection{out: filepath.Join(suite.NewDir(t), "strace")}
	args := []string{"-f", "-qq", "-o", i.out, "-p", strconv.Itoa(m.PID), "-e", "trace=" + call, "-e", "inject=" + call + ":" + what}
	if path != "" {
		args = append(args, "-P", path)
	}
	// A thread that is made while strace comes to all others may be left out: it is tried again.
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		i.cmd = exec.CommandContext(ctx, "strace", args...)
		i.cmd.Cancel = func() error { return i.cmd.Process.Signal(os.Interrupt) }
		i.cmd.WaitDelay = 2 * time.Second // a strace that has a call wait does not end by itself
		must(t, i.cmd.Start())
		i.off = sync.OnceFunc(func() {
			cancel()
			_ = i.cmd.Wait() // by the signal
		})
		if blackbox.Within(10*time.Second, func() bool { return blackbox.Traced(m.PID, i.cmd.Process.Pid) }) {
			t.Cleanup(i.end)
			return i
		}
		i.end()
	}
	t.Fatalf("strace does not get hold of the daemon %d", m.PID)
	return nil
}

// end lets the daemon go. It may be called again.
func (i *injection) end() { i.off() }

// seen is what strace says of the calls.
func (i *injection) seen(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(i.out)
	must(t, err)
	return string(text)
}
