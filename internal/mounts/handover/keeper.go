package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Comm is the name of a keeper's process in /proc, which tells it from the daemon that has the same connection to the kernel.
const Comm = "hbmfs-keeper"

// How long, and how often, a holder tries to get a daemon before it aborts the connection.
const (
	graceTime = 30 * time.Second
	triesMax  = 3

	shortLife     = time.Second
	shortLivesMax = 100
)

// Keep is the work of a keeper: it returns its exit code when the mount is over, or was given up. Descriptor 3 is the socket to the
// daemon, and 4 its pidfd, since it may have ended by now; its process number is the argument after [KeeperArgument]. Another argument is the
// process of a keeper that this one relieves, and descriptor 5 a socket to it.
func Keep(args []string) (code int) {
	if err := keep(args); err != nil {
		fmt.Fprintf(os.Stderr, "hbmfs: %v\n", err)
		return 1
	}
	return 0
}

func keep(args []string) error {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(10)
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE) // the daemon ends the mount, and says so
	_ = os.WriteFile("/proc/self/comm", []byte(Comm), 0)                            // else two processes look like the daemon
	if len(args) != 1 && len(args) != 2 {
		return errors.New("daemons start a keeper; it is not for people")
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("keep a mount: %w", err)
	}
	const fromDaemon, ofDaemon, fromBefore = 3, 4, 5
	unix.CloseOnExec(fromDaemon)
	unix.CloseOnExec(ofDaemon)
	runtime.LockOSThread() // whose nice value its children have
	k := &keeper{nice: niceNow(), store: Copy{}, log: os.Stderr, kind: ByKeeper, listener: listen(), news: -1}
	hurry(os.Getpid())
	k.now = watched(pid, ofDaemon, fromDaemon)
	if len(args) > 1 {
		before, err := strconv.Atoi(args[1])
		if err == nil {
			err = k.relieve(before, fromBefore)
		}
		if err != nil {
			return err
		}
	}
	return k.run()
}

// keeper holds the descriptors of one mount. One thread does all its work.
type keeper struct {
	kind     string
	nice     int // of daemons
	store    Copy
	log      io.Writer
	listener int // for [Upgrade], -1 for none

	argv    []string
	program int // descriptor of the daemon's program, 0 for none
	news    int // descriptor by which the daemon tells spares of another keeper, -1 for none

	relieves bool    // it was started to relieve another
	before   *before // has the duty of this keeper still; nil where this one has it

	now   *daemon // serves, or has died
	next  *daemon // is to serve; nil for none
	spare spare

	died  int64 // when the daemon before went, CLOCK_MONOTONIC; 0 while one serves
	how   string
	tries int    // starts in a row of daemons that did not come to serve, and were not killed
	short int    // crashes in a row after less than shortLife, and kills before a daemon served
	why   string // the last words of a daemon that could not go on
	ended bool
	fat   bool // something was done since leaner
	following
}

// daemon is a process that serves the mount, or will.
type daemon struct {
	pid, pidfd int // pidfd is -1 once the process is dead
	socket     int // -1 once the process has closed it
	sentinel   int // tells of the end of the process's first thread; -1 for none
	child      *exec.Cmd
	program    int // descriptor, of one that a request has started; else 0
	prepared   bool
	served     bool // it answers the kernel
	asked      int  // the connection of the request, -1 for none
	check      bool
	began      time.Time
	missed     map[string]bool // names of files that were kept or forgotten since it started
	turn       time.Time       // of a spare that shall serve; zero for others
	early      bool            // a spare has not heard yet from the daemon that it waits for
}

func (k *keeper) say(format string, args ...any) {
	fmt.Fprintf(k.log, "time=%s level=WARN msg=%q\n", time.Now().Format("2006-01-02T15:04:05.000Z07:00"), fmt.Sprintf("keeper: "+format, args...))
}

