package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of holders, as the status names them.
const (
	ByKeeper  = "keeper"
	BySystemd = "systemd"
	ByHost    = "host" // another program that started the daemon
)

// States is the name under which the holder keeps the states.
const States = "state"

// Death is the end of the daemon before.
type Death struct {
	How string // "crash" or "upgrade"
	At  int64  // CLOCK_MONOTONIC, ns; 0 where it is not known
	PID int    // of the daemon before; 0 where it is not known
}

// Since returns the time since the death, 0 where it is not known.
func (d Death) Since() time.Duration {
	if d.At == 0 {
		return 0
	}
	return time.Duration(now() - d.At)
}

// Life is one daemon's part in the life of a mount. Its methods are safe for concurrent use, and nil is a daemon that nobody holds.
type Life struct {
	kind string
	log  *slog.Logger

	adopts   bool                  // there was a life before
	served   bool                  // another daemon serves still
	spare    bool                  // it is the keeper's spare
	nice     int                   // of this process, once it serves
	before   int                   // the process of the daemon before, 0 where it is not known
	orphan   orphan                // its way on where its keeper has gone before its turn
	bereft   bool                  // it goes on without a keeper
	stir     func()                // ends the watch of its parent's end; nil without one
	death    atomic.Pointer[Death] // of the daemon before, once it is heard of
	sections map[string]section    // of the life before

	mu     sync.Mutex     // guards the fields below
	socket int            // to the holder, -1 for none
	notify string         // systemd's socket
	kept   map[string]int // descriptors of this process
	pid    int            // of the keeper, 0 where it is not this daemon's child
	next   int            // the process that waits for its turn, 0 for none
	tells  []int          // to spares of keepers, the last of which lives: see orphan.go
	why    string         // nobody holds
	first  *sentinel      // ends before all other threads
	over   bool
	told   bool          // the keeper knows all
	alone  bool          // no spare is wanted
	renews bool          // another keeper is about to relieve the one of the daemon before
	left   chan struct{} // closed once the holder has gone; nil where nobody watches it
	settling
}

// KeeperArgument makes this program a keeper: [Keep].
const KeeperArgument = "keeper"

// Inherited returns the life of a daemon that a holder has started, nil where none has.
func Inherited() (*Life, error) {
	if text := os.Getenv(Env); text != "" {
		number, _, _ := strings.Cut(text, " ")
		socket, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("%s=%q is not the number of a socket", Env, text)
		}
		unix.CloseOnExec(socket)
		_, kind, _ := strings.Cut(text, " ")
		l := &Life{kind: kind, socket: socket, kept: map[string]int{}, nice: niceNow(), spare: os.Getenv(SpareEnv) != "", settling: newSettling(), orphan: orphan{daemon: -1, news: -1}}
		if l.spare {
			Rename(SpareComm)
			l.stir = wakes()
		}
		return l, errors.Join(os.Unsetenv(Env), os.Unsetenv(SpareEnv), os.Unsetenv("NOTIFY_SOCKET"), l.takeHeld()) // the holder is told, not another's systemd
	}
	if most, err := strconv.Atoi(os.Getenv("FDSTORE")); err == nil && most > 0 && os.Getenv("NOTIFY_SOCKET") != "" {
		l := &Life{kind: BySystemd, socket: -1, notify: os.Getenv("NOTIFY_SOCKET"), kept: map[string]int{}}
		return l, l.takeListened()
	}
	return nil, nil //nolint:nilnil // a nil Life is a daemon that nobody holds
}

// New is the life of a daemon that holds itself: [Life.Begin] starts a keeper.
func New() *Life {
	return &Life{kind: ByKeeper, socket: -1, kept: map[string]int{}, nice: niceNow(), settling: newSettling()}
}

// takeHeld takes the holder's descriptors.
func (l *Life) takeHeld() error {
	for {
		m, err := receive(l.socket)
		switch {
		case err != nil && l.spare:
			return ErrNoTurn
		case err != nil:
			return fmt.Errorf("hear the holder of the mount: %w", err)
		case m.fields["PIDFD"] != "":
			l.orphan.daemon = m.fd
			continue
		case m.fields["HELD"] != "":
			if m.fields["REST"] != "" {
				l.rest()
			}
			l.served = m.fields["SERVED"] != ""
			l.before, _ = strconv.Atoi(m.fields["DAEMON"]) // an older keeper does not tell
			l.prepareOrphan(&m)
			if nice, err := strconv.Atoi(m.fields["NICE"]); err == nil { // an older keeper hurries nobody
				l.nice = nice
			}
			return l.readStates()
		case m.fd < 0:
			return errors.New("hear the holder of the mount: it sent no descriptor")
		}
		l.kept[m.fields["FDNAME"]] = m.fd
	}
}

// listenFirst is the first descriptor that systemd gives (SD_LISTEN_FDS_START).
const listenFirst = 3

// takeListened takes the descriptors in systemd's store: sd_listen_fds_with_names(3).
func (l *Life) takeListened() error {
	defer func() {
		_ = errors.Join(os.Unsetenv("LISTEN_PID"), os.Unsetenv("LISTEN_FDS"), os.Unsetenv("LISTEN_FDNAMES"))
	}() // not for children
	count, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || count <= 0 || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil //nolint:nilerr // there is nothing: the first life
	}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for i := range count {
		unix.CloseOnExec(listenFirst + i)
		name := "unknown"
		if i < len(names) {
			name = names[i]
		}
		l.kept[name] = listenFirst + i
	}
	return l.readStates()
}

