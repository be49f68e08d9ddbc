package kv_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// soakEnv is how long TestSoak lasts, such as 30m, instead of a few seconds.
const soakEnv = "HBMFS_TEST_KV_SOAK"

// usage is what a process has in memory of its own, bytes, and how many files it has open.
func usage(t testing.TB, pid int) (memory int64, files int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			_, _ = fmt.Sscan(rest, &memory)
		}
	}
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	return memory << 10, len(names)
}

// failing has calls of the daemon on the files of the disk tier fail, until well is called.
func (v *volume) failing(t testing.TB, pid int, how ...string) (well func()) {
	t.Helper()
	args := []string{"-f", "-qq", "-p", strconv.Itoa(pid), "-o", "/dev/null", "-e", "trace=pwrite64,pread64,fallocate"}
	for _, name := range []string{"model/index", "model/slab", ".hbmfs-kv.free"} {
		args = append(args, "-P", filepath.Join(v.dir, name))
	}
	strace := exec.Command("strace", append(args, how...)...)
	must(t, strace.Start())
	if !blackbox.Within(patience, func() bool { return blackbox.Traced(pid, strace.Process.Pid) }) {
		t.Fatal("strace does not attach")
	}
	return func() {
		_ = strace.Process.Signal(syscall.SIGINT) // it lets the daemon go
		_ = strace.Wait()
	}
}

// TestMemoryGoesOnWhereTheDiskFails has all writes to the disk tier fail. The status says so, and memory goes on alone.
func TestMemoryGoesOnWhereTheDiskFails(t *testing.T) {
	if err := blackbox.CanInject(); err != nil {
		t.Skip("needs strace: ", err)
	}
	v := mount(t, "--size", "16MiB", "--memory", "4MiB", "--no-keeper")
	e := v.connect(t, "model", 32<<10)
	_, _, err := e.put(t.Context(), keysOf(0, 600)...) // both tiers are full
	must(t, err)
	well := v.failing(t, v.status(t).PID, "-e", "inject=pwrite64:error=EIO")
	defer well()
	last := []string{}
	if !blackbox.Within(patience, func() bool {
		last = keysOf(10_000+100*len(last), 8)
		stored, _, err := e.put(t.Context(), last...)
		must(t, err)
		d := v.status(t).KV.Namespaces[0].Disk
		return len(stored) == len(last) && d.Down && strings.Contains(d.Fault, "input/output error")
	}) {
		t.Errorf("memory does not go on: %+v", v.status(t).KV.Namespaces[0])
	}
	found, err := e.get(t.Context(), last...)
	must(t, err)
	if len(found) != len(last) {
		t.Errorf("%d of %d blocks are found", len(found), len(last))
	}
}

// TestSoak has eight clients work at the cap, which are killed at random, while calls of the daemon on its files fail now and then, and for seconds all of
// them. Its memory and its descriptors stay what they were, no byte is wrong or over the cap, and no slot is lost.
func TestSoak(t *testing.T) {
	if err := blackbox.CanInject(); err != nil {
		t.Skip("needs strace: ", err)
	}
	lasts := 2 * time.Second
	if text := os.Getenv(soakEnv); text != "" {
		var err error
		lasts, err = time.ParseDuration(text)
		must(t, err)
	}
	const size, block = 16 << 20, 32 << 10
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 7))
	v := mount(t, "--size", strconv.Itoa(size), "--memory", "4MiB", "--no-keeper")
	pid := v.status(t).PID
	workers := make([]*worker, 8)
	for i := range workers {
		workers[i] = &worker{number: i, journal: filepath.Join(suite.NewDir(t), "journal")}
		workers[i].start(t, v, r.Uint64(), 200, false, block)
	}
	began, killed, ill := time.Now(), 0, 0
	firstMemory, firstFiles, mostMemory, mostFiles := int64(0), 0, int64(0), 0
	for time.Since(began) < lasts {
		every := []string{"when=100+100", "when=1+1"}[ill%2] // some, or all
		well := v.failing(t, pid, "-e", "inject=pwrite64:error=EIO:"+every, "-e", "inject=pread64:error=EIO:when=300+300", "-e", "inject=fallocate:error=ENOSPC:"+every)
		ill++
		time.Sleep(min(lasts/8, time.Duration(1+r.IntN(6))*time.Second))
		well()
		i := r.IntN(len(workers))
		must(t, workers[i].cmd.Process.Kill())
		workers[i].end(t)
		workers[i].start(t, v, r.Uint64(), 200, false, block)
		killed++
		time.Sleep(min(lasts/8, time.Duration(1+r.IntN(6))*time.Second))
		if got := taken(v.dir); got > size {
			t.Fatalf("%d bytes are on the disk, the limit is %d", got, size)
		}
		memory, files := usage(t, pid)
		if mostMemory, mostFiles = max(mostMemory, memory), max(mostFiles, files); firstMemory == 0 || time.Since(began) < lasts/6 {
			firstMemory, firstFiles = max(firstMemory, memory), max(firstFiles, files)
		}
	}
	operations := operationsOf(workers)
	for _, w := range workers {
		w.end(t)
	}
	n := v.status(t).KV.Namespaces[0]
	t.Logf("%d operations in %.0f s; %d clients were killed; the disk was ill %d times, %d faults; memory %d MiB, at first %d; descriptors %d, at first %d; %d evictions",
		operations, time.Since(began).Seconds(), killed, ill, n.Disk.Faults+n.Memory.Faults, mostMemory>>20, firstMemory>>20, mostFiles, firstFiles, n.Disk.Evictions+n.Memory.Evictions)
	if mostMemory > firstMemory*2+64<<20 || mostFiles > firstFiles+64 {
		t.Errorf("the daemon grows")
	}
	if n.Dropped > 0 { // what cannot be read is dropped
		t.Logf("%d blocks were dropped", n.Dropped)
	}
	v.isWholeAfter(t, true)
}
