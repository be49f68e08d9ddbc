package handover_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// held is what the processes around a mount have: descriptors, and memory in KiB.
type held struct {
	Daemon, Keeper, Readers          int   // descriptors
	DaemonKiB, KeeperKiB, ReadersKiB int64 // of their own
	StateKiB                         int64 // of the files in memory that lives share
}

func (h held) String() string {
	return fmt.Sprintf("descriptors: daemon %d, keeper %d, readers %d; KiB: daemon %d, keeper %d, readers %d, state %d",
		h.Daemon, h.Keeper, h.Readers, h.DaemonKiB, h.KeeperKiB, h.ReadersKiB, h.StateKiB)
}

func (m *mounted) held(t *testing.T) (h held) {
	t.Helper()
	s := m.Status(t)
	own := func(pid int) (kib int64) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		must(t, err)
		_, rest, _ := strings.Cut(string(text), "\nPss_Anon:")
		kib, err = strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		must(t, err)
		return kib
	}
	h.Daemon, h.Keeper, h.Readers = mounttest.OpenFiles(t, s.PID), mounttest.OpenFiles(t, s.Handover.PID), mounttest.OpenFiles(t, os.Getpid())
	h.DaemonKiB, h.KeeperKiB = own(s.PID), own(s.Handover.PID)
	debug.FreeOSMemory()
	var of runtime.MemStats
	runtime.ReadMemStats(&of)
	h.ReadersKiB = int64(of.HeapAlloc >> 10)
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.Handover.PID))
	must(t, err)
	for _, fd := range fds {
		var st unix.Stat_t
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, "/memfd:") && unix.Stat(fd, &st) == nil { // one may have been closed
			h.StateKiB += st.Blocks / 2
		}
	}
	return h
}

// descriptors lists what a process has open, sorted, for messages.
func descriptors(pid int) string {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	var all []string
	for _, fd := range fds {
		to, _ := os.Readlink(fd) // it may have been closed
		all = append(all, to)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// noMoreThan tells whether nothing has grown since before, but for what memory differs by anyway.
func (h held) noMoreThan(before held) bool {
	const some = 8 << 10 // KiB: a collection of garbage that is yet to come
	return h.Daemon <= before.Daemon && h.Keeper <= before.Keeper && h.Readers <= before.Readers && h.StateKiB <= before.StateKiB+64 &&
		h.DaemonKiB <= before.DaemonKiB+some && h.KeeperKiB <= before.KeeperKiB+some && h.ReadersKiB <= before.ReadersKiB+some
}

// onTmpfs copies files of a directory to a tmpfs, which tells what of them is removed and not gone. used is in bytes.
func onTmpfs(t *testing.T, from string) (source string, used func() uint64) {
	t.Helper()
	source = suite.NewDir(t)
	must(t, unix.Mount("tmpfs", source, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(source, unix.MNT_DETACH)) })
	must(t, os.CopyFS(source, os.DirFS(from)))
	return source, func() uint64 {
		var st unix.Statfs_t
		must(t, unix.Statfs(source, &st))
		return (st.Blocks - st.Bfree) * uint64(st.Bsize)
	}
}

// Many hand-overs with a spare add nothing up: descriptors and memory of the daemon, of the keeper and of readers, the state, and the backing
// files that the kernel has. Of ten hand-overs two are crashes. A long run is HBMFS_HANDOVERS=2000: 8,000 upgrades and 2,000 crashes.
func TestHandoversLeaveNothing(t *testing.T) {
	blackbox.NeedRoot(t)
	const files = 8
	rounds := setting(t, "HBMFS_HANDOVERS", 3)
	victims := 1 + min(rounds, 20)
	made, stream := mounttest.ShardedTokens(t, suite, files, 20_000)
	content := bytes.Repeat([]byte("backing file"), 16<<10)
	for i := range victims {
		mounttest.WriteFiles(t, made, map[string]string{fmt.Sprintf("raw/%d", i): string(content)})
	}
	source, used := onTmpfs(t, made)
	m := mount(t, source)
	m.NeedHandover(t)
	m.waitForSpare(t, 0)

	gone := 0 // of the victims; guarded by gate, which readers hold for each step
	var gate sync.RWMutex
	readers := append(localReaders(t, m, source, files, stream), &reader{name: "a file that will be removed", step: func(r *rand.Rand) error {
		name := filepath.Join("raw", strconv.Itoa(gone+r.IntN(victims-gone)))
		got, err := os.ReadFile(m.Path(name))
		if err != nil {
			return err
		}
		return equal(got, content, name, 0)
	}})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i, r := range readers {
		running.Go(func() {
			debug.SetPanicOnFault(true)
			for random := rand.New(rand.NewPCG(uint64(i), 3)); ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
				gate.RLock()
				if err := r.step(random); err != nil {
					t.Errorf("%s: %v", r.name, err)
				}
				gate.RUnlock()
			}
		})
	}
	defer running.Wait()
	defer stop()

	random := rand.New(rand.NewPCG(5, 7))
	var first held
	for round := range rounds {
		for k := range 5 {
			known := m.waitForSpare(t, 0)
			if k == round%5 {
				m.Crash(t)
			} else if _, err := suite.Output(t.Context(), "upgrade", m.Point); err != nil { // m.upgrade leaves the test a little memory
				t.Error(err)
			}
			m.waitForSpare(t, known)
			time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
		}
		if (round+1)*(victims-1)/rounds == gone {
			continue
		}
		gate.Lock()
		before := used()
		must(t, os.Remove(filepath.Join(source, "raw", strconv.Itoa(gone))))
		gone++
		for range 2 { // what the daemon and its spare have open goes with them
			known := m.waitForSpare(t, 0)
			m.Crash(t)
			m.waitForSpare(t, known)
		}
		if !blackbox.Within(patience, func() bool { return before-used() == uint64(len(content)) }) {
			t.Errorf("after %d hand-overs a file that is removed and closed has left %d bytes", 5*(round+1), uint64(len(content))-(before-used()))
		}
		var now held
		if gone == 1 {
			first = m.held(t)
			now = first
		} else if !blackbox.Within(patience, func() bool { now = m.held(t); return now.noMoreThan(first) }) {
			s := m.Status(t)
			t.Errorf("after %d hand-overs there is more than at first\nkeeper:\n%s\ndaemon:\n%s", 5*(round+1), descriptors(s.Handover.PID), descriptors(s.PID))
		}
		s := m.Status(t)
		t.Logf("after %5d hand-overs, %4d crashes: %v", s.Handover.Count, s.Handover.Crashes, now)
		gate.Unlock()
	}
	m.PID = m.Status(t).PID
}
