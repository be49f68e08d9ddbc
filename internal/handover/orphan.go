package handover

import (
	"context"
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// A spare whose keeper has died waits for the end of the daemon, and goes on by itself then. The daemon starts another keeper meanwhile, which starts a spare of its
// own. So the daemon makes a pipe with each keeper, which keepers hand to their spares, and writes there, to spares of keepers that have died:
//
//	newsKeeper and the keeper's pid    there is another keeper
//	newsSpare                          that one has a spare: you are not needed
//	newsOver                           the mount is over
//
// Several that go on at once do no harm: only one gets the mount (TAKEN).
const (
	newsKeeper = 'K'
	newsSpare  = 'S'
	newsOver   = 'O'
)

// newsSize is what a word of news has: its letter, and a pid.
const newsSize = 5

// orphan is what a spare goes by once its keeper has gone. Both are -1 for none.
type orphan struct {
	daemon int // pidfd of the daemon that serves
	news   int // pipe from it
}

// prepareOrphan takes what a spare needs when its keeper goes, while that lives: later the daemon's number may be another process's.
func (l *Life) prepareOrphan(held *message) {
	if !l.spare || !l.served || l.before == 0 || l.kind != ByKeeper {
		held.close()
		return
	}
	l.orphan.news = held.fd // an older keeper gives none
	if daemon, err := unix.PidfdOpen(l.before, 0); err == nil {
		l.orphan.daemon = daemon
	}
}

// orphaned waits, where the keeper of a spare has gone, until the daemon that served has ended. It tells whether this spare shall go on with the mount: not
// where another one waits for that, or ctx has ended.
func (l *Life) orphaned(ctx context.Context) bool {
	if l.orphan.daemon < 0 {
		return false
	}
	keeper := -1 // pidfd of another keeper, which comes first
	defer func() {
		if keeper >= 0 {
			_ = unix.Close(keeper) // only looked at
		}
	}()
	for ctx.Err() == nil {
		const often = 500 // for ctx
		fds := []unix.PollFd{{Fd: int32(l.orphan.news), Events: unix.POLLIN}, {Fd: int32(l.orphan.daemon), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, often)
		if n == 0 || err != nil { // an interruption is a turn more
			continue
		}
		if fds[0].Revents != 0 {
			word, pid := hearNews(l.orphan.news)
			switch word {
			case newsKeeper:
				if keeper >= 0 {
					_ = unix.Close(keeper) // of one before
				}
				if keeper, err = unix.PidfdOpen(pid, 0); err != nil {
					keeper = -1 // it has died, too
				}
				continue
			case newsSpare, newsOver:
				return false
			}
			_ = unix.Close(l.orphan.news) // the daemon ends, which has it open
			l.orphan.news = -1
			continue
		}
		break
	}
	if ctx.Err() == nil && keeper >= 0 {
		awaitEnd(ctx, keeper, spareTurn)
	}
	return ctx.Err() == nil
}

// close ends the waiting for what may come.
func (o *orphan) close() {
	for _, fd := range []int{o.daemon, o.news} {
		if fd >= 0 {
			_ = unix.Close(fd) // only looked at
		}
	}
	*o = orphan{-1, -1}
}

// awaitEnd waits until a process has ended, at most for a time.
func awaitEnd(ctx context.Context, pidfd int, most time.Duration) {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for end := time.Now().Add(most); ctx.Err() == nil && time.Now().Before(end); {
		if n, _ := unix.Poll(poll, int(min(time.Until(end), 500*time.Millisecond)/time.Millisecond)+1); n > 0 {
			return
		}
	}
}

// hearNews reads a word of the daemon; 0: there will be none.
func hearNews(fd int) (word byte, pid int) {
	var p [newsSize]byte
	n, _ := unix.Read(fd, p[:]) // its end is seen by n
	if n < newsSize {
		return 0, 0
	}
	return p[0], int(binary.LittleEndian.Uint32(p[1:]))
}

// tellSpares gives a keeper the pipe to its spares. The caller has the lock.
func (l *Life) tellSpares() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	defer func() { _ = unix.Close(ends[0]) }() // the keeper has its own
	l.tells = append(l.tells, ends[1])
	return l.tell(say("NEWS=1").with(ends[0]))
}

// tellOrphans tells spares of keepers that have died, and with newsOver all. The caller has the lock.
func (l *Life) tellOrphans(word byte) {
	orphans := l.tells
	if word != newsOver {
		orphans = l.tells[:max(len(l.tells)-1, 0)]
	}
	var p [newsSize]byte
	p[0] = word
	binary.LittleEndian.PutUint32(p[1:], uint32(l.pid))
	for _, fd := range orphans {
		_, _ = unix.Write(fd, p[:]) // one that has gone needs no telling
		if word != newsKeeper {
			_ = unix.Close(fd) // nothing more is said
		}
	}
	if word != newsKeeper {
		l.tells = l.tells[len(orphans):]
	}
}