// watched makes a daemon of a process that runs already.
func watched(pid, pidfd, socket int) *daemon {
	return &daemon{pid: pid, pidfd: pidfd, socket: socket, sentinel: -1, asked: -1, began: time.Now()}
}

// run works until the mount is over.
func (k *keeper) run() error {
	for !k.ended {
		k.poll()
		if err := k.decide(); err != nil {
			return err
		}
	}
	k.dropSpares()
	for name := range k.store {
		k.forget(name)
	}
	return nil // daemons see the end of their sockets
}

// poll waits for something to happen, and handles it.
func (k *keeper) poll() {
	var fds []unix.PollFd
	var then []func()
	watch := func(fd int, do func()) {
		if fd >= 0 {
			fds, then = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}), append(then, do)
		}
	}
	for _, d := range []*daemon{k.now, k.next, k.spare.daemon, k.spare.after, k.spare.stale} {
		if d != nil {
			watch(d.socket, func() { k.hear(d) })
			watch(d.pidfd, func() { k.bury(d) })
			watch(d.sentinel, func() { k.dies(d) })
		}
	}
	watch(k.listener, k.request)
	k.watchFollowers(watch)
	if b := k.before; b != nil {
		watch(b.socket, k.hearBefore)
		watch(b.pidfd, k.takeDuty)
	}
	timeout := -1
	if k.died != 0 {
		timeout = int(max(0, graceTime-time.Duration(now()-k.died))/time.Millisecond) + 1
	}
	const soon = 500
	if (k.next != nil || k.before != nil || k.fat) && (timeout < 0 || timeout > soon) {
		timeout = soon
	}
	timeout = k.spare.timeout(timeout)
	n, err := unix.Poll(fds, timeout)
	if n == 0 && k.fat && k.next == nil {
		leaner()
		k.fat = false
	}
	if n <= 0 || err != nil { // an interruption is a turn more
		return
	}
	k.fat = true
	for i := range fds {
		if fds[i].Revents != 0 {
			then[i]()
		}
	}
}

// hear handles a message of a daemon.
func (k *keeper) hear(d *daemon) {
	if d.socket < 0 {
		return
	}
	m, err := receive(d.socket)
	if err != nil {
		_ = unix.Close(d.socket) // its process ends, or has ended
		d.socket = -1
		return
	}
	name := m.fields["FDNAME"]
	switch {
	case m.fields["FDSTORE"] != "" && m.fd >= 0:
		k.forget(name)
		k.store[name], m.fd = m.fd, -1
		k.next.misses(name)
		k.renewSpare(0)
		k.changed()
	case m.fields["FDSTOREREMOVE"] != "":
		k.forget(name)
		k.next.misses(name)
		k.renewSpare(k.letGo(&m))
		k.changed()
	case m.fields["SENTINEL"] != "":
		d.forgetSentinel()
		d.sentinel = watchSentinel(m.fields["SENTINEL"])
	case m.fields["START"] != "" && m.fd >= 0:
		k.learn(&m)
	case m.fields["NEWS"] != "" && m.fd >= 0:
		if k.news >= 0 {
			_ = unix.Close(k.news) // of the daemon before, or an earlier word of this one
		}
		k.news, m.fd = m.fd, -1
		if waits := k.spare.daemon; waits != nil {
			_ = send(waits.socket, say("NEWS=1").with(k.news)) // it was started before there was this
			waits.early = false
			k.tellSpare()
		}
	case m.fields["PREPARED"] != "":
		d.prepared = true
		if d == k.spare.daemon {
			k.drop(k.spare.stale)
			k.spare.stale = nil
		}
		k.tellSpare()
	case m.fields["FAILED"] != "":
		k.answer(d, "REFUSED="+m.fields["FAILED"])
		if k.died != 0 || d == k.spare.daemon || !d.served {
			k.why = m.fields["FAILED"]
			k.say("a daemon could not go on: %s", k.why)
		}
	case m.fields["READY"] != "" && d == k.next:
		k.serves(d)
	case m.fields["READY"] != "" && d == k.now:
		k.served(d)
	case m.fields["SETTLE"] != "":
		k.settle(d, m.fields["SETTLE"])
	case m.fields["RETIRE"] != "" && m.fd >= 0:
		k.retire(d, &m)
	case m.fields["STOPPING"] != "", m.fields["TAKEN"] != "":
		k.ended = true
	}
	m.close()
}

