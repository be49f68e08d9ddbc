package handover_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// daemonsOf lists the daemons of a mount that a keeper has started and that run, in any state.
func (m *mounted) daemonsOf(keeper int) (daemons []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", keeper)) // none, where it has ended
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the same
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			command, _ := os.ReadFile("/proc/" + word + "/cmdline") // empty, where it has ended
			if err == nil && strings.Contains(string(command), m.Point+"\x00") {
				daemons = append(daemons, child)
			}
		}
	}
	return daemons
}

// nextDaemon waits for a daemon that a keeper has started, other than those that are known.
func (m *mounted) nextDaemon(t *testing.T, keeper int, known map[int]bool) (pid int) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		for _, child := range m.daemonsOf(keeper) {
			if !known[child] {
				known[child] = true
				return child
			}
		}
	}
	t.Fatal("the keeper starts no daemon")
	return 0
}

// mountOfTwo mounts two shards, and reads their view until stop is called. It returns the keeper.
func mountOfTwo(t *testing.T) (m *mounted, keeper int, stop func() *reader) {
	t.Helper()
	blackbox.NeedRoot(t)
	source, stream := mounttest.ShardedTokens(t, suite, 2, 50_000)
	m = mount(t, source)
	m.NeedHandover(t)
	f, err := os.Open(m.Path(".hbmfs", "views", "tokens.bin"))
	must(t, err)
	r := &reader{name: "a view", step: func(r *rand.Rand) error {
		dropped(f)
		off := r.IntN(len(stream) - 1000)
		p := make([]byte, 1000)
		_, err := f.ReadAt(p, int64(off))
		return errors.Join(err, equal(p, stream[off:off+1000], "a view", int64(off)))
	}}
	over, rest := make(chan struct{}), restOf(t)
	var running sync.WaitGroup
	running.Go(func() { r.run(over, 1, rest) })
	ended := false
	stop = func() *reader {
		if !ended {
			ended = true
			close(over)
			running.Wait()
			must(t, f.Close())
		}
		return r
	}
	t.Cleanup(func() { stop() })
	return m, m.Status(t).Handover.PID, stop
}

// More daemons are killed in a row, before they serve, than may fail: that is no fault of theirs, and another goes on.
func TestManyNextDaemonsAreKilled(t *testing.T) {
	m, keeper, stop := mountOfTwo(t)
	m.PID = m.Status(t).PID
	known := map[int]bool{m.PID: true}
	must(t, syscall.Kill(m.PID, syscall.SIGKILL))
	for range 8 {
		_ = syscall.Kill(m.nextDaemon(t, keeper, known), syscall.SIGKILL) // a spare that the keeper no longer wants may have ended
	}
	m.PID = m.Status(t).PID
	for _, err := range stop().wrong {
		t.Error(err)
	}
}

// The next daemon is killed at any moment of taking over, once or twice: then another goes on.
func TestNextDaemonIsKilled(t *testing.T) {
	m, keeper, stop := mountOfTwo(t)
	random := rand.New(rand.NewPCG(11, 5))
	killed := map[int]bool{}
	for range setting(t, "HBMFS_HANDOVERS", 12) {
		for m.PID = m.Status(t).PID; killed[m.PID]; m.PID = m.Status(t).PID { // one that was killed may still answer
		}
		known := maps.Clone(killed) // one may not have ended yet
		known[m.PID] = true
		must(t, syscall.Kill(m.PID, syscall.SIGKILL))
		for range 1 + random.IntN(2) {
			pid := m.nextDaemon(t, keeper, known)
			killed[pid] = true
			time.Sleep(time.Duration(random.IntN(12_000)) * time.Microsecond)
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatalf("the next daemon has ended by itself: %v\n%s", err, m.LogText(t))
			}
		}
	}
	m.PID = m.Status(t).PID
	s := m.Status(t)
	r := stop()
	n, usual, longest := r.worst()
	t.Logf("%d reads, usually %v, longest %v; %d hand-overs", n, usual, longest, s.Handover.Count)
	for _, err := range r.wrong {
		t.Error(err)
	}
}

