package handover

import (
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// followed is a life whose keeper is in this process, and may be followed.
func followed(t *testing.T) *Life {
	t.Helper()
	ours, theirs, err := pair()
	must(t, err)
	k := &keeper{kind: ByKeeper, store: Copy{}, log: io.Discard, listener: listen(), news: -1, now: &daemon{pidfd: -1, sentinel: -1, asked: -1, socket: ours}}
	if k.listener < 0 {
		t.Skip("no keeper can be asked here")
	}
	l := &Life{kind: ByKeeper, socket: theirs, kept: map[string]int{}, log: slog.New(slog.DiscardHandler), left: make(chan struct{})}
	l.settling = settling{copied: true, news: make(chan struct{})}
	ended := make(chan struct{})
	go func() { // ends with the life
		defer close(ended)
		if err := k.run(); err != nil {
			t.Error(err)
		}
		_ = unix.Close(ours) // as the end of a process
		_ = unix.Close(k.listener)
	}()
	go l.watch(t.Context(), theirs) // ends with the keeper
	t.Cleanup(func() {
		l.End()
		<-ended
	})
	return l
}

// keepMore has the holder keep a file more.
func (l *Life) keepMore(t *testing.T, name string) {
	t.Helper()
	f, err := NewMemory(name)
	must(t, err)
	must(t, l.Keep(name, f))
	must(t, f.Close())
}

// TestSettleWaitsForACopy: a change goes on once a follower has a copy with all that was kept before, and no sooner.
func TestSettleWaitsForACopy(t *testing.T) {
	l := followed(t)
	l.keepMore(t, Device)
	must(t, l.tell(say("READY=1")))
	l.settle(t.Context(), 20*time.Millisecond) // nobody follows
	l.settle(t.Context(), time.Hour)           // so the next does not wait
	if missed := l.Missed(); missed != 2 {
		t.Errorf("%d changes went on without a copy, want 2", missed)
	}
	f, err := Follow(os.Getpid())
	for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); f, err = Follow(os.Getpid()) {
		time.Sleep(time.Millisecond) // the keeper is being told of the mount
	}
	must(t, err)
	defer f.Close()
	unsettled := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.late || l.settled < l.asked
	}
	for unsettled() { // until the keeper has heard both questions, and this answer
		c, settled, err := f.Copy()
		must(t, err)
		if c.Close(); settled != nil {
			settled()
		}
		time.Sleep(time.Millisecond)
	}
	raw, err := f.conn.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { // words about both
		for err == nil {
			_, err = receive(int(fd))
		}
	}))
	for i, name := range []string{"one", "two"} {
		l.keepMore(t, name)
		over := make(chan struct{})
		go func() {
			l.settle(t.Context(), time.Hour)
			close(over)
		}()
		must(t, f.Changed(t.Context(), time.Hour)) // who waits for a copy ends the calm
		c, settled, err := f.Copy()
		must(t, err)
		if c.Close(); len(c) != 2+i || settled == nil {
			t.Fatalf("the copy is %v", c)
		}
		select {
		case <-over:
			t.Error("the change went on before its copy was where it shall be")
		default:
		}
		settled()
		<-over
	}
	if missed := l.Missed(); missed != 2 {
		t.Errorf("%d changes went on without a copy, want those 2", missed)
	}
}

// TestNobodySettles: where nobody copies, or nobody holds the mount, nothing waits.
func TestNobodySettles(t *testing.T) {
	for name, change := range map[string]func(l *Life){
		"nobody copies": func(l *Life) { l.copied = false },
		"nobody holds":  func(l *Life) { l.why = "there is no kernel for it" },
		"it is over":    func(l *Life) { l.over = true },
		"systemd holds": func(l *Life) { l.kind = BySystemd },
	} {
		l := &Life{kind: ByKeeper, socket: -1, settling: settling{copied: true, news: make(chan struct{})}}
		change(l)
		l.settle(t.Context(), time.Hour)
		if l.Missed() != 0 {
			t.Errorf("%s: %d changes wait", name, l.Missed())
		}
	}
	var none *Life
	none.Settle(t.Context())
	t.Setenv(CopiedEnv, "1")
	if l := New(); !l.copied {
		t.Error("the environment is not heard")
	}
}

// TestAnswersOfAnEarlierLife are none for this one.
func TestAnswersOfAnEarlierLife(t *testing.T) {
	l := &Life{settling: settling{asked: 7, settled: 3, news: make(chan struct{})}}
	for _, text := range []string{"8", "3", "", "x", "-1"} {
		if l.hearSettled(text); l.settled != 3 {
			t.Fatalf("%q settles %d", text, l.settled)
		}
	}
	if l.hearSettled("5"); l.settled != 5 {
		t.Errorf("settled is %d", l.settled)
	}
}
