package kv_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// longEnv is how many operations TestRandomOperations does, instead of a few seconds' worth: 1000000 for the long form.
const longEnv = "HBMFS_TEST_KV_OPERATIONS"

// worker is a client process.
type worker struct {
	number  int
	journal string
	cmd     *exec.Cmd
	stdin   io.Closer
	errs    *bytes.Buffer
}

func (w *worker) start(t testing.TB, v *volume, seed uint64, keys int, keeps bool, block int64) {
	t.Helper()
	w.cmd = exec.Command("/proc/self/exe")
	w.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d %d %d %t %d", childVerb, v.point, w.journal, w.number, seed, keys, keeps, block))
	w.errs = &bytes.Buffer{}
	w.cmd.Stderr = w.errs
	var err error
	w.stdin, err = w.cmd.StdinPipe()
	must(t, err)
	must(t, w.cmd.Start())
}

// end waits for a client, which has to have been well until it was killed or told to end.
func (w *worker) end(t testing.TB) {
	t.Helper()
	_ = w.stdin.Close() // a killed one has none
	_ = w.cmd.Wait()    // the state says more
	status, _ := w.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if w.errs.Len() > 0 || !status.Signaled() && status.ExitStatus() != 0 {
		t.Fatalf("client %d: %s%v", w.number, w.errs.String(), w.cmd.ProcessState)
	}
}

// operationsOf is how many operations clients have done.
func operationsOf(workers []*worker) (sum uint64) {
	for _, w := range workers {
		if b, err := os.ReadFile(w.journal + ".operations"); err == nil && len(b) == 8 {
			sum += binary.LittleEndian.Uint64(b)
		}
	}
	return sum
}

// TestRandomOperations has eight clients do random operations, which are killed at random, as the daemon is. A client knows what it must find. In the first
// volume all blocks have room; in the second most are evicted.
func TestRandomOperations(t *testing.T) {
	want := uint64(0)
	lasts := 2 * time.Second
	if text := os.Getenv(longEnv); text != "" {
		var err error
		want, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
		lasts = 24 * time.Hour
	}
	for name, c := range map[string]struct {
		keeps bool
		size  int64
		block int64
	}{"room for all": {true, 64 << 20, 16 << 10}, "at the cap": {false, 8 << 20, 32 << 10}} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(c.size)))
			memory := int64(4 << 20)
			v := mount(t, "--size", strconv.FormatInt(c.size, 10), "--memory", strconv.FormatInt(memory, 10))
			workers := make([]*worker, 8)
			for i := range workers {
				workers[i] = &worker{number: i, journal: filepath.Join(suite.NewDir(t), "journal")}
				workers[i].start(t, v, r.Uint64(), 100, c.keeps, c.block)
			}
			killed, daemons, began := 0, 0, time.Now()
			for end := began.Add(lasts); (time.Now().Before(end) || daemons == 0) && (want == 0 || operationsOf(workers) < want/2); {
				time.Sleep(time.Duration(50+r.IntN(200)) * time.Millisecond)
				if got := taken(v.dir); got > c.size {
					t.Fatalf("%d bytes are on the disk, the limit is %d", got, c.size)
				}
				i := r.IntN(len(workers))
				must(t, workers[i].cmd.Process.Kill())
				workers[i].end(t)
				workers[i].start(t, v, r.Uint64(), 100, c.keeps, c.block)
				killed++
				if killed%4 == 0 {
					v.kill(t)
					daemons++
				}
				if s := v.status(t).KV; len(s.Namespaces) > 0 && int64(s.Namespaces[0].Memory.Allocated) > memory {
					t.Fatalf("%d bytes of memory are taken, the limit is %d", s.Namespaces[0].Memory.Allocated, memory)
				}
			}
			for _, w := range workers {
				w.end(t)
			}
			t.Logf("%d operations; %d clients and %d daemons were killed in %.0f s", operationsOf(workers), killed, daemons, time.Since(began).Seconds())
			v.isWhole(t)
		})
	}
}

// isWhole tests that no slot is lost once all clients have ended: without blocks all regions can be given back.
func (v *volume) isWhole(t testing.TB) { t.Helper(); v.isWholeAfter(t, false) }

// isWholeAfter tests that, where calls of the daemon may have failed.
func (v *volume) isWholeAfter(t testing.TB, faults bool) {
	t.Helper()
	var s *status.KV
	if !blackbox.Within(patience, func() bool {
		s = v.status(t).KV
		return s.Holding == 0 && s.Namespaces[0].Pins == 0 && s.Namespaces[0].Reservations == 0
	}) {
		t.Errorf("%d processes hold something still: %+v", s.Holding, s)
	}
	if n := s.Namespaces[0]; !faults && (n.Unusable > 0 || n.Dropped > 0 || n.Broken > 0 || len(s.Notes) > 0) {
		t.Errorf("%+v, %v", n, s.Notes)
	}
	e, err := connect(context.Background(), v.point, "model", 0, control.KVWrite)
	must(t, err)
	if !blackbox.Within(patience, func() bool { // a copy between the tiers may be under way
		must(t, e.Clear(context.Background()))
		s = v.status(t).KV
		return s.Namespaces[0].Disk.Allocated == 0
	}) {
		t.Errorf("slots are lost: %+v", s.Namespaces[0])
	}
	must(t, e.close())
	if !blackbox.Within(patience, func() bool { s = v.status(t).KV; return s.Namespaces[0].Memory.Allocated == 0 }) {
		t.Errorf("slots of memory are lost: %+v", s.Namespaces[0])
	}
}
