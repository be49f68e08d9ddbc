package control

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// line is the client's end of a connection. It waits on its caller's thread and not in Go's poller, since an answer
// comes after microseconds. Being parked and woken by the poller would take longer than the daemon does.
type line struct {
	socket *os.File // a blocking one, which Go's poller leaves alone
	raw    syscall.RawConn
}

// look is how often a wait looks whether its context has ended, or the line was closed.
const look = 10 * time.Millisecond

// connect connects to the socket at an address. It waits where the daemon has more connections to accept than it has
// room for.
func connect(ctx context.Context, address string) (*line, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: address}); !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
		select {
		case <-ctx.Done():
			_ = unix.Close(fd) // nothing was sent
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
	if err != nil {
		_ = unix.Close(fd) // nothing was sent
		return nil, os.NewSyscallError("connect", err)
	}
	return newLine(fd)
}

// newLine takes a connected socket over.
func newLine(fd int) (*line, error) {
	if err := unix.SetNonblock(fd, false); err != nil { // each call says by itself that it must not wait
		_ = unix.Close(fd) // nothing was sent
		return nil, os.NewSyscallError("fcntl", err)
	}
	l := &line{socket: os.NewFile(uintptr(fd), "control")}
	var err error
	if l.raw, err = l.socket.SyscallConn(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// close ends the connection. A call that waits on it gets os.ErrClosed.
func (l *line) close() error { return l.socket.Close() }

// use calls f with the descriptor, which stays open meanwhile.
func (l *line) use(f func(fd int)) error {
	if l.raw.Control(func(fd uintptr) { f(int(fd)) }) != nil { // its only reason, which it does not name
		return os.ErrClosed
	}
	return nil
}

// wait returns when there is something to read, or room to write, or ctx ends.
func (l *line) wait(ctx context.Context, events int16) error {
	for is := false; !is; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.use(func(fd int) { is = ready(fd, events, look) }); err != nil {
			return err
		}
	}
	return nil
}

// receive waits for a message and puts it into p, which has at least [MaxFrame] bytes, with at most [MaxObjects]
// descriptors. The end of the connection is io.EOF.
func (l *line) receive(ctx context.Context, p []byte) (got Received, err error) {
	for {
		if err := l.wait(ctx, unix.POLLIN); err != nil {
			return Received{}, err
		}
		useErr := l.use(func(fd int) { got, err = receive(fd, p, MaxObjects) })
		if err = errors.Join(useErr, err); !errors.Is(err, unix.EAGAIN) {
			return got, err
		}
	}
}

// send sends a frame, and waits where the daemon does not read.
func (l *line) send(ctx context.Context, frame []byte) (err error) {
	for {
		useErr := l.use(func(fd int) { err = transmit(fd, frame, nil) })
		if err = errors.Join(useErr, err); !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if err := l.wait(ctx, unix.POLLOUT); err != nil {
			return err
		}
	}
}
