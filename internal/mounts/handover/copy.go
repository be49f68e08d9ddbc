package handover

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Copy has a holder's descriptors of one mount, by name. As long as it is open, readers wait for another daemon, also where daemon
// and keeper are dead. So it is for a process that shares no fate with them, and its owner bounds the time.
type Copy map[string]int

// copyOf asks a keeper for a copy. asked: the name that its daemon has asked for ahead of it.
func copyOf(keeper int) (c Copy, asked string, err error) {
	conn, err := dial(keeper)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = unix.Close(conn) }() // the answer has come, or will not
	return askCopy(conn)
}

// askCopy asks on a connection.
func askCopy(conn int, words ...string) (c Copy, asked string, err error) {
	if err := send(conn, say(append(words, "COPY=1")...)); err != nil {
		return nil, "", err
	}
	m := &Mirror{conn: conn}
	_, c, err = m.Next()
	return c, m.asked, err
}

// HoldTime is how long a process that cannot start daemons holds a mount that nobody serves.
const HoldTime = graceTime

// Clone makes another copy.
func (c Copy) Clone() Copy {
	all := Copy{}
	for name, fd := range c {
		if fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil { // the daemon refuses missing ones
			all[name] = fd
		}
	}
	return all
}

// Close forgets the mount.
func (c Copy) Close() {
	for _, fd := range c {
		_ = unix.Close(fd) // the daemon has its own
	}
}

// Connected tells whether there is still a filesystem behind the connection.
func (c Copy) Connected() bool {
	fd, ok := c[Device]
	if !ok {
		return false
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, err := unix.Poll(poll, 0)
	return err != nil || poll[0].Revents&unix.POLLERR == 0
}

// connectionNumber asks the kernel for the number of a connection, "" where it does not tell.
func connectionNumber(fd int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd)) // where it cannot be read, it tells nothing
	_, after, _ := strings.Cut(string(text), "fuse_connection:")
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

// Offer is the holder of a daemon that was started with socket's other end and [Environment], until it goes on with the mount. No other
// process may serve the mount, or start a daemon for it. From then on the daemon has a keeper of its own.
func (c Copy) Offer(socket int) error {
	_ = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(graceTime / time.Second)})
	for name, fd := range c {
		if err := send(socket, say("FDNAME="+name).with(fd)); err != nil {
			return err
		}
	}
	if err := send(socket, say("HELD=1")); err != nil {
		return err
	}
	for {
		m, err := receive(socket)
		if err != nil {
			return fmt.Errorf("wait for the next daemon: %w", err)
		}
		m.close()
		switch {
		case m.fields["FAILED"] != "":
			return errors.New(m.fields["FAILED"])
		case m.fields["PREPARED"] != "":
			err = send(socket, say("ADOPT=crash", "DIED=0"))
		case m.fields["READY"] != "":
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Environment tells a daemon the number of its socket to [Copy.Offer].
func Environment(socket int) string { return Env + "=" + strconv.Itoa(socket) + " " + ByKeeper }

// Pair makes the socket for [Copy.Offer], with two ends.
func Pair() (ours, theirs int, err error) { return pair() }

// Mirror is a connection on which copies of many mounts are told, in both directions.
type Mirror struct {
	conn  int
	parts map[string]Copy // whose end has not come
	asked string          // for the copy that came last: see settle.go
}

// NewMirror makes a mirror of a SOCK_SEQPACKET socket. The mirror does not close it.
func NewMirror(conn int) *Mirror { return &Mirror{conn: conn} }

// Send tells of a mount; a nil copy says that the mount is over.
func (m *Mirror) Send(mount string, c Copy) error { return sendCopy(m.conn, mount, c) }

// sendCopy sends a copy. words are for its end.
func sendCopy(conn int, mount string, c Copy, words ...string) error {
	for name, fd := range c {
		if err := send(conn, say("MOUNT="+mount, "FDNAME="+name).with(fd)); err != nil {
			return err
		}
	}
	end := "HELD=1"
	if c == nil {
		end = "GONE=1"
	}
	return send(conn, say(append(words, "MOUNT="+mount, end)...))
}

// Next waits for a mount that is told of. The caller closes the copy, which is nil where the mount is over. The end is an error.
func (m *Mirror) Next() (mount string, c Copy, err error) {
	for {
		said, err := receive(m.conn)
		if err != nil {
			for _, c := range m.parts {
				c.Close()
			}
			return "", nil, err
		}
		mount := said.fields["MOUNT"]
		switch name := said.fields["FDNAME"]; {
		case said.fields["GONE"] != "":
			said.close()
			return mount, nil, nil
		case said.fields["HELD"] != "":
			said.close()
			c := m.parts[mount]
			delete(m.parts, mount)
			m.asked = said.fields["SETTLE"]
			return mount, c, nil
		case said.fd >= 0:
			if m.parts == nil {
				m.parts = map[string]Copy{}
			}
			if m.parts[mount] == nil {
				m.parts[mount] = Copy{}
			}
			if old, ok := m.parts[mount][name]; ok {
				_ = unix.Close(old) // the newer one takes its place
			}
			m.parts[mount][name] = said.fd
		}
	}
}
