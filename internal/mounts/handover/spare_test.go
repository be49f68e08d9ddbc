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

// The control socket keeps the filesystem, and each spare has a copy of it. So spares end as soon as the serving daemon lets go of the socket. The next spare
// starts a second later, since most mounts end before.
func TestSparesLetGoAtOnce(t *testing.T) {
	k := keeperOf(t)
	first, err := k.start(k.program, true, k.now, -1)
	must(t, err)
	second, err := k.start(k.program, true, k.now, -1)
	must(t, err)
	k.spare.daemon, k.spare.stale = second, first
	ours, theirs, err := pair()
	must(t, err)
	l := &Life{kept: map[string]int{}, socket: theirs}
	l.LetGo("control")
	k.now.socket = ours
	k.hear(k.now)
	if k.spare.daemon != nil || k.spare.stale != nil {
		t.Errorf("there are %+v", k.spare)
	}
	for _, d := range []*daemon{first, second} {
		if unix.Kill(d.pid, 0) == nil {
			t.Errorf("process %d runs", d.pid)
		}
	}
	if time.Until(k.spare.due) < sparePause/2 {
		t.Errorf("another one starts in %v", time.Until(k.spare.due))
	}
	l.Drop("table") // starts another one at once
	k.hear(k.now)
	if time.Until(k.spare.due) > spareDelay {
		t.Errorf("after a change another one starts in %v", time.Until(k.spare.due))
	}
	k.now.socket = -1
	_, _ = unix.Close(ours), unix.Close(theirs) // nothing is in them
}

// A spare that does not know a change holds the mount until the one that replaces it is prepared.
func TestAStaleSpareStaysUntilAnotherIsPrepared(t *testing.T) {
	k := keeperOf(t)
	first, err := k.start(k.program, true, k.now, -1)
	must(t, err)
	k.spare.daemon = first
	k.renewSpare(0) // as each change does
	if k.spare.stale != first || k.spare.daemon != nil {
		t.Fatalf("after a change there are %+v", k.spare)
	}
	time.Sleep(time.Until(k.spare.due) + time.Millisecond)
	must(t, k.decide())
	second := k.spare.daemon
	if second == nil {
		t.Fatal("no other spare is started")
	}
	k.renewSpare(0) // a further change finds the second not prepared
	if k.spare.stale != first || second.pidfd < 0 && k.spare.daemon == second {
		t.Errorf("after a further change there are %+v", k.spare)
	}
	time.Sleep(time.Until(k.spare.due) + time.Millisecond)
	must(t, k.decide())
	ours, theirs, err := pair()
	must(t, err)
	must(t, send(theirs, say("PREPARED=1")))
	must(t, unix.Close(k.spare.daemon.socket))
	k.spare.daemon.socket = ours
	k.hear(k.spare.daemon)
	if k.spare.stale != nil {
		t.Error("the stale spare stays")
	}
	if unix.PidfdSendSignal(first.pidfd, 0, nil, 0) == nil {
		t.Error("its process runs")
	}
	must(t, unix.Close(theirs))
}