// learn is told how the daemon is started.
func (k *keeper) learn(m *message) {
	var argv [][]byte
	high, err := unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 100) // a number that no child's own descriptors take
	if err != nil || json.Unmarshal([]byte(m.fields["START"]), &argv) != nil {
		return
	}
	if k.program > 0 {
		_ = unix.Close(k.program) // of the daemon before
	}
	k.argv, k.program, k.spare.wanted = nil, high, m.fields["SPARE"] != ""
	for _, word := range argv {
		k.argv = append(k.argv, string(word))
	}
}

func (k *keeper) forget(name string) {
	if fd, ok := k.store[name]; ok {
		_ = unix.Close(fd) // the daemon has its own
		delete(k.store, name)
	}
}

// serves makes the next daemon the one that serves. It may still fail to, until it has told all it has.
func (k *keeper) serves(d *daemon) {
	if k.now.socket >= 0 {
		_ = unix.Close(k.now.socket) // of a process that is dead
	}
	if d.program > 0 {
		_ = unix.Close(d.program) // START brings another
		d.program = 0
	}
	d.began = time.Now()
	k.now, k.next, k.died = d, nil, 0
	if k.how == "upgrade" {
		k.dropSpares() // of the program before: START brings another
	}
	k.spare.due = time.Time{}
}

// served notes that the daemon has told all it had, which it does once it answers the kernel.
func (k *keeper) served(d *daemon) {
	k.answer(d, "OK="+strconv.Itoa(d.pid))
	d.served, k.whole, k.tries = true, true, 0
	if k.before == nil && k.spare.daemon == nil {
		k.renewSpare(0)
	}
	if k.relieves {
		_ = send(d.socket, say("KEEPS=1")) // a daemon that has died needs no telling
	}
}

// dies handles the end of a daemon's first thread: the others follow.
func (k *keeper) dies(d *daemon) {
	if d.sentinel < 0 || d.pidfd < 0 {
		return
	}
	d.forgetSentinel()
	hasten(d.pid)
	if next := k.spare.daemon; next != nil && k.next == nil {
		hurry(next.pid)
		if d == k.now {
			k.startAfter(next)
		}
	}
}

func (d *daemon) forgetSentinel() {
	if d.sentinel >= 0 {
		_ = unix.Close(d.sentinel) // only looked at
		d.sentinel = -1
	}
}

// bury handles the end of a daemon's process.
func (k *keeper) bury(d *daemon) {
	d.forgetSentinel()
	_ = unix.Close(d.pidfd) // of a process that is dead
	d.pidfd = -1
	if d.child != nil {
		_ = d.child.Wait() // how it ended is in its log
	}
	for d.socket >= 0 { // its last words
		k.hear(d)
	}
	if d == k.now && k.died == 0 {
		k.died = now()
		if k.how = "crash"; k.next != nil {
			k.how = "upgrade"
		}
		k.count(d)
	}
}

// count counts the end of a daemon that had the mount, or was to have it. One that ended by itself before it served is a start that failed, however
// long it took. One that was killed then is not: that is no fault of its own.
func (k *keeper) count(d *daemon) {
	switch {
	case d.served && time.Since(d.began) > shortLife:
		k.short = 0
	case d.served:
		k.short++
	case killed(d.child):
		k.tries, k.short = max(0, k.tries-1), k.short+1
	}
	k.answer(d, "REFUSED=it died before it served the mount: see its log")
}