// A keeper that gets no daemon gives the mount up: a reader that waits gets an error, and a new mount takes the dead one away.
func TestMountIsGivenUp(t *testing.T) {
	m, keeper, stop := mountOfTwo(t)
	known := map[int]bool{}
	began := time.Now()
	m.Crash(t)
	for end := began.Add(patience); !blackbox.Ended(keeper) && time.Now().Before(end); { // one that has served counts as none
		for _, child := range m.daemonsOf(keeper) {
			if !known[child] {
				_ = syscall.Kill(child, syscall.SIGKILL) // it may have ended
			}
		}
	}
	if !blackbox.Ended(keeper) {
		t.Fatal("the keeper goes on")
	}
	if r := stop(); len(r.wrong) == 0 || !errors.Is(r.wrong[0], unix.ENOTCONN) && !errors.Is(r.wrong[0], unix.ECONNABORTED) {
		t.Errorf("the reader got %v, want that nobody is connected", r.wrong)
	}
	t.Logf("given up after %v", time.Since(began))
	if text := m.LogText(t); !strings.Contains(text, "given up") {
		t.Errorf("the log does not say so:\n%s", text)
	}
	again := mountOn(t, m.Source, m.Point)
	if err := mounttest.CompareTrees(m.Source, again.Point); err != nil {
		t.Error(err)
	}
}

// A keeper that is killed is replaced, and the mount goes on after a crash all the same.
func TestKeeperIsKilled(t *testing.T) {
	m, keeper, stop := mountOfTwo(t)
	for range 2 {
		must(t, syscall.Kill(keeper, syscall.SIGKILL))
		if !blackbox.Within(patience, func() bool { s := m.Status(t).Handover; return s.Holder == "keeper" && s.PID != keeper }) {
			t.Fatalf("there is no other keeper: %+v", m.Status(t))
		}
		keeper = m.Status(t).Handover.PID
		m.Crash(t)
		if s := m.Status(t); s.PID == m.PID {
			t.Error("the daemon lives")
		}
	}
	m.PID = m.Status(t).PID
	for _, err := range stop().wrong {
		t.Error(err)
	}
}

// Daemon and keeper are killed at the same time, or one just after the other: the mount goes on where a daemon waits for its turn. Else it
// goes on, or is dead; nothing hangs.
func TestKeeperAndDaemonAreKilled(t *testing.T) {
	for i, pause := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 0, time.Millisecond, 5 * time.Millisecond} {
		m, keeper, stop := mountOfTwo(t)
		waits := i > 3
		if waits {
			m.waitForSpare(t, 0)
		}
		m.PID = m.Status(t).PID
		must(t, syscall.Kill(m.PID, syscall.SIGKILL))
		time.Sleep(pause)
		must(t, syscall.Kill(keeper, syscall.SIGKILL))
		answered := make(chan error, 1)
		go func() { _, err := os.ReadFile(m.Path(".hbmfs", "status")); answered <- err }() // ends within the test, or fails it
		select {
		case err := <-answered:
			t.Logf("after %v: %v", pause, err)
			if err == nil {
				m.PID = m.Status(t).PID
			} else if waits {
				t.Errorf("after %v the mount is dead, though a daemon waited for its turn\n%s", pause, m.LogText(t))
			}
		case <-time.After(patience):
			t.Fatalf("after %v a reader hangs", pause)
		}
		stop()
		must(t, m.Close())
	}
}

