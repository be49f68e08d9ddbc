package fs

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
	if err := errors.Join(tcp.SetLinger(60), tcp.SetWriteDeadline(time.Now().Add(50*time.Millisecond))); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = tcp.Write(make([]byte, 1<<20))
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
	m := &Mount{control: newChannel(), log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { m.accept(ctx, listener); close(over) }()
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
	time.Sleep(100 * time.Millisecond)  // the session receives it
	began := time.Now()
	cancel()
	select {
	case <-over:
	case <-time.After(5 * endTime):
		t.Errorf("after %v the end is still waited for", time.Since(began))
	}
}
