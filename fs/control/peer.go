package control

import (
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
)

// peer is the other end of a connection. The kernel keeps the user and groups that connected: a connection that is handed
// on keeps them, as an open file does.
type peer struct {
	uid, gid   uint32
	pid        int // of the process that connected; 0 where it is of a PID namespace that cannot be seen from here
	groups     []uint32
	connection syscall.RawConn
	process    *process // where it may have capabilities; else nil
}

func peerOf(c *net.UnixConn) (*peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &peer{connection: raw}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); optErr != nil {
			return
		}
		p.uid, p.gid, p.pid = cred.Uid, cred.Gid, int(cred.Pid)
		if p.groups, optErr = peerGroups(fd); optErr == nil && p.uid == 0 {
			p.process = &process{connection: raw, pid: int(cred.Pid)}
		}
	})
	return p, errors.Join(err, optErr)
}

// user is the peer as the kernel shall see it: root with its capabilities, where it has them.
func (p *peer) user() asuser.User {
	p.process.forget()
	return asuser.User{UID: p.uid, GID: p.gid, Groups: p.groups, Capable: p.process.passesAll()}
}

// pidfd opens the process that connected (SO_PEERPIDFD, Linux 6.5), nil where the kernel does not tell it.
func (p *peer) pidfd() (f *os.File) {
	_ = p.connection.Control(func(fd uintptr) { // one that is closed says nothing
		if pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			f = os.NewFile(uintptr(pidfd), "peer")
		}
	})
	return f
}

// lives tells whether the process that connected lives. It is true where the kernel does not tell.
func (p *peer) lives() bool {
	pidfd := p.pidfd()
	if pidfd == nil {
		return true
	}
	defer func() { _ = pidfd.Close() }() // it was only asked
	poll := [1]unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(poll[:], 0)
	return err == nil && n == 0
}

// peerGroups returns the supplementary groups of a peer (SO_PEERGROUPS, Linux 4.13).
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, 32)
	for {
		size := uint32(4 * len(groups))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == syscall.ERANGE && int(size/4) > len(groups):
			groups = make([]uint32, size/4)
		case errno != 0:
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
		default:
			return groups[:size/4], nil
		}
	}
}

// May reports whether the peer has the rights of one class, 4 to read and 1 to enter: as the owner, or else as one of the
// group, or else as anybody. The first class that fits decides, as in acl_permission_check of Linux.
func (p *peer) May(uid, gid uint32, perm, rights uint16) bool {
	switch {
	case p.uid == uid:
		rights <<= 6
	case p.gid == gid || slices.Contains(p.groups, gid):
		rights <<= 3
	}
	return perm&rights == rights || p.process.passesAll()
}

// process is a process of root. Root gets past permissions by capabilities alone. A container may have none, and they count
// in the process's own user namespace alone.
//
// The kernel does not keep the capabilities with which a peer connected, so the daemon looks at the process when it
// matters. It looks at root's only: another user's process may have got capabilities since, from a program that has some
// and knows nothing of the connection. Root can have them from any program.
type process struct {
	connection syscall.RawConn
	pid        int // of the process that connected; 0 where it is of a PID namespace that cannot be seen from here

	known, passes bool // the answer of ask, until forget
}

// forget makes passesAll ask the kernel again.
func (p *process) forget() {
	if p != nil {
		p.known = false
	}
}

// passesAll reports whether the kernel lets the process read every file in spite of its permissions.
func (p *process) passesAll() bool {
	if p == nil {
		return false
	}
	if !p.known {
		p.known, p.passes = true, p.ask()
	}
	return p.passes
}

// ask looks in an order in which no change helps the process. A process may enter a user namespace of its own, with all
// capabilities there, but never come back. So ask looks at the namespace after them. Another process may get the number of
// one that has ended: so ask looks last whether it lives.
func (p *process) ask() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(p.pid)}
	var sets [2]unix.CapUserData
	if p.pid == 0 || unix.Capget(&header, &sets[0]) != nil || sets[0].Effective&(1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_DAC_READ_SEARCH) == 0 {
		return false
	}
	var mine, its unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &mine) != nil || unix.Stat("/proc/"+strconv.Itoa(p.pid)+"/ns/user", &its) != nil || mine.Dev != its.Dev || mine.Ino != its.Ino {
		return false
	}
	lives := false
	_ = p.connection.Control(func(fd uintptr) { // one that is closed says nothing
		if !asTrusted(int(fd)) {
			return
		}
		if pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil { // Linux 6.5
			poll := [1]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
			n, err := unix.Poll(poll[:], 0)
			lives = err == nil && n == 0
			_ = unix.Close(pidfd) // it was only asked
		}
	})
	return lives
}

// asTrusted reports whether the peer of a socket has the label of this process. A security module such as SELinux may
// refuse a capability to processes of another label, which their sets of capabilities do not show.
func asTrusted(socket int) bool {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer control.CloseAll(pair[:])
	its, itsErr := unix.GetsockoptString(socket, unix.SOL_SOCKET, unix.SO_PEERSEC)
	mine, mineErr := unix.GetsockoptString(pair[0], unix.SOL_SOCKET, unix.SO_PEERSEC)
	none := errors.Is(itsErr, unix.ENOPROTOOPT) && errors.Is(mineErr, unix.ENOPROTOOPT)
	return none || (itsErr == nil && mineErr == nil && its == mine)
}