// An upgrade ends a daemon that is stopped.
func TestUpgradeOfAStoppedDaemon(t *testing.T) {
	m, _, stop := mountOfTwo(t)
	m.PID = m.Status(t).PID
	must(t, blackbox.Stop(m.PID))
	if r := run(t, "upgrade", m.Point); r.Code != 0 || !strings.Contains(r.Stdout, "served by") {
		t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if !blackbox.Ended(m.PID) {
		t.Error("the stopped daemon is still there")
	}
	m.PID = m.Status(t).PID
	for _, err := range stop().wrong {
		t.Error(err)
	}
}

// A program that cannot go on with a mount is refused, and nothing changes.
func TestUpgradeIsRefused(t *testing.T) {
	m, keeper, stop := mountOfTwo(t)
	before := m.Status(t)
	for _, check := range []bool{true, false} {
		if _, err := handover.Upgrade(t.Context(), keeper, "/bin/false", check); !errors.Is(err, handover.ErrRefused) {
			t.Errorf("check %v: %v, want a refusal", check, err)
		}
	}
	if now := m.Status(t); now.PID != before.PID || now.Handover.Count != 0 {
		t.Errorf("the mount was %+v, and is %+v", before, now)
	}
	if r := run(t, "upgrade", "--check", m.Point); r.Code != 0 || !strings.Contains(r.Stdout, "can go on") {
		t.Errorf("check: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if now := m.Status(t); now.PID != before.PID {
		t.Error("the check has replaced the daemon")
	}
	for _, err := range stop().wrong {
		t.Error(err)
	}
	held := mount(t, m.Source, "--no-keeper")
	if r := run(t, "upgrade", held.Point, m.Point); r.Code != 3 || !strings.Contains(r.Stdout, "no keeper was wanted") || !strings.Contains(r.Stdout, m.Point+": served by") {
		t.Errorf("a mount without a keeper: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	m.PID = m.Status(t).PID
	for _, args := range [][]string{{"upgrade"}, {"upgrade", "--all", m.Point}} {
		if r := run(t, args...); r.Code != 2 {
			t.Errorf("%q: exit code %d", args, r.Code)
		}
	}
}

// The mount is taken away while nobody serves it, and while it goes on. The keeper goes with it, and a mount point that was made.
func TestUmountAfterAHandover(t *testing.T) {
	blackbox.NeedRoot(t)
	shards, _ := mounttest.ShardedTokens(t, suite, 2, 1000)
	source, point := filepath.Join(suite.NewDir(t), "no text \xff"), filepath.Join(suite.NewDir(t), "made \xff")
	must(t, os.CopyFS(source, os.DirFS(shards)))
	m := mountOn(t, source, point)
	m.NeedHandover(t)
	keeper := m.Status(t).Handover.PID
	m.upgrade(t)
	if err := mounttest.CompareTrees(source, point); err != nil {
		t.Error(err)
	}
	m.Crash(t)
	if r := run(t, "umount", point); r.Code != 0 {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	mounttest.WantMounted(t, point, false)
	if !blackbox.Within(patience, func() bool { return blackbox.Ended(keeper) }) {
		t.Error("the keeper stays")
	}
	if !blackbox.Within(patience, func() bool { _, err := os.Stat(point); return errors.Is(err, os.ErrNotExist) }) {
		t.Error("the mount point that was made stays")
	}
}

// A keeper takes little memory, also after it has replaced daemons. Pages of its program that it has mapped are the page cache's: how
// many come with one that it needs is up to the kernel.
func TestKeeperIsSmall(t *testing.T) {
	m, _, stop := mountOfTwo(t)
	for range 5 {
		m.upgrade(t)
	}
	for range 5 {
		m.Crash(t)
	}
	m.PID = m.Status(t).PID
	stop()
	keeper := m.Status(t).Handover.PID
	const most = 4 << 10 // KiB
	small := func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", keeper))
		must(t, err)
		_, rest, _ := strings.Cut(string(text), "\nPss_Anon:")
		kib, err := strconv.Atoi(strings.Fields(rest)[0])
		must(t, err)
		if kib > most {
			t.Logf("%s", text)
		}
		return kib <= most
	}
	if !blackbox.Race && !blackbox.Within(patience, small) {
		t.Errorf("the keeper takes more than %d KiB", most)
	}
}

// The kernel kills a daemon that takes more memory than its cgroup has: readers see nothing of it.
func TestDaemonIsOutOfMemory(t *testing.T) {
	m, keeper, stop := mountOfTwo(t)
	group := "/sys/fs/cgroup/memory/hbmfs-test-" + strconv.Itoa(os.Getpid())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip("needs a memory cgroup (v1): ", err)
	}
	t.Cleanup(func() {
		_ = os.WriteFile("/sys/fs/cgroup/memory/cgroup.procs", []byte(strconv.Itoa(m.PID)), 0) // it is not in the group where it was killed
		if !blackbox.Within(patience, func() bool { return os.Remove(group) == nil }) {
			t.Error("the cgroup stays")
		}
	})
	m.PID = m.Status(t).PID
	must(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(m.PID)), 0))
	_ = os.WriteFile(filepath.Join(group, "memory.force_empty"), []byte("0"), 0)        // what it has is charged elsewhere
	_ = os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte("65536"), 0) // it may refuse while pages are there
	const long = 10 * time.Second                                                       // a kernel that kills does so at once
	if !blackbox.Within(long, func() bool {                                             // reading takes memory
		_, _ = exec.Command("cat", m.Path("shard_000000.bin"), m.Path(".hbmfs", "status"), m.Path(".hbmfs", "views", "tokens.npy")).Output()
		return blackbox.Ended(m.PID)
	}) {
		t.Skip("the kernel does not kill the daemon")
	}
	if s := m.Status(t); s.PID == m.PID || s.Handover.PID != keeper {
		t.Errorf("after the kill: %+v", s)
	}
	m.PID = m.Status(t).PID
	for _, err := range stop().wrong {
		t.Error(err)
	}
}

