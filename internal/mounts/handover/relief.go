package handover

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// At an upgrade the new daemon starts a keeper of its own program, which relieves the one before. Only one keeper may start daemons. So the
// new one takes the descriptors, and waits until the one before has handed its duty over, or is dead:
//
//	new daemon → new keeper     FDSTORE, START, READY, as any daemon
//	new keeper → new daemon     KEEPS=1
//	new daemon → keeper before  RETIRE=1 (descriptor: an end of a socket to the new keeper)
//	keeper before → new keeper  DUTY=1, and ends; or, where the daemon has died meanwhile, MINE=1, and starts the next one
//
// Where the new daemon dies before RETIRE, the new keeper sees the end of the socket, and a keeper before that lives: it is not needed.

// before is the keeper that a new one relieves.
type before struct {
	pidfd  int
	socket int       // -1 once it is closed
	closed time.Time // then
}

// relieve makes a keeper wait for the duty of another one.
func (k *keeper) relieve(pid, socket int) error {
	k.relieves = true
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // it has died: this keeper is the only one
	}
	if err != nil {
		return fmt.Errorf("relieve the keeper (pid %d): %w", pid, err)
	}
	unix.CloseOnExec(socket)
	k.before = &before{pidfd: pidfd, socket: socket}
	return nil
}

// hearBefore handles messages of the keeper before.
func (k *keeper) hearBefore() {
	if k.before == nil || k.before.socket < 0 {
		return
	}
	m, err := receive(k.before.socket)
	m.close()
	switch {
	case err != nil:
		_ = unix.Close(k.before.socket) // it has gone, or never had its end
		k.before.socket, k.before.closed = -1, time.Now()
	case m.fields["DUTY"] != "":
		k.takeDuty()
	case m.fields["MINE"] != "":
		k.ended = true
	}
}

// takeDuty makes this keeper the only one.
func (k *keeper) takeDuty() {
	if k.before == nil {
		return
	}
	_ = unix.Close(k.before.pidfd) // opened to watch it
	if k.before.socket >= 0 {
		_ = unix.Close(k.before.socket) // nothing more is said
	}
	k.before = nil
	k.renewSpare(0)
}

// idle runs a keeper that waits for its duty.
func (k *keeper) idle() {
	b := k.before
	if b.socket < 0 && k.died != 0 && time.Since(b.closed) > dieTime { // the keeper before was not told of this one, and has its duty
		k.ended = true
	}
}

// retire hands the duty of this keeper over.
func (k *keeper) retire(d *daemon, m *message) {
	if d != k.now || d.pidfd < 0 || k.died != 0 || k.before != nil {
		_ = send(m.fd, say("MINE=1")) // one that has gone needs no telling
		return
	}
	if k.next != nil {
		k.answer(k.next, "REFUSED="+underWay)
		k.drop(k.next)
		k.next = nil
	}
	k.dropSpares()
	_ = send(m.fd, say("DUTY=1")) // where the new keeper has died, the daemon starts another
	k.ended = true
}

// renewKeeper has a keeper of this daemon's program relieve the one of the daemon before. The caller has the lock. After an error the
// keeper before goes on.
func (l *Life) renewKeeper() error {
	cred, err := unix.GetsockoptUcred(l.socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	ours, theirs, err := pair()
	if err != nil {
		return err
	}
	retired := os.NewFile(uintptr(ours), "the keeper before")
	defer func() { _ = retired.Close() }() // the keeper before has its own
	duty := os.NewFile(uintptr(theirs), "duty")
	old, oldPID := l.socket, l.pid
	err = l.startKeeper(strconv.Itoa(int(cred.Pid)), duty)
	_ = duty.Close() // the new keeper has its own
	if err == nil {
		err = l.awaitKeeper()
	}
	if err != nil {
		if l.socket != old {
			_ = unix.Kill(l.pid, unix.SIGKILL) // it may have the duty, where the keeper before is dead
			_ = unix.Close(l.socket)           // nobody is at the other end
		}
		l.socket, l.pid = old, oldPID
		return err
	}
	_ = send(old, say("RETIRE=1").with(ours)) // one that has died needs no telling
	leave(old)
	return nil
}

// leave closes a socket once its peer has. An earlier close would lose data that the peer has not read, if data waits here.
func leave(socket int) {
	_ = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(leaveTime / time.Second)})
	for {
		m, err := receive(socket)
		m.close()
		if err != nil {
			break
		}
	}
	_ = unix.Close(socket) // of a peer that has gone
}

// awaitKeeper waits until a keeper has all that it must know.
func (l *Life) awaitKeeper() error {
	_ = unix.SetsockoptTimeval(l.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: keeperStart})
	defer func() { _ = unix.SetsockoptTimeval(l.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{}) }()
	for {
		m, err := receive(l.socket)
		m.close()
		if err != nil {
			return fmt.Errorf("wait for the new keeper: %w", err)
		}
		if m.fields["KEEPS"] != "" {
			return nil
		}
	}
}

// keeperStart is how many seconds a new keeper has.
const keeperStart = 5

// Dying tells whether a process has ended, or was killed, and will end without another instruction of its program.
func Dying(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return true
	}
	_, after, _ := bytes.Cut(text, []byte("\nState:"))
	if state := bytes.TrimSpace(after); len(state) > 0 && (state[0] == 'Z' || state[0] == 'X') {
		return true
	}
	_, after, _ = bytes.Cut(text, []byte("\nSigPnd:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	pending, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64) // proc_pid_status(5): a mask in hexadecimal
	return err == nil && pending&(1<<(unix.SIGKILL-1)) != 0
}
