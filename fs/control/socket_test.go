package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lingering gives a descriptor whose last close waits for a minute, or until the test ends.
func lingering(t *testing.T) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(peer.(*net.TCPConn).SetLinger(0), peer.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
	tcp := c.(*net.TCPConn)
	raw, err := tcp.SyscallConn()
	if err = errors.Join(err, tcp.SetLinger(60)); err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { // its peer reads nothing
		for err == nil {
			_, err = unix.Write(int(fd), make([]byte, 1<<20))
		}
	}); err != nil {
		t.Fatal(err)
	}
	f, err := tcp.File()
	if err = errors.Join(err, tcp.Close()); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTheEndIsBoundedWhereAPeerHoldsItUp sends a session what the kernel closes for a minute, on a socket that takes it.
func TestTheEndIsBoundedWhereAPeerHoldsItUp(t *testing.T) {
	address := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unixpacket", address)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { s.accept(ctx, listener); close(over) }()
	c, err := net.Dial("unixpacket", address)
	if err != nil {
		t.Fatal(err)
	}
	f := lingering(t)
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte("hello"), unix.UnixRights(int(f.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	_ = unix.SetNonblock(int(f.Fd()), true)
	closed := make(chan error, 1)
	go func() { closed <- f.Close() }() // it may be the last close, and end with the test
	untilReceived(t, c.(*net.UnixConn))
	cancel()
	select {
	case <-over:
	case <-time.After(10 * endTime):
		t.Errorf("after %v the end is still waited for", 10*endTime)
	}
}

// untilReceived waits until the peer has taken all that was sent.
func untilReceived(t *testing.T, c *net.UnixConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		left := 0
		if err := raw.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }); err != nil {
			t.Fatal(err)
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("%d bytes are not received: %v", left, err)
		}
		if left == 0 {
			return
		}
	}
}
