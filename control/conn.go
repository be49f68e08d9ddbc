package control

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn carries frames, and descriptors with them, over a connected SOCK_SEQPACKET socket: one message is one frame. One
// goroutine may send while another receives.
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

// SetReadDeadline ends Wait and Receive at t, the zero time never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// SetWriteDeadline ends Send at t, the zero time never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// linger is how long to stay on the CPU's doorstep for a message that is expected now: being parked and woken by Go's
// poller costs more than the daemon needs for an answer.
const linger = 200 * time.Microsecond

// arrived waits a moment for something to read.
func arrived(fd uintptr) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	timeout := unix.NsecToTimespec(linger.Nanoseconds())
	n, _ := unix.Ppoll(poll, &timeout, nil) // whatever is wrong, the next read will say
	return n > 0
}

// Wait returns when a message has arrived or the connection has ended. So an idle connection needs no buffer.
func (c *Conn) Wait() error {
	var b [1]byte
	return c.raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK)
		return !errors.Is(err, unix.EAGAIN)
	})
}

// Received is one message.
type Received struct {
	N         int   // bytes
	FDs       []int // descriptors, which the caller closes
	Truncated bool  // descriptors are missing: this process has too many open, or none were asked for
}

// Receive waits for a message and puts it into p, which has at least [MaxFrame] bytes. It takes at most fds
// descriptors. The end of the connection is io.EOF.
func (c *Conn) Receive(p []byte, fds int) (got Received, err error) {
	var oob []byte
	if fds > 0 {
		oob = make([]byte, unix.CmsgSpace(4*fds))
	}
	var n, oobn, flags int
	var recvErr error
	lingered := false
	err = c.raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, flags, _, recvErr = unix.Recvmsg(int(fd), p, oob, unix.MSG_CMSG_CLOEXEC)
			switch {
			case errors.Is(recvErr, unix.EINTR):
			case errors.Is(recvErr, unix.EAGAIN) && !lingered:
				lingered = true
				arrived(fd)
			default:
				return !errors.Is(recvErr, unix.EAGAIN)
			}
		}
	})
	if err = errors.Join(err, recvErr); err != nil {
		return Received{}, err
	}
	got.N = n
	got.FDs, err = descriptors(oob[:oobn])
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("a message of more than %d bytes: %w", len(p), errMalformed)
	}
	if err != nil {
		CloseAll(got.FDs)
		return Received{}, err
	}
	got.Truncated = flags&unix.MSG_CTRUNC != 0
	return got, nil
}

func descriptors(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	var fds []int
	for i := range messages {
		more, parseErr := unix.ParseUnixRights(&messages[i])
		if parseErr != nil && !errors.Is(parseErr, unix.EINVAL) { // EINVAL: not descriptors
			err = errors.Join(err, parseErr)
		}
		fds = append(fds, more...)
	}
	return fds, err
}

// CloseAll closes descriptors that were opened for reading.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // nothing was written
	}
}

// Send sends a frame, and waits where the peer does not read.
func (c *Conn) Send(frame []byte) error { return c.send(frame, nil, true) }

// SendNow sends a frame with descriptors, of which the caller keeps its own. It does not wait for a peer that does not
// read (EAGAIN): what is on its way counts against the sender's descriptors.
func (c *Conn) SendNow(frame []byte, fds []int) error { return c.send(frame, fds, false) }

func (c *Conn) send(frame []byte, fds []int, wait bool) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	var sendErr error
	err := c.raw.Write(func(fd uintptr) bool {
		for {
			_, sendErr = unix.SendmsgN(int(fd), frame, oob, nil, unix.MSG_NOSIGNAL)
			if !errors.Is(sendErr, unix.EINTR) {
				return !wait || !errors.Is(sendErr, unix.EAGAIN)
			}
		}
	})
	return errors.Join(err, sendErr)
}
