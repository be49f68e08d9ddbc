package handover_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// keepersOf lists the keepers of a mount: processes of that name that log where its daemons do.
func (m *mounted) keepersOf(t *testing.T) (pids []int) {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, proc := range procs {
		pid, err := strconv.Atoi(filepath.Base(proc))
		must(t, err)
		to, _ := os.Readlink(filepath.Join(proc, "fd", "2")) // it may have ended
		if comm(pid) == handover.Comm && to == m.Log && !blackbox.Ended(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// An upgrade replaces the keeper, too: the new one is of the new program, and the one before ends.
func TestUpgradeReplacesTheKeeper(t *testing.T) {
	m, keeper, stop := mountOfTwo(t)
	for range 3 {
		m.upgrade(t)
		if !blackbox.Within(patience, func() bool { return m.Status(t).Handover.PID != keeper && blackbox.Ended(keeper) }) {
			t.Fatalf("the keeper %d has not been replaced: %+v", keeper, m.Status(t))
		}
		before := keeper
		s := m.Status(t)
		keeper, m.PID = s.Handover.PID, s.PID
		if !blackbox.Within(patience, func() bool { return len(m.keepersOf(t)) == 1 }) { // a daemon that it starts has its name for a moment
			t.Errorf("after %d there are the keepers %v", before, m.keepersOf(t))
		}
		m.waitForSpare(t, 0)
	}
	m.Crash(t)
	if s := m.Status(t); s.Handover.PID != keeper || s.Handover.Crashes != 1 || s.Handover.Count != 4 {
		t.Errorf("after a crash there is %+v", s)
	}
	m.PID = m.Status(t).PID
	for _, err := range stop().wrong {
		t.Error(err)
	}
	if log := m.LogText(t); strings.Contains(log, "goes on\" reason") || strings.Contains(log, "was gone") {
		t.Errorf("the log has\n%s", log)
	}
}

// Whichever process is killed while a keeper is replaced, at any moment: readers see nothing, and one keeper is there in the end.
func TestKilledWhileTheKeeperIsReplaced(t *testing.T) {
	m, _, stop := mountOfTwo(t)
	random := rand.New(rand.NewPCG(4, 4))
	counts, history := map[string]int{}, []string{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("killed: %q\n%s", history, m.LogText(t))
		}
	})
	of, killed := 0, 0 // keepers that were killed while this daemon lived
	for range setting(t, "HBMFS_HANDOVERS", 24) {
		s := m.Status(t)
		if s.PID == of && killed >= 3 { // it lets the mount end with it at the fifth
			if r := run(t, "upgrade", m.Point); r.Code != 0 {
				t.Fatalf("the upgrade ended with %d: %s\n%s", r.Code, r.Stderr, m.LogText(t))
			}
			s = m.Status(t)
		}
		if s.PID != of {
			of, killed = s.PID, 0
		}
		killed++
		known := m.keepersOf(t)
		upgraded := make(chan string, 1)
		go func() { // ends with the upgrade, awaited below
			r := run(t, "upgrade", m.Point)
			upgraded <- fmt.Sprintf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}()
		what := []string{"the new keeper", "the new daemon", "the keeper before"}[random.IntN(3)]
		victim := 0
		blackbox.Within(time.Second, func() bool { // it is there for some milliseconds at least
			switch what {
			case "the new keeper":
				now := slices.DeleteFunc(m.keepersOf(t), func(pid int) bool { return slices.Contains(known, pid) })
				if len(now) > 0 {
					victim = now[0]
				}
			case "the new daemon":
				if next := m.Status(t); next.PID != s.PID {
					victim = next.PID
				}
			default:
				victim = s.Handover.PID
			}
			return victim != 0
		})
		time.Sleep(time.Duration(random.IntN(40_000)) * time.Microsecond)
		if victim != 0 && syscall.Kill(victim, syscall.SIGKILL) == nil {
			counts[what]++
			history = append(history, fmt.Sprintf("%s %s (%d)", time.Now().Format("05.000"), what, victim))
		}
		said := <-upgraded
		if !blackbox.Within(patience, func() bool {
			if _, err := os.Stat(m.Path("absent")); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("%s (%d) was killed: %v; the upgrade said %s\n%s", what, victim, err, said, m.LogText(t))
			}
			now := m.Status(t)
			keepers := m.keepersOf(t)
			return now.Handover.Holder == "keeper" && len(keepers) == 1 && keepers[0] == now.Handover.PID && !blackbox.Ended(now.PID)
		}) {
			t.Fatalf("%s (%d) was killed: there are the keepers %v, and %+v; the upgrade said %s\n%s", what, victim, m.keepersOf(t), m.Status(t), said, m.LogText(t))
		}
		m.PID = m.Status(t).PID
	}
	n, usual, longest := stop().worst()
	t.Logf("killed: %v; %d reads, usually %v, longest %v", counts, n, usual, longest)
	for _, err := range stop().wrong {
		t.Error(err)
	}
}
