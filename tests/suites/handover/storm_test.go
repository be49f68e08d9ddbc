package handover_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// storm kills the processes of a mount, again and again, and fails the test where the mount is lost.
type storm struct {
	*mounted
	random *rand.Rand
	round  int
	count  map[string]int // of what was killed, in which time
}

// report says how often what was killed.
func (s *storm) report(t *testing.T) {
	t.Helper()
	for _, kills := range slices.Sorted(maps.Keys(s.count)) {
		t.Logf("%4d times %s", s.count[kills], kills)
	}
}

// victim is a process to kill, so long after the one before.
type victim struct {
	what  string
	after time.Duration
}

// run kills once a daemon waits for its turn, and asks for a name that nobody has asked for: the kernel answers for others also when the mount is lost.
func (s *storm) run(t *testing.T, victims ...victim) {
	t.Helper()
	s.settled(t)
	s.strike(t, victims...)
}

// strike is run, whether or not a daemon waits for its turn.
func (s *storm) strike(t *testing.T, victims ...victim) {
	t.Helper()
	s.round++
	now := s.Status(t)
	var killed []int
	what, span := "", time.Duration(0)
	for _, v := range victims {
		what, span = what+" "+v.what, max(span, v.after)
		time.Sleep(v.after)
		pid := now.PID
		if v.what == "keeper" {
			pid = now.Handover.PID
			if len(killed) > 0 && slices.Contains(killed, pid) { // the next one
				blackbox.Within(5*time.Second, func() bool {
					left := slices.DeleteFunc(s.keepersOf(t), func(pid int) bool { return slices.Contains(killed, pid) })
					if len(left) > 0 {
						pid = left[0]
					}
					return len(left) > 0 || blackbox.Ended(now.PID)
				})
			}
		}
		if pid != 0 && !slices.Contains(killed, pid) { // 0: the status names no keeper
			must(t, syscall.Kill(pid, syscall.SIGKILL))
			killed = append(killed, pid)
		}
	}
	answer := make(chan error, 1)
	go func() { // ends within the test, or fails it
		_, err := os.Stat(s.Path(fmt.Sprintf("absent-%d", s.round)))
		answer <- err
	}()
	select {
	case err := <-answer:
		if !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("round %d, %v: %v\n%s", s.round, victims, err, s.LogText(t))
		}
	case <-time.After(patience):
		t.Fatalf("round %d, %v: a reader hangs\n%s", s.round, victims, s.LogText(t))
	}
	s.PID = s.Status(t).PID
	within := "2 ms"
	if span > 2*time.Millisecond {
		within = "2 s"
	}
	if s.count == nil {
		s.count = map[string]int{}
	}
	s.count[fmt.Sprintf("%s, each after 0 to %s", what[1:], within)]++
}

// settled waits until the daemon has one keeper, and that one a spare.
func (s *storm) settled(t *testing.T) {
	t.Helper()
	if !blackbox.Within(patience, func() bool {
		now, keepers := s.Status(t), s.keepersOf(t)
		return now.Handover.Holder == "keeper" && now.Handover.Next != 0 && !blackbox.Ended(now.PID) && !blackbox.Ended(now.Handover.Next) &&
			len(keepers) == 1 && keepers[0] == now.Handover.PID
	}) {
		t.Fatalf("round %d: there is %+v, and the keepers %v\n%s", s.round, s.Status(t), s.keepersOf(t), s.LogText(t))
	}
}

// upTo draws a time.
func (s *storm) upTo(most time.Duration) time.Duration {
	return time.Duration(s.random.Int64N(int64(most)))
}

// orders are those in which processes are killed.
var orders = [][]string{{"keeper", "daemon"}, {"daemon", "keeper"}, {"keeper", "keeper", "daemon"}, {"keeper", "daemon", "keeper"}, {"daemon", "keeper", "keeper"}}

// Keeper and daemon are killed at once or one just after the other, as the out-of-memory killer does to a control group, and so is the keeper that
// follows: the daemon that waited for its turn goes on.
func TestKeepersAndDaemonAreKilled(t *testing.T) {
	m, _, stop := mountOfTwo(t)
	s := &storm{mounted: m, random: rand.New(rand.NewPCG(blackbox.Seed(t), 10))}
	rounds := setting(t, "HBMFS_HANDOVERS", 10)
	for i := range rounds {
		most := 2 * time.Millisecond
		if i%4 == 3 {
			most = 2 * time.Second
		}
		var victims []victim
		for _, what := range orders[i%len(orders)] {
			victims = append(victims, victim{what, s.upTo(most)})
		}
		if i%7 == 0 {
			for j := range victims {
				victims[j].after = 0
			}
		}
		s.run(t, victims...)
	}
	s.report(t)
	for _, err := range stop().wrong {
		t.Error(err)
	}
}

// The daemon that has just answered, and its keeper, are killed in turn before another daemon has read the state: some process holds the mount from its first
// moment. Pairs and triples follow each other after 0 to 2 ms, or 0 to 2 s.
func TestTheNextOnesAreKilledAtOnce(t *testing.T) {
	m, _, stop := mountOfTwo(t)
	s := &storm{mounted: m, random: rand.New(rand.NewPCG(blackbox.Seed(t), 14))}
	orders := append([][]string{{"daemon"}}, orders...)
	for i := range setting(t, "HBMFS_HANDOVERS", 12) {
		s.settled(t)
		for strike := range 3 {
			most := 2 * time.Millisecond
			if i%4 == 3 && strike > 0 {
				most = 2 * time.Second
			}
			var victims []victim
			for _, what := range orders[(i+strike)%len(orders)] {
				victims = append(victims, victim{what, s.upTo(2 * time.Millisecond)})
			}
			if strike > 0 {
				victims[0].after = s.upTo(most)
			}
			if i%3 == 0 {
				for j := range victims {
					victims[j].after = 0
				}
			}
			s.strike(t, victims...)
		}
	}
	s.report(t)
	for _, err := range stop().wrong {
		t.Error(err)
	}
}

// The same with a spare that is stopped: it is all that is left, and the end of its keeper has it go on.
func TestStoppedSpareIsAllThatIsLeft(t *testing.T) {
	m, _, stop := mountOfTwo(t)
	s := &storm{mounted: m, random: rand.New(rand.NewPCG(blackbox.Seed(t), 12))}
	for i := range setting(t, "HBMFS_HANDOVERS", 4) {
		s.settled(t)
		must(t, blackbox.Stop(s.Status(t).Handover.Next))
		victims := []victim{{"keeper", 0}, {"daemon", s.upTo(2 * time.Millisecond)}}
		if i%2 > 0 {
			victims[0].what, victims[1].what = victims[1].what, victims[0].what
		}
		s.run(t, victims...)
	}
	s.report(t)
	for _, err := range stop().wrong {
		t.Error(err)
	}
}
