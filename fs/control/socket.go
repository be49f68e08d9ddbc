package control

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
)

// listen makes the control socket, or takes that of the daemon before: it cannot be made again in the sealed superblock.
func (s *Server) listen(ctx context.Context) (device string, err error) {
	info, err := mountpoint.At(s.opt.Point)
	if err != nil || info == nil {
		return "", errors.Join(errors.New("the mount is not in the mount table"), err)
	}
	var listener net.Listener
	if s.opt.Life.Adopts() {
		f := s.opt.Life.Took(keptControl)
		if f == nil {
			return "", errors.New("the daemon before had none")
		}
		_ = unix.Listen(int(f.Fd()), backlog) // from now on the kernel names this process to its peers: see mountpoint.DaemonOf
		listener, err = net.FileListener(f)
		_ = f.Close() // the listener has its own
	} else {
		listener, err = s.bindControl(ctx)
		if s.opt.Drafts == nil { // otherwise it is written
			if sealErr := sealReadOnly(s.opt.Point); sealErr != nil && ctx.Err() == nil {
				s.opt.Log.Debug("the superblock stays writable, though nothing in it is", "reason", sealErr)
			}
		}
	}
	if err == nil {
		s.listener = listener.(*net.UnixListener)
	}
	return fmt.Sprintf("%d:%d", info.Major, info.Minor), err
}

// sealReadOnly makes the superblock of the mount read-only, once the socket is made in it. Otherwise the kernel would
// forget the access time at each passthrough read and ask for it at the next stat. Both would take 48 µs instead of 4.
// It needs root.
func sealReadOnly(point string) error {
	fd, err := unix.Fspick(unix.AT_FDCWD, point, unix.FSPICK_CLOEXEC|unix.FSPICK_NO_AUTOMOUNT)
	if err != nil {
		return fmt.Errorf("pick the filesystem at %s: %w", point, err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing is lost
	if err := unix.FsconfigSetFlag(fd, "ro"); err != nil {
		return err
	}
	return unix.FsconfigReconfigure(fd)
}

// backlog is how many connections may wait until the daemon accepts them.
const backlog = 128

// bindControl binds the socket inside the mount.
//
// A bound socket keeps the mount busy through which it was bound. So the helper binds it through a mount that nobody else
// sees. The socket then keeps the filesystem alive: untilUnmounted says when to close it.
func (s *Server) bindControl(ctx context.Context) (net.Listener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	socket := os.NewFile(uintptr(fd), mountpoint.SocketName)
	defer func() { _ = socket.Close() }() // the listener has its own
	s.binding.Store(true)
	if os.Geteuid() == 0 {
		err = s.bindByClone(ctx, socket)
	} else {
		err = s.bindForUser(ctx, socket)
	}
	s.binding.Store(false)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) // kernels before Linux 6.16 do not know it: see endTime
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", mountpoint.SocketName, err)
	}
	return net.FileListener(socket)
}

// bindByClone lets the helper bind the socket in a private clone of the mount.
func (s *Server) bindByClone(ctx context.Context, socket *os.File) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, s.opt.Point, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cloning the mount for it needs CAP_SYS_ADMIN and Linux 5.12: %w", err)
	}
	tree := os.NewFile(uintptr(fd), s.opt.Point)
	defer func() { _ = tree.Close() }() // the socket keeps its own references
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return fmt.Errorf("make the clone of the mount private: %w", err)
	}
	said, err := s.runHelper(ctx, fmt.Sprintf("/proc/self/fd/%d", helperFD+1), nil, socket, tree)
	if err != nil {
		return fmt.Errorf("the helper failed: %w: %s", err, said)
	}
	return nil
}

// bindIn binds a socket in a directory, whose path may be longer than a socket's address.
func bindIn(at int, path string, fd int) error {
	dir, err := unix.Openat(at, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(dir) }() // the socket keeps its own references
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, mountpoint.SocketName)}); err != nil {
		return fmt.Errorf("bind %s: %w", mountpoint.SocketName, err)
	}
	return nil
}

