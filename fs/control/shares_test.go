package control

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/hbmfs/hbmfs/control"
)

func TestTurnsOfAUserAreHalfOfAll(t *testing.T) {
	s := newTurns(8)
	s.me = 0
	var done []func()
	take := func(uid uint32, want bool) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		if !want {
			cancel()
		}
		defer cancel()
		d, err := s.wait(ctx, uid)
		if err == nil {
			done = append(done, d)
		}
		if want != (err == nil) || (!want && !errors.Is(err, context.Canceled)) {
			t.Errorf("user %d: %v", uid, err)
		}
	}
	for range 4 {
		take(greedy, true)
	}
	take(greedy, false)
	for range 4 {
		take(modest, true)
	}
	take(modest+1, false) // two users of a kind have all
	for range 4 {
		take(0, true) // but of the daemon's own user
	}
	take(0, false)
	for _, d := range done {
		d()
	}
	if len(s.of) != 0 || len(s.all) != 0 {
		t.Errorf("%d users and %d turns are left", len(s.of), len(s.all))
	}
}

// TestNamesOfAUserAreItsOwn has one user take all names that it can, and use up the reasons of a name that is another's.
func TestNamesOfAUserAreItsOwn(t *testing.T) {
	c := New(Options{})
	for i := range 10 * usageNames {
		u := c.join("name "+strconv.Itoa(i), readerID{greedy, 0})
		c.report(u, []control.PathReport{{Path: control.PathHost, Bytes: 1, Reads: 1}})
	}
	theirs := c.join("train", readerID{modest, 0})
	for i := range 10 * usageChoice {
		c.report(c.join("train", readerID{modest + 1, 0}), []control.PathReport{{Path: control.PathHost, Reason: strconv.Itoa(i), Bytes: 1, Reads: 1}})
	}
	c.report(theirs, []control.PathReport{{Path: control.PathDirect, Reason: "its own", Bytes: 7, Reads: 1}})
	s := c.byName()["train"]
	if s == nil || s.connections != 1+10*usageChoice || s.moved[pathReason{control.PathDirect, "its own"}].bytes != 7 {
		t.Errorf("the modest user's readers are %+v", s)
	}
	if all := c.byName()[others]; all == nil || len(c.byName()) > usageNames+1 {
		t.Errorf("%d names, those that came too late: %+v", len(c.byName()), all)
	}
}

// TestConnectionsOfAUserLeaveLeasesForEachOther has some connections lease all they get, and others come later.
func TestConnectionsOfAUserLeaveLeasesForEachOther(t *testing.T) {
	for _, uid := range []uint32{greedy, uint32(os.Geteuid())} {
		c := New(Options{})
		fill := func() (n int) {
			s := &session{server: c, peer: &peer{uid: uid}}
			for s.roomFor(1, 64) == nil {
				s.given += 64
				c.leases.Book(uid, 64)
			}
			return s.given
		}
		for i, want := range []int{leasesPerSession, leasesPerSession, leasesOfMany} {
			if got := fill(); got != want {
				t.Errorf("user %d: connection %d leases %d objects, want %d", uid, i, got, want)
			}
		}
		late := 1
		for fill() == leasesOfMany {
			late++
		}
		if late < 60 || c.leases.Of(uid) != c.leases.Each() {
			t.Errorf("user %d: %d connections that came late lease %d objects each, and all %d of %d", uid, late, leasesOfMany, c.leases.Of(uid), c.leases.Each())
		}
	}
}

// TestDescriptorsAreEnough sums up what may be open at a time for each limit of open files.
func TestDescriptorsAreEnough(t *testing.T) {
	for files := uint64(1024); files < 1<<20; files *= 2 {
		sessions, each, answers := limitsFor(files)
		most := min(files/2, 4096) + uint64(sessions+each) + uint64(answers+answers/2)*control.MaxObjects
		if most > files*9/10 {
			t.Errorf("%d files may be open, and %d connections with %d answers make that %d", files, sessions, answers, most)
		}
	}
	if sessions, each, answers := limitsFor(8192); sessions != sessionsInAll || each != sessionsPerUID || answers != answersAtOnce {
		t.Errorf("with 8,192 files there are %d connections, %d of a user, %d answers", sessions, each, answers)
	}
}
