package handover

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A spare whose keeper has died waits for the end of the daemon, and goes on by itself then. The daemon starts another keeper meanwhile, which starts a spare of its
// own. So the daemon makes a pipe with each keeper, which keepers hand to their spares, and writes there, to spares of keepers that have died:
//
//	newsKeeper and the keeper's pid    there is another keeper
//	newsSpare and a spare's pid        that one waits for its turn: others are not needed
//	newsOver                           the mount is over
//
// Several that go on at once do no harm: only one gets the mount (TAKEN).
const (
	newsKeeper = 'K'
	newsSpare  = 'S'
	newsOver   = 'O'

	newsHeard = 'H' // is not written: another spare of that keeper has read the word
)

// sparesOfPipe is how many spares listen to one pipe: the one that waits for its turn, and a stale one until that one is prepared.
const sparesOfPipe = 2

// newsSize is the size of a word of news: its letter, and a pid.
const newsSize = 5

// orphan is the state of a daemon whose keeper has gone before its turn. Both descriptors are -1 for none.
type orphan struct {
	daemon int  // pidfd of the daemon that serves
	news   int  // pipe from it
	ended  bool // it has ended already
}

// may tells whether this daemon can go on by itself.
func (o *orphan) may() bool { return o.daemon >= 0 || o.ended }

// hears takes another pipe.
func (o *orphan) hears(fd int) {
	if o.news >= 0 {
		_ = unix.Close(o.news) // of the daemon before, or an earlier one of this
	}
	o.news = fd
}

// prepareOrphan takes the descriptors that a daemon needs when its keeper goes. One that was asked for by an upgrade goes with the keeper: the
// mount is served.
func (l *Life) prepareOrphan(held *message) {
	if l.before == 0 || l.kind != ByKeeper || l.served && !l.spare {
		held.close()
		l.orphan.close()
		return
	}
	l.orphan.hears(held.fd) // an older keeper gives none
	if l.orphan.daemon >= 0 {
		return
	}
	daemon, err := unix.PidfdOpen(l.before, 0) // nor a pidfd
	if err == nil && l.served {
		l.orphan.daemon = daemon
		return
	}
	if err == nil {
		_ = unix.Close(daemon) // it may be another process by now
	}
	l.orphan.ended = true
}

// orphaned waits, where the keeper of a spare has gone, until the daemon that served has ended. It tells whether this spare shall go on with the mount: not
// where another one waits for that, or ctx has ended.
func (l *Life) orphaned(ctx context.Context) bool {
	if !l.orphan.may() {
		return false
	}
	keeper := -1 // pidfd of another keeper, which comes first
	defer func() {
		if keeper >= 0 {
			_ = unix.Close(keeper) // only looked at
		}
	}()
	for ctx.Err() == nil && !l.orphan.ended {
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
			case newsSpare:
				if pid == os.Getpid() {
					continue
				}
				return false
			case newsOver:
				return false
			case newsHeard:
				continue
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

// close ends the waiting for messages.
func (o *orphan) close() {
	for _, fd := range []int{o.daemon, o.news} {
		if fd >= 0 {
			_ = unix.Close(fd) // only looked at
		}
	}
	*o = orphan{daemon: -1, news: -1}
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
	n, err := unix.Read(fd, p[:])
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return newsHeard, 0
	}
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

// hearTells takes the pipe to a spare that a keeper started for the time after this daemon. It stands before that of the keeper's other spares. The caller has the
// lock.
func (l *Life) hearTells(fd int) { l.tells = slices.Insert(l.tells, 0, fd) }

// leaveKeeper closes the socket of a keeper that has gone. First it takes the pipes which that keeper has sent. A spare that hears of no other keeper waits for
// the end of this daemon, and keeps the filesystem until then. The caller has the lock.
func (l *Life) leaveKeeper() {
	_ = unix.SetNonblock(l.socket, true) // or the peer's end ends the loop
	for {
		m, err := receive(l.socket)
		if errors.Is(err, unix.ECONNRESET) { // told once, before the queued messages: the keeper has not read all
			continue
		}
		if err != nil {
			break
		}
		if m.fields["TELLS"] == "" {
			m.close()
		} else if m.fd >= 0 {
			l.hearTells(m.fd)
		}
	}
	_ = unix.Close(l.socket) // of a peer that is gone
	l.socket = -1
}

// tellOrphans tells spares of keepers that have died, and with newsOver all. The caller has the lock.
func (l *Life) tellOrphans(word byte, pid int) {
	orphans := l.tells
	if word != newsOver {
		orphans = l.tells[:max(len(l.tells)-1, 0)]
	}
	var p [newsSize]byte
	p[0] = word
	binary.LittleEndian.PutUint32(p[1:], uint32(pid))
	for _, fd := range orphans {
		_, _ = unix.Write(fd, p[:]) // one that has gone needs no telling
		if word != newsKeeper {
			for range sparesOfPipe - 1 { // each spare reads one, and goes
				_, _ = unix.Write(fd, p[:])
			}
			_ = unix.Close(fd) // nothing more is said
		}
	}
	if word != newsKeeper {
		l.tells = l.tells[len(orphans):]
	}
}

// Secure has other processes hold the mount before this daemon answers, where it goes on without a keeper. It may be killed next, and the keeper that it
// starts, before that one has a spare. So it starts a spare itself, which waits as one does whose keeper has died.
func (l *Life) Secure(log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.bereft {
		return
	}
	l.log = log
	if l.socket >= 0 {
		l.leaveKeeper()
	}
	if !l.alone {
		if err := l.startSpare(); err != nil {
			log.Warn("no daemon waits for its turn", "reason", err)
		}
	}
	if err := l.startKeeper("", nil); err != nil {
		log.Warn("a keeper could not be started", "reason", err) // Begin tries again
		return
	}
	l.told = true
}

// startSpare starts a spare that has no keeper. The caller has the lock.
func (l *Life) startSpare() error {
	if len(l.kept) > queued {
		return errors.New("the daemon keeps too much")
	}
	self, err := ownPidfd()
	if err != nil {
		return err
	}
	defer func() { _ = self.Close() }() // the spare has its own
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	defer func() { _ = unix.Close(ends[0]) }() // likewise
	held := say("HELD=1", "NICE="+strconv.Itoa(l.nice), "DAEMON="+strconv.Itoa(os.Getpid()), "SERVED=1", "REST=1").with(ends[0])
	cmd := command("/proc/self/exe", os.Args, ByKeeper, true)
	socket, err := startWith(cmd, l.kept, int(self.Fd()), held)
	if err != nil {
		_ = unix.Close(ends[1]) // nobody listens
		return err
	}
	_ = unix.Close(socket) // it has no keeper
	l.tells = append(l.tells, ends[1])
	niceAll(strconv.Itoa(cmd.Process.Pid), min(l.nice+spareNice, niceLeast))
	go func() { _ = cmd.Wait() }() // ends with the spare
	return nil
}

// stay has this daemon, whose turn has come, be woken no more where somebody stops it.
func (l *Life) stay() {
	if l.stir != nil {
		l.stir()
		l.stir = nil
	}
}

// wakes has the kernel wake this process when its parent ends: somebody may have stopped it, and it may be all that is left. end undoes that. The kernel
// keeps such a wish for a thread.
func wakes() (end func()) {
	over, there, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() { // ends with end, or the process
		defer close(gone)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGCONT), 0, 0, 0)
		close(there)
		<-over
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0) // the first thread stays
	}()
	<-there
	return func() { close(over); <-gone }
}
