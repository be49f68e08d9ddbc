package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// address is the name of a keeper's socket, in the abstract namespace: it needs no directory, and ends with the keeper. Both ends
// check who is at the other.
func address(pid int) *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: "@hbmfs-keeper/" + strconv.Itoa(pid)}
}

// listen makes the socket of this process, -1 where it cannot.
func listen() int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if unix.Bind(fd, address(os.Getpid())) != nil || unix.Listen(fd, 1) != nil {
		_ = unix.Close(fd) // nobody can have connected
		return -1
	}
	return fd
}

// underWay is the answer of a keeper that has no daemon which could be replaced.
const underWay = "a hand-over is under way: try again"

// request handles a connection of [Upgrade].
func (k *keeper) request() {
	conn, _, err := unix.Accept4(k.listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return
	}
	refuse := func(why string) {
		_ = send(conn, say("REFUSED="+why)) // who has gone needs no answer
		_ = unix.Close(conn)
	}
	cred, err := unix.GetsockoptUcred(conn, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || (cred.Uid != 0 && cred.Uid != uint32(os.Geteuid())) {
		refuse("only root and the user of the mount may do that")
		return
	}
	_ = unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}) // it sends its request at once
	m, err := receive(conn)
	switch {
	case err == nil && m.fields["COPY"] != "":
		m.close()
		k.copies(conn, m.fields["FOLLOW"] != "")
		return
	case err != nil || m.fields["UPGRADE"] == "" || m.fd < 0:
		m.close()
		refuse("the request makes no sense")
		return
	case k.next != nil || k.died != 0 || k.before != nil:
		m.close()
		refuse(underWay)
		return
	}
	program, err := unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 100)
	m.close()
	if err == nil {
		k.next, err = k.start(program, false, k.now, -1)
	}
	if err != nil {
		refuse(err.Error())
		return
	}
	k.next.program, k.next.asked, k.next.check = program, conn, m.fields["UPGRADE"] == "check"
}

// answer tells who asked for a daemon how it went.
func (k *keeper) answer(d *daemon, word string) {
	if d.asked >= 0 {
		_ = send(d.asked, say(word)) // who has gone needs no answer
		_ = unix.Close(d.asked)
		d.asked = -1
	}
}

// upgradeTime bounds an upgrade: it is longer than a holder's own deadline.
const upgradeTime = graceTime + 10*time.Second

// Upgrade asks a keeper to have a program, a file, serve the mount, and returns the process of the new daemon. With check nothing changes:
// it asks whether the program could. A refusal wraps [ErrRefused], and the mount goes on as it was. Upgrade waits for another hand-over
// that is under way, and for a keeper that is only starting.
func Upgrade(ctx context.Context, keeper int, program string, check bool) (pid int, err error) {
	const startTime = 3 * time.Second // that a keeper may take until its socket listens
	for began := time.Now(); ; {
		pid, err = request(keeper, program, check)
		var refused *refusal
		starts := errors.Is(err, unix.ECONNREFUSED) && time.Since(began) < startTime
		if !starts && (!errors.As(err, &refused) || refused.why != underWay) || pause.For(ctx, 20*time.Millisecond) != nil {
			return pid, err
		}
	}
}

// refusal is a keeper's answer.
type refusal struct{ why string }

func (r *refusal) Error() string { return ErrRefused.Error() + ": " + r.why }
func (r *refusal) Unwrap() error { return ErrRefused }

// dial connects to a keeper, whose answer may take upgradeTime.
func dial(keeper int) (conn int, err error) {
	conn, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err = unix.Connect(conn, address(keeper)); err != nil {
		err = fmt.Errorf("ask the keeper (pid %d): %w", keeper, err)
	} else if cred, credErr := unix.GetsockoptUcred(conn, unix.SOL_SOCKET, unix.SO_PEERCRED); credErr != nil || int(cred.Pid) != keeper {
		err = fmt.Errorf("ask the keeper (pid %d): another process answers in its name", keeper)
	}
	if err != nil {
		_ = unix.Close(conn) // nothing was said
		return -1, err
	}
	_ = unix.SetsockoptTimeval(conn, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(upgradeTime / time.Second)})
	return conn, nil
}

// request asks a keeper once.
func request(keeper int, name string, check bool) (pid int, err error) {
	conn, err := dial(keeper)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(conn) }() // the answer has come, or will not
	program, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = program.Close() }() // the keeper has its own
	want := "now"
	if check {
		want = "check"
	}
	err = send(conn, say("UPGRADE="+want).with(int(program.Fd())))
	var m message
	if err == nil {
		m, err = receive(conn)
		m.close()
	}
	switch {
	case errors.Is(err, io.EOF):
		return 0, fmt.Errorf("the keeper (pid %d) has gone", keeper)
	case err != nil:
		return 0, fmt.Errorf("ask the keeper (pid %d): %w", keeper, err)
	case m.fields["OK"] == "":
		return 0, &refusal{m.fields["REFUSED"]}
	}
	return strconv.Atoi(m.fields["OK"])
}
