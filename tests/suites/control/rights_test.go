package control_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// lingering makes TCP connections whose last close waits for a minute: they are to send what nobody takes.
func lingering(t *testing.T) func() *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var held []net.Conn
	t.Cleanup(func() { // a child that still waits is let go
		for _, c := range held {
			must(t, c.(*net.TCPConn).SetLinger(0))
			must(t, c.Close())
		}
		must(t, l.Close())
	})
	return func() *os.File {
		c, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		peer, err := l.Accept()
		must(t, err)
		held = append(held, peer)
		must(t, c.(*net.TCPConn).SetLinger(60))
		must(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
		for err == nil {
			_, err = c.Write(make([]byte, 1<<20))
		}
		f, err := c.(*net.TCPConn).File()
		must(t, errors.Join(err, unix.SetNonblock(int(f.Fd()), true), c.Close()))
		return f
	}
}

// TestSocketsSentToTheDaemon sends it descriptors whose last close waits. Linux 6.16 refuses that for it.
func TestSocketsSentToTheDaemon(t *testing.T) {
	m, names, fds := victim(t)
	next := lingering(t)
	refused := 0
	for i := range 20 {
		c, f := greeted(t, m), next()
		message := frame(control.TypeLookup, 3, (&control.Lookup{Paths: names[:1]}).AppendTo)
		raw, err := c.SyscallConn()
		must(t, err)
		must(t, raw.Control(func(fd uintptr) {
			err = unix.Sendmsg(int(fd), message, unix.UnixRights(int(f.Fd())), nil, unix.MSG_DONTWAIT)
		}))
		if errors.Is(err, syscall.EPERM) {
			refused++
		} else {
			must(t, err)
		}
		must(t, closeNow(f))
		must(t, c.Close())
		if i == 0 && refused == 0 && newEnough(t) {
			t.Error("the daemon takes descriptors, and the kernel could refuse them")
		}
	}
	t.Logf("%d of 20 messages with a socket are refused", refused)
	served(t, m, names[0]) // which does not wait as long as the sockets linger
	if refused == 20 {
		m.idle(t, fds)
	}
	m.EndsWell(t, m.pid, m.log, patience) // although it may have descriptors whose close waits
}

// closeNow closes a descriptor that another process has, too, without waiting for what it was sent.
func closeNow(f *os.File) error {
	done := make(chan error, 1)
	go func() { done <- f.Close() }() // it ends when the other end does
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}

// newEnough reports whether the kernel has SO_PASSRIGHTS.
func newEnough(t *testing.T) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS)
	must(t, unix.Close(fd))
	return err == nil
}
