package handover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Env has the number of the socket to the holder in the environment of a daemon that it started.
const Env = "HBMFS_HOLDER"

// resent marks the numbers of requests that the kernel sends again (FUSE_UNIQUE_RESEND, linux/fuse.h).
const resent = 1 << 63

// Resent tells whether the kernel sends a request again, and its number without the mark.
func Resent(unique uint64) (again bool, number uint64) { return unique&resent != 0, unique &^ resent }

// messageMax bounds a message: the command line of a daemon is the longest.
const messageMax = 128 << 10

// message goes between holder and daemon. fd is -1 where there is none; the receiver closes it.
type message struct {
	fields map[string]string
	fd     int
}

func say(words ...string) message { // "NAME=VALUE"
	m := message{map[string]string{}, -1}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		m.fields[name] = value
	}
	return m
}

func (m message) with(fd int) message { m.fd = fd; return m }

func (m message) text() []byte {
	var b bytes.Buffer
	for name, value := range m.fields {
		fmt.Fprintf(&b, "%s=%s\n", name, value)
	}
	return b.Bytes()
}

// send sends a message, without waiting for room.
func send(socket int, m message) error {
	var oob []byte
	if m.fd >= 0 {
		oob = unix.UnixRights(m.fd)
	}
	for {
		err := unix.Sendmsg(socket, m.text(), oob, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// receive waits for a message. The end of the peer is io.EOF.
func receive(socket int) (m message, err error) {
	var n, k, flags int
	for {
		n, _, err = unix.Recvfrom(socket, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p, oob := make([]byte, max(1, min(n, messageMax))), make([]byte, unix.CmsgSpace(4*4))
	for err == nil {
		n, k, flags, _, err = unix.Recvmsg(socket, p, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	m.fd = -1
	if err != nil {
		return m, os.NewSyscallError("receive", err)
	}
	var fds []int
	if parts, parseErr := unix.ParseSocketControlMessage(oob[:k]); parseErr == nil {
		for i := range parts {
			got, _ := unix.ParseUnixRights(&parts[i]) // of another kind: it has none
			fds = append(fds, got...)
		}
	}
	for i, fd := range fds {
		if i > 0 {
			_ = unix.Close(fd) // nobody asked for it
			continue
		}
		m.fd = fd
	}
	if n == 0 && k == 0 {
		return m, io.EOF
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		m.close()
		return m, errors.New("a message of the hand-over is too long")
	}
	m.fields = map[string]string{}
	for line := range strings.Lines(string(p[:n])) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		m.fields[name] = value
	}
	return m, nil
}

func (m *message) close() {
	if m.fd >= 0 {
		_ = unix.Close(m.fd) // a copy
		m.fd = -1
	}
}

// now is CLOCK_MONOTONIC in nanoseconds, the same in all processes.
func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // never fails: every kernel has it
	return t.Nano()
}

// pair makes a socket with two ends.
func pair() (ours, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, os.NewSyscallError("socketpair", err)
	}
	return fds[0], fds[1], nil
}
