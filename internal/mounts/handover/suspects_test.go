package handover

import (
	"os"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// again is the number under which the kernel sends a request again.
func again(number uint64) uint64 { return number | 1<<63 }

// died gives the table of the next life, where the daemon said words as it died.
func died(t *testing.T, s *Suspects, words string) *Suspects {
	t.Helper()
	_, err := s.File().WriteString(words)
	must(t, err)
	fd, err := unix.FcntlInt(s.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	next, _, err := AdoptSuspects(os.NewFile(uintptr(fd), "requests"))
	must(t, err)
	t.Cleanup(func() { _ = next.File().Close() })
	return next
}

func begins(t *testing.T, s *Suspects, unique uint64) Mark {
	t.Helper()
	m, ok := s.Begin(unique)
	if !ok {
		t.Fatalf("request %x is refused", unique)
	}
	return m
}

func newSuspects(t *testing.T) *Suspects {
	t.Helper()
	s, err := NewSuspects()
	must(t, err)
	t.Cleanup(func() { _ = s.File().Close() })
	return s
}

// TestOnlyCrashesCount: SIGKILL, and signals that ask what a daemon does, make no request a suspect, however often.
func TestOnlyCrashesCount(t *testing.T) {
	s := newSuspects(t)
	begins(t, s, 2)
	for _, words := range []string{"", "SIGQUIT: quit\n", "", "SIGABRT: abort\n", "", ""} {
		s = died(t, s, words)
		if n := s.left.Load(); n != 0 {
			t.Fatalf("after %q there are %d suspects", words, n)
		}
		begins(t, s, again(2))
	}
	s = died(t, died(t, s, "panic: oops\n"), "") // it waited for its turn at the second
	begins(t, s, again(2))
	if s = died(t, s, "fatal error: out of memory\n"); s.left.Load() != 1 {
		t.Fatal("it is no suspect")
	}
	if _, ok := s.Begin(again(2)); ok {
		t.Error("a request that has ended two daemons is not refused")
	}
	if n := s.left.Load(); n != 0 {
		t.Errorf("%d suspects are left", n)
	}
}

// TestSuspectsTakeTurns: of three that were being handled at a crash, the one that ends the next daemon is refused, and no other.
func TestSuspectsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuspects(t)
		for _, number := range []uint64{2, 4, 6} {
			begins(t, s, number)
		}
		s.End(begins(t, s, 8))
		s = died(t, s, "panic: oops\n")
		if n := s.left.Load(); n != 3 {
			t.Fatalf("there are %d suspects", n)
		}
		innocent, served := begins(t, s, again(2)), make(chan Mark)
		for _, number := range []uint64{4, 6} {
			go func() { served <- begins(t, s, again(number)) }() // ends with its turn
		}
		s.End(begins(t, s, 10)) // others need no turn
		synctest.Wait()
		select {
		case <-served:
			t.Fatal("two suspects are handled at once")
		default:
		}
		s.End(innocent)
		mark := <-served
		poison := mark.slot.request.Load()
		next := died(t, s, "panic: oops\n")
		if _, ok := next.Begin(again(poison)); ok {
			t.Error("the request that ended two daemons is not refused")
		}
		next.End(begins(t, next, again(10-poison))) // the third one
		if n := next.left.Load(); n != 0 {
			t.Errorf("%d suspects are left", n)
		}
		s.End(mark) // ends the goroutine that waits
		s.End(<-served)
	})
}

// TestTasksThatEndDaemons: work that has ended two daemons is refused each time, for its user alone, until an upgrade. The same work of two clients at once
// counts once, and takes turns.
func TestTasksThatEndDaemons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		does := func(s *Suspects, uid uint32, what string) Mark {
			t.Helper()
			m, ok := s.BeginTask(uid, "publish", []byte(what))
			if !ok {
				t.Fatalf("%s of user %d is refused", what, uid)
			}
			return m
		}
		s := newSuspects(t)
		s.End(does(s, 1, "done"))
		does(s, 1, "step")
		does(s, 1, "step")
		s = died(t, s, "panic: oops\n")
		if n := s.left.Load(); n != 1 {
			t.Fatalf("there are %d suspects", n)
		}
		s.End(does(s, 2, "step")) // of others
		first, second := does(s, 1, "step"), make(chan Mark)
		go func() { second <- does(s, 1, "step") }() // ends with its turn
		synctest.Wait()
		select {
		case <-second:
			t.Fatal("suspects are handled at once")
		default:
		}
		s.End(first)
		s.End(<-second)
		if n := s.left.Load(); n != 0 {
			t.Fatalf("%d suspects are left", n)
		}
		for range 2 {
			does(s, 1, "step")
			s = died(t, s, "panic: oops\n")
		}
		for range 3 {
			if _, ok := s.BeginTask(1, "publish", []byte("step")); ok {
				t.Error("work that has ended two daemons is not refused")
			}
			s = died(t, s, "")
		}
		s.End(does(s, 2, "step"))
		s.End(does(s, 1, "another"))
		s.Pardon()
		s.End(does(s, 1, "step"))
		for i := range s.slot {
			if s.slot[i].request.Load() != 0 {
				t.Error("a slot is left")
			}
		}
	})
}
