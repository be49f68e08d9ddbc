package handover

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A spare is a daemon that is started while another serves. It reads the state and waits for its turn, so that after a crash nobody waits
// for a program to start. It costs memory, which docs/guide/handover.md names.

// SpareEnv tells a daemon that it is the spare.
const SpareEnv = "HBMFS_SPARE"

// SpareComm is the name of a spare's process in /proc until it serves, which tells it from the daemon that serves.
const SpareComm = "hbmfs-spare"

const (
	spareDelay = 20 * time.Millisecond // after a daemon began to serve: readers that waited come first
	spareStart = 10 * time.Second      // one that takes longer to read the state is not waited for when it is needed
	spareTurn  = 3 * time.Second       // one that does not serve then is stuck, and another daemon is started
	sparePause = time.Second           // after the first spare that died; twice as long after each further one
	sparesMax  = 8                     // that may die in a row
	spareNice  = 10                    // more than the daemon's nice value, while the spare waits
)

// spare is a keeper's record of the daemon that waits for its turn.
type spare struct {
	daemon *daemon   // nil for none
	after  *daemon   // waits for the turn after that one's; nil for none, and while nobody dies
	stale  *daemon   // does not know all changes: it holds the mount until the one that replaces it is prepared; nil for none
	wanted bool      // by the daemon that serves
	due    time.Time // when one is to be started; zero for never
	died   int       // in a row
}

// timeout shortens a time to wait, in milliseconds, to when a spare is due.
func (s *spare) timeout(most int) int {
	if s.daemon != nil || s.due.IsZero() {
		return most
	}
	left := int(max(0, time.Until(s.due))/time.Millisecond) + 1
	if most < 0 {
		return left
	}
	return min(most, left)
}

// renewSpare has a spare started after a time. An existing spare does not know the changes, and goes once another one is prepared.
func (k *keeper) renewSpare(after time.Duration) {
	s := &k.spare
	if s.daemon != nil && s.daemon.pidfd >= 0 && (s.stale == nil || s.stale.pidfd < 0) {
		s.daemon, s.stale = s.stale, s.daemon
	}
	k.drop(s.daemon)
	k.drop(s.after)
	s.daemon, s.after = nil, nil
	k.spare.due = time.Now().Add(max(after, spareDelay))
	if !k.spare.wanted || k.before != nil {
		k.spare.due = time.Time{}
	}
}

// letGo ends the spares, where the daemon that serves says so, and gives the time until the next one: most likely the mount ends before.
func (k *keeper) letGo(m *message) (pause time.Duration) {
	if m.fields["LETGO"] == "" {
		return 0
	}
	k.dropSpares()
	k.tellSpare()
	return sparePause
}

func (k *keeper) dropSpares() {
	k.drop(k.spare.daemon)
	k.drop(k.spare.after)
	k.drop(k.spare.stale)
	k.spare.daemon, k.spare.after, k.spare.stale = nil, nil, nil
}

// startAfter starts the next spare as soon as the daemon that serves dies. The one that takes its place, and this keeper, may be killed before that spare would
// be due. It holds the mount from its first moment, and rests a while, since readers come first.
func (k *keeper) startAfter(next *daemon) {
	s := &k.spare
	if k.ended || !s.wanted || s.after != nil || k.before != nil || next.pidfd < 0 {
		return
	}
	var ends [2]int
	err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK)
	if err == nil {
		var d *daemon
		_ = send(next.socket, say("TELLS=1").with(ends[1])) // where it has died, that is seen
		if d, err = k.start(k.program, true, next, ends[0]); err == nil {
			d.early = true
			if next == k.next {
				s.daemon = d
			} else {
				s.after = d
			}
		}
		_ = unix.Close(ends[0]) // each has its own
		_ = unix.Close(ends[1])
	}
	if err != nil {
		k.say("no daemon waits for its turn: %v", err)
	}
}

// tellSpare tells the daemon that serves which process waits for its turn, for its status.
func (k *keeper) tellSpare() {
	pid := 0
	if d := k.spare.daemon; d != nil && d.prepared && !d.early {
		pid = d.pid
	}
	if k.now.socket >= 0 {
		_ = send(k.now.socket, say("SPARE="+strconv.Itoa(pid))) // a daemon that has gone needs no telling
	}
}

// decideSpare starts the spare, and has it take its turn.
func (k *keeper) decideSpare() (err error) {
	s := &k.spare
	switch d := s.daemon; {
	case d != nil && d.pidfd < 0: // killed, or it has failed
		if time.Since(d.began) > time.Minute {
			s.died = 0
		}
		if s.died++; s.died >= sparesMax {
			s.wanted, err = false, errors.New("eight have died in a row")
		}
		if s.after != nil { // the one that serves is dying
			k.drop(d)
			s.daemon, s.after = s.after, nil
			return err
		}
		k.renewSpare(sparePause << s.died)
		k.tellSpare()
	case d != nil && k.died != 0 && k.next == nil && k.tries < triesMax && k.short <= shortLivesMax:
		s.daemon, s.after, s.due = s.after, nil, time.Time{}
		if !d.prepared && time.Since(d.began) > spareStart {
			k.drop(d)
			return nil
		}
		_ = unix.PidfdSendSignal(d.pidfd, unix.SIGCONT, nil, 0) // if somebody has stopped it. To end it would be a risk: this keeper may be killed next
		hurry(d.pid)
		k.next, d.turn = d, time.Now()
		k.tries++
	case d == nil && k.died == 0 && k.next == nil && !s.due.IsZero() && time.Now().After(s.due):
		s.due = time.Time{}
		if s.daemon, err = k.start(k.program, true, k.now, k.news); err != nil {
			k.renewSpare(sparePause << s.died)
			s.died = min(s.died+1, sparesMax)
			return err
		}
	}
	return err
}

// DaemonComm is the name of a daemon that serves in /proc, and so in ps, top and the kernel's messages about processes that it ends.
// Daemons are started by a link or a descriptor of the program, from which the kernel would take the name.
const DaemonComm = "hbmfs"

// Rename gives this process its name in /proc.
func Rename(comm string) { _ = os.WriteFile("/proc/self/comm", []byte(comm), 0) } // it is for people and for hbmfs umount
