package handover

import (
	"context"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A [Copy] is made a moment after the keeper was told of a change. Where a daemon and its keeper can end together, descriptors that were kept
// in that moment end with them. So the daemon asks after its messages, and answers its client only once copies have all of them:
//
//	daemon → keeper            SETTLE=n
//	keeper → follower          CHANGED=1 SETTLE=n
//	keeper → who copies        HELD=1 SETTLE=n      the copy has all that was told before n
//	follower → keeper → daemon SETTLED=n            the copy is where it shall be
//
// n is CLOCK_MONOTONIC, which goes on from life to life. Keepers and followers of older programs do not know these words, and give no answer.

// CopiedEnv says, in a daemon's environment, that another process copies its keeper's descriptors.
const CopiedEnv = "HBMFS_COPIED"

// settleTime bounds the wait for copies: a request of a client waits meanwhile.
const settleTime = 2 * time.Second

// settling is a life's knowledge of copies. Its fields are guarded by the life's lock.
type settling struct {
	copied  bool          // some process copies the keeper's descriptors
	asked   int64         // the last question, 0 for none
	settled int64         // the last answer
	news    chan struct{} // closed, and made anew, with each answer
	late    bool          // the last wait had no answer in time, and there was none since: nobody waits
	missed  int64         // changes that went on without an answer
}

func newSettling() settling {
	return settling{copied: os.Getenv(CopiedEnv) != "", news: make(chan struct{})}
}

// Settle waits until all copies of the keeper's descriptors match the keeper's by now. It does so where the environment says that there are
// copies ([CopiedEnv]), and for two seconds at most. When that time is over, later changes do not wait until copies are made again.
func (l *Life) Settle(ctx context.Context) { l.settle(ctx, settleTime) }

func (l *Life) settle(ctx context.Context, most time.Duration) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.copied || l.over || l.kind != ByKeeper || l.why != "" {
		return
	}
	l.asked = max(l.asked+1, now())
	number := l.asked
	l.ask()
	end := time.NewTimer(most)
	defer end.Stop()
	for l.settled < number && !l.late && !l.over {
		news := l.news
		l.mu.Unlock()
		var overdue bool
		select {
		case <-news:
		case <-end.C:
			overdue = true
		case <-ctx.Done():
		}
		l.mu.Lock()
		if ctx.Err() != nil {
			return
		}
		if overdue && l.settled < number && !l.late {
			l.late = true
			l.say("what is begun now may end with the container of this daemon: there is no copy of it outside in time", "patience", most)
		}
	}
	if l.settled < number {
		l.missed++
	}
}

// ask asks the keeper. One that comes later is asked again: see introduce. The caller has the lock.
func (l *Life) ask() {
	if l.asked > l.settled && l.socket >= 0 {
		_ = send(l.socket, say("SETTLE="+strconv.FormatInt(l.asked, 10))) // watch sees the end of a keeper
	}
}

// hearSettled takes an answer of the keeper.
func (l *Life) hearSettled(text string) {
	number, err := strconv.ParseInt(text, 10, 64)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || number <= l.settled || number > l.asked { // or the daemon before has asked
		return
	}
	l.settled = number
	if l.late {
		l.late = false
		l.say("there are copies outside of the container again")
	}
	close(l.news)
	l.news = make(chan struct{})
}

// say tells people, once the daemon serves. The caller has the lock.
func (l *Life) say(text string, fields ...any) {
	if l.log != nil {
		l.log.Warn(text, fields...)
	}
}

// Missed counts changes for which [Life.Settle] had no answer in time.
func (l *Life) Missed() int64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.missed
}

// settle asks followers for the daemon that serves.
func (k *keeper) settle(d *daemon, number string) {
	if d != k.now {
		return
	}
	k.asked = number
	k.changed("SETTLE=" + number)
}

// hearFollower takes a follower's answer. It forgets one that has gone, or reports a mistaken message.
func (k *keeper) hearFollower(conn int) {
	m, err := receive(conn)
	m.close()
	number := m.fields["SETTLED"]
	if err != nil || number == "" {
		k.unfollow(conn)
		return
	}
	if k.now.socket >= 0 {
		_ = send(k.now.socket, say("SETTLED="+number)) // a daemon that has gone needs no telling
	}
}

// settled gives a function that tells the keeper where its daemon has asked for a copy that this one has it: nil where none was asked for.
func (f *Follower) settled(number string) func() {
	if number == "" {
		return nil
	}
	return func() {
		raw, err := f.conn.SyscallConn()
		if err != nil {
			return // nothing more is said
		}
		_ = raw.Control(func(fd uintptr) {
			m := say("SETTLED=" + number)
			_ = unix.Sendmsg(int(fd), m.text(), nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT) // a keeper that has gone needs no telling
		})
	}
}