// killed tells whether somebody has killed a process, or the kernel for want of memory.
func killed(child *exec.Cmd) bool {
	if child == nil || child.ProcessState == nil {
		return false
	}
	status, ok := child.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// decide acts on events.
func (k *keeper) decide() error {
	if k.ended {
		return nil
	}
	if k.before != nil {
		k.idle()
		return nil
	}
	if k.died != 0 && !k.store.Connected() { // unmounted, or aborted by somebody
		k.ended = true
		return nil
	}
	if k.next != nil && k.next.pidfd < 0 {
		k.count(k.next)
		k.drop(k.next)
		k.next = nil
	}
	if d := k.next; d != nil && !d.turn.IsZero() && time.Since(d.turn) > spareTurn {
		k.say("the daemon that waited for its turn does not take it: another is started")
		k.drop(d)
		k.next = nil
	}
	if err := k.decideSpare(); err != nil {
		k.say("no daemon waits for its turn: %v", err)
	}
	if k.died != 0 && k.how == "crash" && k.next != nil && k.spare.daemon == nil && (k.spare.due.IsZero() || k.spare.died == 0) { // not in the pause after one that died
		k.startAfter(k.next)
	}
	switch d := k.next; {
	case d != nil && k.died == 0 && time.Since(d.began) > graceTime:
		k.answer(d, fmt.Sprintf("REFUSED=it has not read the state within %v", graceTime))
		k.drop(d)
		k.next = nil
	case d != nil && d.prepared && d.check:
		k.answer(d, "OK=0")
		k.drop(d)
		k.next = nil
	case d != nil && d.prepared && k.died == 0:
		k.end(k.now)
		fallthrough
	case d != nil && d.prepared:
		d.prepared = false
		k.catchUp(d)
		if err := send(d.socket, say("ADOPT="+k.how, "DIED="+strconv.FormatInt(k.died, 10))); err != nil {
			k.say("the next daemon cannot be reached: %v", err)
		}
	case k.died != 0 && time.Duration(now()-k.died) > graceTime, k.died != 0 && d == nil && (k.tries == triesMax || k.short > shortLivesMax):
		return k.abort()
	case k.died != 0 && d == nil:
		k.tries++
		var err error
		if k.next, err = k.start(k.program, false, k.now, -1); err != nil {
			k.say("cannot start a daemon: %v", err)
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil
}

// dieTime is how long the end of a daemon is waited for. One that waits in the kernel, for a dead network filesystem for one, does
// nothing more before it ends.
const dieTime = 2 * time.Second

// end ends the daemon that serves.
func (k *keeper) end(d *daemon) {
	if d.pidfd < 0 {
		return
	}
	k.how, k.died, k.short = "upgrade", now(), 0
	_ = unix.PidfdSendSignal(d.pidfd, unix.SIGKILL, nil, 0) // it may have died
	hasten(d.pid)
	hurry(k.next.pid)
	if ends(d.pidfd) {
		k.bury(d)
	}
}

// ends waits for the end of a process, at most dieTime.
func ends(pidfd int) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for end := time.Now().Add(dieTime); time.Now().Before(end); {
		if n, _ := unix.Poll(poll, int(time.Until(end)/time.Millisecond)+1); n > 0 {
			return true
		}
	}
	return false
}

// abort ends the connection, so that nobody waits for ever.
func (k *keeper) abort() error {
	k.drop(k.next)
	k.dropSpares()
	if fd, ok := k.store[Device]; ok {
		if number := connectionNumber(fd); number != "" {
			_ = os.WriteFile("/sys/fs/fuse/connections/"+number+"/abort", []byte("1"), 0) // else the end of this process does it
		}
	}
	why := k.why
	if why == "" {
		why = "their log has more"
	}
	return fmt.Errorf("the mount is given up: no daemon went on with it, in %d attempts and after %d short lives: %s", k.tries, k.short, why)
}
