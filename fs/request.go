package fs

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// request is the context of one request of the kernel. It ends when the caller no longer wants the answer: a signal is
// about to end the caller, or the kernel gave the request up.
//
// The kernel tells of a caller's first signal only. Most signals have a handler, and a file must not answer those with
// EINTR: a profiler's timer would end every read. So after that a goroutine looks every lookAgain whether a fatal signal is
// pending. It runs only where something waits (Done): a request that is answered from memory or a local file costs no
// goroutine.
type request struct {
	cancel <-chan struct{} // closed by go-fuse when the kernel interrupts the request; of the next request after end
	thread uint32          // of the caller, 0 where it is in no PID namespace that this process sees

	mu     sync.Mutex // guards the fields below
	ended  bool
	waited context.Context // nil until somebody waits
	stop   context.CancelFunc
}

// lookAgain is the time between two looks at an interrupted caller. A killed process is gone soon after it.
const lookAgain = 100 * time.Millisecond

// newRequest makes the context of a request. The caller calls end before it answers.
func newRequest(cancel <-chan struct{}, header *fuse.InHeader) *request {
	return &request{cancel: cancel, thread: header.Pid}
}

// end ends the context, and the goroutine that watches the caller.
func (r *request) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.stop != nil {
		r.stop()
	}
}

// waiting returns the context that ends when the caller does not want the answer any more.
func (r *request) waiting() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waited == nil {
		r.waited, r.stop = context.WithCancel(context.Background())
		if r.ended {
			r.stop()
		} else {
			go r.watch(r.waited, r.stop) // ended by end
		}
	}
	return r.waited
}

// watch calls give when the caller of an interrupted request does not want the answer any more.
func (r *request) watch(ctx context.Context, give context.CancelFunc) {
	select {
	case <-r.cancel:
	case <-ctx.Done():
		return
	}
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for r.thread != 0 && wantsAnswer(r.thread) {
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
	give()
}

// Done implements [context.Context].
func (r *request) Done() <-chan struct{} { return r.waiting().Done() }

// Err implements [context.Context]. It looks at nothing until the kernel has interrupted the request.
func (r *request) Err() error {
	select {
	case <-r.cancel:
		return r.waiting().Err()
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waited == nil {
		return nil
	}
	return r.waited.Err()
}

// Value implements [context.Context]. Package context looks for a parent's cancel function here after Done: with it,
// contexts made of this one need no goroutine of their own.
func (r *request) Value(key any) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waited == nil {
		return nil
	}
	return r.waited.Value(key)
}

// Deadline implements [context.Context]: there is none.
func (r *request) Deadline() (time.Time, bool) { return time.Time{}, false }

// wantsAnswer reports whether a thread that was interrupted still waits for the answer, and no signal is about to end
// it. Until the answer comes the kernel keeps such a thread in state D, so that its number is of no other thread.
func wantsAnswer(thread uint32) bool {
	status, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(thread), 10) + "/status")
	if err != nil { // gone, or not to be seen
		return false
	}
	c := parseCaller(status)
	return (c.state == 'D' || c.state == 'R') && !c.dying() // R: on its way to D
}

// caller is a thread as /proc shows it: its state, and sets of signals, bit n-1 for signal n.
type caller struct {
	state                             byte
	traced                            bool
	pending, blocked, ignored, caught uint64
}

// parseCaller reads /proc/TID/status (proc_pid_status(5)).
func parseCaller(status []byte) (c caller) {
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(":\t"))
		signals := func() uint64 {
			n, _ := strconv.ParseUint(string(value), 16, 64) // the kernel writes 16 digits
			return n
		}
		switch string(name) {
		case "State":
			if len(value) > 0 {
				c.state = value[0]
			}
		case "TracerPid":
			c.traced = string(value) != "0"
		case "SigPnd", "ShdPnd":
			c.pending |= signals()
		case "SigBlk":
			c.blocked = signals()
		case "SigIgn":
			c.ignored = signals()
		case "SigCgt":
			c.caught = signals()
		}
	}
	return c
}

// dying reports whether a pending signal will end the thread. For most fatal signals the kernel makes SIGKILL pending for
// each thread of the process. It does not where the thread had another signal already, and not for those that dump core.
// The tracer of a traced process decides on its signals, except on SIGKILL.
func (c caller) dying() bool {
	if c.pending&signalBit(unix.SIGKILL) != 0 {
		return true
	}
	fatal := c.pending &^ (c.blocked | c.ignored | c.caught)
	for _, s := range []syscall.Signal{ // which by default are ignored, or stop or continue the process: signal(7)
		unix.SIGCHLD, unix.SIGCONT, unix.SIGURG, unix.SIGWINCH, unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU,
	} {
		fatal &^= signalBit(s)
	}
	return fatal != 0 && !c.traced
}

func signalBit(s syscall.Signal) uint64 { return 1 << (s - 1) }
