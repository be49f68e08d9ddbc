package control

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is the daemon's end of a connection: it carries frames, and descriptors with them, over a SOCK_SEQPACKET socket,
// where one message is one frame. It may be idle for hours without a thread.
type Conn struct {
	c   *net.UnixConn
	raw syscall.RawConn
}

// NewConn takes a connected socket over.
func NewConn(c *net.UnixConn) (*Conn, error) {
	raw, err := c.SyscallConn()
	return &Conn{c, raw}, err
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Cut closes the connection at once, even while Receive waits for the kernel to close descriptors that came with a message.
// [Conn.Close] would leave the socket open until then.
func (c *Conn) Cut() {
	if null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		_ = c.raw.Control(func(fd uintptr) { _ = unix.Dup3(null, int(fd), unix.O_CLOEXEC) }) // a closed socket needs none
		_ = unix.Close(null)                                                                 // it stands in the socket's place
	}
	_ = c.Close() // nothing is lost: the caller has given up the peer
}

// SetReadDeadline ends Wait and Receive at t, the zero time never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// linger is how long Soon waits.
const linger = 200 * time.Microsecond

// Soon waits a moment, and reports whether a message has arrived or the connection has ended. It takes a thread, which
// the kernel wakes in half the time that Go's poller needs.
func (c *Conn) Soon() bool {
	soon := false
	_ = c.raw.Control(func(fd uintptr) { soon = ready(int(fd), unix.POLLIN, linger) }) // a closed connection tells the next read
	return soon
}

// Wait returns when a message has arrived or the connection has ended. So an idle connection needs no buffer.
func (c *Conn) Wait() error {
	return c.raw.Read(func(fd uintptr) bool { return ready(int(fd), unix.POLLIN, 0) })
}

// errRights says that a message came with descriptors, which readers never send.
var errRights = errors.New("descriptors came with a message")

// Receive waits for a message and puts it into p, which has at least [MaxFrame] bytes. One with descriptors is an error:
// the kernel closes them before this returns, and that may take as long as their sender likes. The end of the connection
// is io.EOF.
func (c *Conn) Receive(p []byte) (n int, err error) {
	var got Received
	waitErr := c.raw.Read(func(fd uintptr) bool {
		got, err = receive(int(fd), p, 0)
		return !errors.Is(err, unix.EAGAIN)
	})
	if got.Truncated {
		err = errRights
	}
	return got.N, errors.Join(waitErr, err)
}

// Send sends a frame, and waits up to limit for a peer that does not read.
func (c *Conn) Send(frame []byte, limit time.Duration) error {
	err := c.SendNow(frame, nil)
	if !errors.Is(err, unix.EAGAIN) {
		return err
	}
	if err := c.c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	waitErr := c.raw.Write(func(fd uintptr) bool {
		err = transmit(int(fd), frame, nil)
		return !errors.Is(err, unix.EAGAIN)
	})
	return errors.Join(waitErr, err)
}

// SendNow sends a frame with descriptors, of which the caller keeps its own. It does not wait for a peer that does not read
// (EAGAIN): descriptors on their way count against the sender's limit.
func (c *Conn) SendNow(frame []byte, fds []int) (err error) {
	controlErr := c.raw.Control(func(fd uintptr) { err = transmit(int(fd), frame, fds) })
	return errors.Join(controlErr, err)
}
