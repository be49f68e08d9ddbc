package control

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// Received is one message.
type Received struct {
	N         int   // bytes
	FDs       []int // descriptors, which the caller closes
	Truncated bool  // descriptors are missing: this process has too many open, or none were asked for
}

// receive takes a message off a socket and puts it into p. It does not wait: EAGAIN says that there is none. The end of
// the connection is io.EOF.
func receive(fd int, p []byte, fds int) (got Received, err error) {
	var oob [rightsSize]byte
	room := 0
	if fds > 0 {
		room = unix.CmsgSpace(4 * fds)
	}
	n, oobn, flags, _, err := unix.Recvmsg(fd, p, oob[:room], unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	for errors.Is(err, unix.EINTR) {
		n, oobn, flags, _, err = unix.Recvmsg(fd, p, oob[:room], unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	}
	if err != nil {
		return Received{}, err
	}
	got.N = n
	if oobn > 0 {
		got.FDs, err = descriptors(oob[:oobn])
	}
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

// rightsSize is the room for MaxObjects descriptors and their header, as CMSG_SPACE of the kernel computes it.
const rightsSize = 16 + 4*MaxObjects

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

// transmit sends a frame, with descriptors of which the sender keeps its own. It does not wait: EAGAIN says that the peer
// has not read earlier frames.
func transmit(fd int, frame []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		_, err := unix.SendmsgN(fd, frame, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// ready waits on this thread until a socket can be read from (POLLIN) or written to (POLLOUT), or the connection has
// ended, and reports whether that came within the limit.
func ready(fd int, events int16, limit time.Duration) bool {
	poll := [1]unix.PollFd{{Fd: int32(fd), Events: events}}
	timeout := unix.NsecToTimespec(limit.Nanoseconds())
	n, _ := unix.Ppoll(poll[:], &timeout, nil) // the next message reports any error
	return n > 0
}