// bindForUser runs the helper in a user namespace, where an ordinary user may have a mount namespace. The namespace ends
// with the helper; its copy of the mount stays for the socket alone.
func (s *Server) bindForUser(ctx context.Context, socket *os.File) error {
	said, err := s.runHelper(ctx, s.opt.Point, &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}, socket)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return fmt.Errorf("the helper in a user namespace failed: %s", said)
	case err != nil:
		return fmt.Errorf("an ordinary user needs user namespaces for it, and this system has them forbidden or used up (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): %w", err)
	}
	return nil
}

// runHelper runs a process that binds the socket in the mount at point. The daemon must not do that itself: a daemon that
// is killed while it waits for its own answer never ends. Its waiting thread keeps the connection to the kernel.
func (s *Server) runHelper(ctx context.Context, point string, attr *syscall.SysProcAttr, files ...*os.File) (said string, err error) {
	if len(s.opt.Helper) == 0 {
		return "", errors.New("there is no helper that binds it")
	}
	// For the same reason the helper must not inherit that connection, which go-fuse opens without O_CLOEXEC.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return "", fmt.Errorf("keep open files from the helper: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, aside.HelperTime)
	defer cancel()
	helper := exec.CommandContext(ctx, s.opt.Helper[0], append(s.opt.Helper[1:], point)...)
	helper.ExtraFiles = files
	helper.SysProcAttr = attr
	out, err := helper.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// helperFD is the descriptor of the socket in the command that [Options] name as Helper.
const helperFD = 3

// Bind is the work of that command: it binds the socket in the mount that it sees at point.
func Bind(point string) error {
	return bindIn(unix.AT_FDCWD, point+"/"+mountpoint.ControlName, helperFD)
}

// Binds reports whether a request to make the control socket is this daemon's, once. From then on the socket is there.
func (s *Server) Binds() bool {
	if !s.binding.CompareAndSwap(true, false) {
		return false
	}
	s.bound.Store(true)
	return true
}

// settle bounds how often the mount table is parsed on a machine that mounts and unmounts all day.
const settle = 20 * time.Millisecond

// untilUnmounted returns when no mount of the device is left in this mount namespace, or ctx ends. Mounts in other
// namespaces and open files keep the filesystem, but not its socket. A bound socket, or a connection through it, would keep
// the daemon forever.
func untilUnmounted(ctx context.Context, device string) error {
	// Not an os.File: Go would poll it, too, and the kernel tells each change to one poller only.
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(table) }() // opened for reading: nothing is lost
	var wake [2]int
	if err := unix.Pipe2(wake[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer control.CloseAll(wake[:1])
	var closing sync.Once
	end := func() { closing.Do(func() { control.CloseAll(wake[1:]) }) }
	defer end()
	defer context.AfterFunc(ctx, end)()
	for {
		left, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
			return fmt.Sprintf("%d:%d", i.Major, i.Minor) != device, false
		})
		if err != nil || len(left) == 0 || ctx.Err() != nil {
			return err
		}
		poll := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}, {Fd: int32(wake[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if poll[1].Revents != 0 {
			return nil
		}
		time.Sleep(settle)
	}
}

// endTime bounds the wait for sessions, most of which end at once. But the kernel closes descriptors that a peer has sent
// along, and the last close of a socket may wait as long as its maker likes. SO_PASSRIGHTS refuses such descriptors. On
// older kernels the end of the process ends the session.
const endTime = 3 * time.Second

// accept accepts connections until ctx ends, and then ends them.
func (s *Server) accept(ctx context.Context, listener net.Listener) {
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	var sessions sync.WaitGroup
	defer s.awaitSessions(&sessions)
	for {
		c, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			// Most likely too many files are open: their users will close some.
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		k, err := s.newSession(c.(*net.UnixConn))
		if err != nil {
			_ = c.Close() // the peer has been told why, if it reads
			continue
		}
		sessions.Go(func() { k.run(ctx) })
	}
}

// awaitSessions waits until all have ended, or endTime is over.
func (s *Server) awaitSessions(sessions *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() { // ends with the sessions, or the process
		defer close(ended)
		sessions.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(endTime):
		s.opt.Log.Error("connections wait in the kernel for descriptors that their peers have sent along: they end with this process")
	}
}
