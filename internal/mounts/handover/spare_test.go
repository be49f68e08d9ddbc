package handover

import (
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// keeperOf makes a keeper of a daemon that serves, whose next daemons only sleep. It changes its thread's nice value.
func keeperOf(t *testing.T) *keeper {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	program, err := os.Open("/bin/sleep")
	must(t, err)
	high, err := unix.FcntlInt(program.Fd(), unix.F_DUPFD_CLOEXEC, 100) // a number that no child's own descriptors take
	must(t, err)
	device, err := NewMemory("device")
	must(t, err)
	k := &keeper{
		kind: ByKeeper, log: io.Discard, store: Copy{Device: dup(t, int(device.Fd()))}, listener: -1, news: -1,
		program: high, argv: []string{"sleep", "600"}, now: watched(os.Getpid(), -1, -1), spare: spare{wanted: true},
	}
	t.Cleanup(func() {
		k.drop(k.next)
		k.dropSpares()
		k.store.Close()
		_, _, _ = program.Close(), device.Close(), unix.Close(high) // opened for reading, and memory
	})
	return k
}

// A daemon dies just after its new keeper has heard of it, before a spare is due. The next daemon has a spare before it serves: it may be killed next, and the
// keeper before it.
func TestTheNextDaemonHasASpareAtOnce(t *testing.T) {
	for name, pause := range map[string]time.Duration{"a spare is due soon": 0, "a spare has died": time.Hour} {
		t.Run(name, func(t *testing.T) {
			k := keeperOf(t)
			if k.served(k.now); pause > 0 {
				k.renewSpare(pause)
				k.spare.died = 1
			}
			k.died, k.how = now(), "crash"
			for range 2 {
				must(t, k.decide())
			}
			if k.next == nil {
				t.Fatal("no daemon is started")
			}
			if has := k.spare.daemon != nil; has != (pause == 0) {
				t.Errorf("the next daemon has a spare: %v", has)
			}
		})
	}
}
