package handover_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// waitForSpare waits for a daemon that waits for its turn, other than one that is known.
func (m *mounted) waitForSpare(t *testing.T, known int) (pid int) {
	t.Helper()
	if !blackbox.Within(patience, func() bool { pid = m.Status(t).Handover.Next; return pid != 0 && pid != known }) {
		t.Fatalf("no daemon waits for its turn: %+v\n%s", m.Status(t), m.LogText(t))
	}
	return pid
}

func comm(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // empty, where it has ended
	return strings.TrimSpace(string(text))
}

// The daemon that waits for its turn takes it after a crash. Then it is an ordinary process, and another one waits.
func TestSpareTakesItsTurn(t *testing.T) {
	m, keeper, stop := mountOfTwo(t)
	if got := comm(m.PID); got != handover.DaemonComm {
		t.Errorf("the first daemon is called %q", got)
	}
	for range 3 {
		spare := m.waitForSpare(t, 0)
		if got := comm(spare); got != handover.SpareComm {
			t.Errorf("the daemon that waits is called %q", got)
		}
		m.Crash(t)
		if s := m.Status(t); s.PID != spare || s.Handover.PID != keeper {
			t.Errorf("after a crash there is %+v, want process %d", s, spare)
		}
		m.PID = spare
		if got := comm(spare); got != handover.DaemonComm {
			t.Errorf("the daemon that serves is called %q", got)
		}
		if !blackbox.Within(patience, func() bool { return ordinary(t, spare) }) {
			t.Error("the daemon still comes before others")
		}
	}
	r := stop()
	for _, err := range r.wrong {
		t.Error(err)
	}
	spare := m.waitForSpare(t, 0)
	must(t, m.Close())
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(spare) }) {
		t.Error("the daemon that waits outlives the mount")
	}
}

// ordinary tells whether all threads of a process have this one's nice value, and its session too, but for the sentinel, which sleeps.
func ordinary(t *testing.T, pid int) bool {
	t.Helper()
	plain, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	must(t, err)
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	must(t, err)
	sentinels := 0
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		must(t, err)
		attr, err := unix.SchedGetAttr(tid, 0)
		nice, niceErr := unix.Getpriority(unix.PRIO_PROCESS, tid)
		switch {
		case err != nil || niceErr != nil: // it has ended
		case attr.Policy == unix.SCHED_FIFO:
			sentinels++
		case nice != plain:
			return false
		}
	}
	group, _ := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", pid)) // not of every kernel
	return sentinels <= 1 && (len(group) == 0 || strings.HasSuffix(strings.TrimSpace(string(group)), "nice 0"))
}

// A spare that is killed, or told to end, is replaced, and harms nothing. Without one the mount goes on all the same.
func TestSpareIsKilled(t *testing.T) {
	m, _, stop := mountOfTwo(t)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		spare := m.waitForSpare(t, 0)
		must(t, syscall.Kill(spare, sig))
		if m.waitForSpare(t, spare) == spare {
			t.Error("it is still the same")
		}
	}
	spare := m.waitForSpare(t, 0)
	m.PID = m.Status(t).PID
	must(t, syscall.Kill(spare, syscall.SIGKILL))
	m.Crash(t)
	if s := m.Status(t); s.PID == spare || s.PID == m.PID || s.Handover.Crashes != 1 {
		t.Errorf("after a crash there is %+v", s)
	}
	m.PID = m.Status(t).PID
	for _, err := range stop().wrong {
		t.Error(err)
	}
	if log := m.LogText(t); strings.Contains(log, "hbmfs: ") || strings.Contains(log, "level=ERROR") {
		t.Errorf("the log has words of the ones that were killed:\n%s", log)
	}
}

// A spare that is stopped does not keep a mount: it is woken when its turn comes.
func TestSpareIsStopped(t *testing.T) {
	m, _, stop := mountOfTwo(t)
	spare := m.waitForSpare(t, 0)
	must(t, blackbox.Stop(spare))
	began := time.Now()
	m.Crash(t)
	s := m.Status(t)
	t.Logf("readers waited for %v", time.Since(began))
	if m.PID = s.PID; s.PID != spare {
		t.Errorf("process %d answers, want the spare %d", s.PID, spare)
	}
	for _, err := range stop().wrong {
		t.Error(err)
	}
}