// Backing files that the kernel has for passthrough go with the last close, whenever daemons were killed: one that was lost would keep the
// bytes of a file that is removed.
func TestBackingFilesComeBack(t *testing.T) {
	blackbox.NeedRoot(t)
	source := suite.NewDir(t)
	must(t, unix.Mount("tmpfs", source, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(source, unix.MNT_DETACH)) })
	used := func() uint64 {
		var st unix.Statfs_t
		must(t, unix.Statfs(source, &st))
		return (st.Blocks - st.Bfree) * uint64(st.Bsize)
	}
	empty, content := used(), make([]byte, 64<<10)
	const files = 300
	for i := range files {
		must(t, os.WriteFile(filepath.Join(source, strconv.Itoa(i)), content, 0o644))
	}
	m := mount(t, source)
	m.NeedHandover(t)
	if p := m.Status(t).Passthrough; !p.On {
		t.Skip("no passthrough here: ", p.Why)
	}
	over := make(chan struct{})
	var opening sync.WaitGroup
	for k := range 4 {
		opening.Go(func() {
			for i := k; ; i++ {
				select {
				case <-over:
					return
				default:
				}
				f, err := os.Open(m.Path(strconv.Itoa(i % files)))
				if err != nil {
					t.Error(err)
					return
				}
				if err := f.Close(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(2, 2))
	for range 2 * setting(t, "HBMFS_HANDOVERS", 10) {
		time.Sleep(time.Duration(random.IntN(20_000)) * time.Microsecond)
		m.Crash(t)
	}
	close(over)
	opening.Wait()
	m.PID = m.Status(t).PID
	for i := range files {
		must(t, os.Remove(filepath.Join(source, strconv.Itoa(i))))
	}
	m.Crash(t) // what the daemon itself has open goes with it
	m.PID = m.Status(t).PID
	if !blackbox.Within(patience, func() bool { return used() == empty }) {
		t.Errorf("%d KiB of files that are removed and closed are still there", (used()-empty)>>10)
	}
}
