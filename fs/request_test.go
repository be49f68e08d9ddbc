package fs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func headerOf(thread int) *fuse.InHeader {
	return &fuse.InHeader{Caller: fuse.Caller{Pid: uint32(thread)}}
}

// interrupted makes the request of a thread that the kernel has interrupted.
func interrupted(t *testing.T, thread int) *request {
	t.Helper()
	cancel := make(chan struct{})
	close(cancel)
	r := newRequest(cancel, headerOf(thread))
	t.Cleanup(r.end)
	return r
}

// A request ends with the kernel's word where its caller is gone, cannot be seen, or waits for something else.
func TestInterruptedRequestsOfNobodyEnd(t *testing.T) {
	sleeper := exec.CommandContext(t.Context(), "sleep", "100")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Wait() }() // killed, which is its error
	defer func() { _ = sleeper.Process.Kill() }()
	for end := time.Now().Add(time.Minute); stateOf(t, sleeper.Process.Pid) != 'S'; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not sleep")
		}
	}
	for what, thread := range map[string]int{"in another PID namespace": 0, "gone": math.MaxInt32, "not in a request": sleeper.Process.Pid} {
		r := interrupted(t, thread)
		select {
		case <-r.Done():
		case <-time.After(time.Minute):
			t.Errorf("%s: the request does not end", what)
		}
		if !errors.Is(r.Err(), context.Canceled) {
			t.Errorf("%s: the request ends with %v", what, r.Err())
		}
	}
}

func stateOf(t *testing.T, pid int) byte {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return parseCaller(status).state
}

// A request goes on while its caller has no fatal signal pending, and nothing that is made of it is left behind.
func TestInterruptedRequestsGoOn(t *testing.T) {
	caller := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done") // always in state R
	if err := caller.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = caller.Wait() }() // killed, which is its error
	defer func() { _ = caller.Process.Kill() }()
	before := runtime.NumGoroutine()
	r := interrupted(t, caller.Process.Pid)
	var child context.Context
	for range 100 {
		made, cancel := context.WithCancel(r)
		defer cancel()
		child = made
	}
	for until := time.Now().Add(3 * lookAgain); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if r.Err() != nil || child.Err() != nil {
			t.Fatalf("the request ended: %v, %v", r.Err(), child.Err())
		}
	}
	if n := runtime.NumGoroutine() - before; n > 10 {
		t.Errorf("%d goroutines watch one request", n)
	}
	r.end()
	select {
	case <-child.Done():
	case <-time.After(time.Minute):
		t.Error("what was made of the request outlives it")
	}
	for until := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; {
		if time.Now().After(until) {
			t.Fatalf("%d goroutines are left", runtime.NumGoroutine()-before)
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case <-interruptedAfterEnd(t):
	case <-time.After(time.Minute):
		t.Error("an answered request waits")
	}
}

func interruptedAfterEnd(t *testing.T) <-chan struct{} {
	t.Helper()
	r := newRequest(make(chan struct{}), headerOf(unix.Gettid()))
	r.end()
	return r.Done()
}

func TestFatalSignals(t *testing.T) {
	bit := func(signals ...syscall.Signal) (set uint64) {
		for _, s := range signals {
			set |= signalBit(s)
		}
		return set
	}
	status := func(traced int, thread, process, blocked, ignored, caught uint64) string {
		return fmt.Sprintf("Name:\tx\nState:\tD (disk sleep)\nTracerPid:\t%d\nThreads:\t1\nSigQ:\t0/1\nSigPnd:\t%016x\nShdPnd:\t%016x\nSigBlk:\t%016x\nSigIgn:\t%016x\nSigCgt:\t%016x\nCapInh:\t0\n",
			traced, thread, process, blocked, ignored, caught)
	}
	const term, alarm, quit, realTime = unix.SIGTERM, unix.SIGALRM, unix.SIGQUIT, syscall.Signal(40)
	for what, c := range map[string]struct {
		status string
		dying  bool
	}{
		"nothing pending":                    {status(0, 0, 0, 0, 0, 0), false},
		"a timer with a handler":             {status(0, 0, bit(alarm), 0, 0, bit(alarm)), false},
		"a timer without":                    {status(0, 0, bit(alarm), 0, 0, 0), true},
		"killed":                             {status(0, bit(unix.SIGKILL), 0, math.MaxUint64, 0, 0), true},
		"killed, the process":                {status(0, 0, bit(unix.SIGKILL), 0, 0, 0), true},
		"killed and traced":                  {status(1, bit(unix.SIGKILL), 0, 0, 0, 0), true},
		"to be terminated, after a handler":  {status(0, bit(alarm), bit(term), 0, 0, bit(alarm)), true},
		"to be terminated, but blocked":      {status(0, 0, bit(term), bit(term), 0, 0), false},
		"to be terminated, but ignored":      {status(0, 0, bit(term), 0, bit(term), 0), false},
		"to be terminated, and traced":       {status(7, 0, bit(term), 0, 0, 0), false},
		"to dump core":                       {status(0, 0, bit(quit), 0, 0, 0), true},
		"a real-time signal without handler": {status(0, bit(realTime), 0, 0, 0, 0), true},
		"stopped":                            {status(0, bit(unix.SIGSTOP), bit(unix.SIGTSTP, unix.SIGCONT), 0, 0, 0), false},
		"a child, a window, urgent data":     {status(0, 0, bit(unix.SIGCHLD, unix.SIGWINCH, unix.SIGURG), 0, 0, 0), false},
		"no line of it":                      {"", false},
	} {
		caller := parseCaller([]byte(c.status))
		if caller.dying() != c.dying || (c.status != "" && caller.state != 'D') {
			t.Errorf("%s: dying is %v in state %c", what, !c.dying, caller.state)
		}
	}
}

// BenchmarkRequest is what a request pays for its context: where it is answered at once, and where something waits.
// The baseline is go-fuse's own context, which ends with any signal.
func BenchmarkRequest(b *testing.B) {
	cancel := make(chan struct{})
	header := headerOf(1)
	var ctx context.Context
	b.Run("baseline", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			ctx = &fuse.Context{Cancel: cancel}
			if ctx.Err() != nil {
				b.Fatal("it ended")
			}
		}
	})
	b.Run("answered at once", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			r := newRequest(cancel, header)
			if ctx = r; ctx.Err() != nil {
				b.Fatal("it ended")
			}
			r.end()
		}
	})
	b.Run("something waits", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			r := newRequest(cancel, header)
			_ = r.Done()
			r.end()
		}
	})
}