// readStates reads the states of the life before.
func (l *Life) readStates() error {
	if l.adopts = len(l.kept) > 0; !l.adopts {
		return nil
	}
	f := l.Took(States)
	if f == nil {
		return fmt.Errorf("%w: the holder has none", ErrRefused)
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	b, err := read(f)
	if err == nil {
		l.sections, err = decode(b)
	}
	return err
}

// Adopts tells whether there was a life before, which this one goes on with.
func (l *Life) Adopts() bool { return l != nil && l.adopts }

// Load gives a state the data that the life before has saved.
func (l *Life) Load(s State) error { return adopt(l.sections, s) }

// Begin says that this daemon answers the kernel. In its first life it gives the holder the states. From now on another daemon
// comes when this one goes. Where nobody holds yet, Begin starts a keeper; ctx ends the watch over it.
func (l *Life) Begin(ctx context.Context, log *slog.Logger, states ...State) error {
	l.log = log
	if !l.adopts {
		b, err := encode(states)
		if err != nil {
			return err
		}
		f, err := sealed(States, b)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // the life has its own
		if err := l.Keep(States, f); err != nil {
			return err
		}
	}
	if l.Has(keptFailures) {
		l.Drop(keptFailures)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	death := l.death.Load()
	l.renews = l.kind == ByKeeper && death != nil && death.How == "upgrade"
	err := errors.New("there is no keeper yet")
	switch {
	case l.told && l.socket >= 0:
		err = nil
	case l.kind != ByKeeper || l.socket >= 0:
		err = l.introduce()
	}
	if err != nil && l.kind == ByKeeper { // or it has just gone
		if l.socket >= 0 {
			l.leaveKeeper()
		}
		l.renews = false
		err = l.startKeeper("", nil)
	}
	if err != nil {
		return err
	}
	if l.renews {
		l.renews = false
		if err := l.renewKeeper(); err != nil {
			log.Warn("the keeper of the daemon before goes on", "reason", err)
			_ = l.introduce() // it is told of this program again, and to have a spare; one that has died is replaced by watch
		}
	}
	if l.socket >= 0 {
		l.left = make(chan struct{})
		go l.watch(ctx, l.socket) // ends with the holder, or with the life
	}
	return nil
}

// introduce tells a holder all that it must know. The caller has the lock.
func (l *Life) introduce() error {
	if l.socket >= 0 {
		var words [][]byte // a name may be no text
		for _, word := range os.Args {
			words = append(words, []byte(word))
		}
		args, err := json.Marshal(words)
		if err != nil {
			return err
		}
		program, err := os.Open("/proc/self/exe")
		if err != nil {
			return fmt.Errorf("have this program started again: %w", err)
		}
		defer func() { _ = program.Close() }() // the holder has its own
		start := say("START=" + string(args)).with(int(program.Fd()))
		if !l.alone && !l.renews {
			start.fields["SPARE"] = "1"
		}
		if err := l.tell(start); err != nil {
			return err
		}
		if l.first == nil {
			l.first = newSentinel()
		}
		if err := l.tell(say(l.first.said())); err != nil {
			return err
		}
		if err := l.tellSpares(); err != nil {
			return err
		}
	}
	if l.notify != "" {
		return nil // the report of readiness tells systemd
	}
	if err := l.tell(say("READY=1")); err != nil {
		return err
	}
	l.ask()
	return nil
}

const (
	leaveTime = time.Second           // a process has to close its end
	letGoTime = leaveTime + 2*dieTime // a holder has to let go, which waits dieTime for each daemon that waits for its turn
)

// End says that the mount is over. It returns once the holder has let go of everything, the source for one.
func (l *Life) End() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.over = true
	l.tellOrphans(newsOver, 0)
	_ = l.tell(say("STOPPING=1")) // a holder that is gone needs no telling
	l.first.relieve()
	for _, fd := range l.kept {
		_ = unix.Close(fd) // a copy
	}
	clear(l.kept)
	if l.left == nil {
		return
	}
	l.mu.Unlock()
	select {
	case <-l.left:
	case <-time.After(letGoTime):
	}
	l.mu.Lock()
}

// Unheld says that nobody holds the mount, and why. The life ends with this daemon.
func (l *Life) Unheld(why error) {
	l.End()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.socket, l.notify, l.why = -1, "", why.Error()
}

// NoSpare has no daemon wait for its turn while this one serves. It is called before [Life.Begin].
func (l *Life) NoSpare() {
	if l != nil {
		l.alone = true
	}
}

// Next returns the process that waits for its turn, 0 where none does.
func (l *Life) Next() int {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// Holder returns the holder of the mount: its kind and, of a keeper, its process. Without one it says why.
func (l *Life) Holder() (kind string, pid int, why string) {
	if l == nil {
		if os.Geteuid() != 0 {
			return "", 0, "ordinary users' mounts have no keeper"
		}
		return "", 0, "no keeper was wanted"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket < 0 && l.notify == "" {
		return "", 0, l.why
	}
	pid = l.pid
	if pid == 0 && l.socket >= 0 {
		if cred, err := unix.GetsockoptUcred(l.socket, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	}
	return l.kind, pid, ""
}