// A daemon that serves stays stopped when its keeper is killed, also one that was a spare. Only a stopped spare is woken.
func TestServingDaemonStaysStopped(t *testing.T) {
	blackbox.NeedRoot(t)
	source, _ := mounttest.ShardedTokens(t, suite, 2, 1000)
	m := mount(t, source, "--no-spare")
	m.NeedHandover(t)
	staysStopped(t, m)
	m = mount(t, source)
	spare := m.waitForSpare(t, 0)
	staysStopped(t, m)
	if m.PID != spare {
		t.Errorf("process %d serves, want the spare %d", m.PID, spare)
	}
}

func staysStopped(t *testing.T, m *mounted) {
	t.Helper()
	m.Crash(t)
	s := m.Status(t)
	m.PID = s.PID // a child of the keeper
	must(t, blackbox.Stop(m.PID))
	must(t, syscall.Kill(s.Handover.PID, syscall.SIGKILL))
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(s.Handover.PID) }) {
		t.Fatal("the keeper survives SIGKILL")
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.PID))
	must(t, err)
	if !bytes.Contains(status, []byte("\nState:\tT")) {
		t.Errorf("the daemon goes on when its keeper is killed:\n%s", status)
	}
	must(t, syscall.Kill(m.PID, syscall.SIGCONT))
	if !blackbox.Within(patience, func() bool { h := m.Status(t).Handover; return h.Holder == "keeper" && h.PID != s.Handover.PID }) {
		t.Errorf("there is no other keeper: %+v", m.Status(t))
	}
}

func TestNoSpare(t *testing.T) {
	blackbox.NeedRoot(t)
	source, _ := mounttest.ShardedTokens(t, suite, 2, 1000)
	m := mount(t, source, "--no-spare")
	m.NeedHandover(t)
	time.Sleep(300 * time.Millisecond) // longer than one needs
	if s := m.Status(t); s.Handover.Next != 0 || len(m.daemonsOf(s.Handover.PID)) != 0 {
		t.Errorf("there is %+v", s)
	}
	m.Crash(t)
	if s := m.Status(t); s.Handover.Crashes != 1 || s.Handover.Next != 0 {
		t.Errorf("after a crash there is %+v", s)
	}
	m.PID = m.Status(t).PID
}

// No other daemon can be started any more, since the log's directory is gone. The one that waits has what keeps the filesystem: it goes all the same.
func TestUmountThoughNoSpareStarts(t *testing.T) {
	source, _ := mounttest.ShardedTokens(t, suite, 2, 1000)
	m := mount(t, source)
	m.NeedHandover(t)
	spare := m.waitForSpare(t, 0)
	must(t, os.RemoveAll(filepath.Dir(m.Log)))
	if r := run(t, "umount", m.Point); r.Code != 0 || r.Stderr != "" {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	for name, pid := range map[string]int{"the daemon": m.PID, "the one that waited": spare} {
		if !blackbox.Ended(pid) {
			t.Errorf("%s runs", name)
			must(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
}

// What a job looked at while a daemon waited for its turn is there when it has taken it: a view that the waiting one has not heard of.
func TestSpareHearsOfViews(t *testing.T) {
	m, _, stop := mountOfTwo(t)
	m.waitForSpare(t, 0)
	stop()
	view := m.Path(".hbmfs", "views", "tokens.npy")
	before, err := os.Stat(view)
	must(t, err)
	m.Crash(t)
	after, err := os.Stat(view)
	must(t, err)
	if before.Size() != after.Size() || before.ModTime() != after.ModTime() || before.Sys().(*syscall.Stat_t).Ino != after.Sys().(*syscall.Stat_t).Ino {
		t.Errorf("%v, was %v", after, before)
	}
	m.PID = m.Status(t).PID
}
