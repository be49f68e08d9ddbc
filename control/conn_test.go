package control

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connected gives both ends of a connection: the daemon's, and a client that need not keep to anything.
func connected(t *testing.T) (*Conn, *net.UnixConn) {
	t.Helper()
	address := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unixpacket", address)
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("unixpacket", address)
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := NewConn(server.(*net.UnixConn))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close() // the test may have
		if err := errors.Join(client.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
	return conn, client.(*net.UnixConn)
}

func TestDescriptorsOfAReaderAreAnError(t *testing.T) {
	conn, client := connected(t)
	sent, err := os.Create(filepath.Join(t.TempDir(), "sent"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := client.WriteMsgUnix([]byte("hello"), unix.UnixRights(int(sent.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Receive(make([]byte, MaxFrame)); !errors.Is(err, errRights) {
		t.Errorf("a message with a descriptor: %v", err)
	}
	if n := descriptorsOf(t, sent.Name()); n != 1 {
		t.Errorf("%d descriptors of the file are open, want the sender's alone", n)
	}
	if err := sent.Close(); err != nil {
		t.Error(err)
	}
}

func TestCutEndsAConnectionForBothEnds(t *testing.T) {
	conn, client := connected(t)
	waits := make(chan error)
	go func() { waits <- conn.Wait() }()
	conn.Cut()
	if err := <-waits; err == nil {
		if _, err := conn.Receive(make([]byte, MaxFrame)); err == nil {
			t.Error("a connection that was cut still receives")
		}
	}
	if err := client.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the peer reads %d bytes, %v", n, err)
	}
	conn.Cut() // a second time it does nothing
}

// descriptorsOf counts this process's descriptors of a file.
func descriptorsOf(t *testing.T, path string) (n int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); to == path { // some are closed by now
			n++
		}
	}
	return n
}
