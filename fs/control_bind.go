package fs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bindControl binds the socket inside the mount, and returns the device number of the mount.
//
// A bound socket keeps the mount busy that it was reached by, so it is bound by way of a mount that nobody else sees.
// What it then keeps alive is the filesystem: untilUnmounted says when to close it.
func (m *Mount) bindControl(ctx context.Context) (net.Listener, string, error) {
	info, err := mountAt(m.point)
	if err != nil || info == nil {
		return nil, "", errors.Join(errors.New("the mount is not in the mount table"), err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, "", err
	}
	socket := os.NewFile(uintptr(fd), socketName)
	defer func() { _ = socket.Close() }() // the listener has its own
	m.control.binding.Store(true)
	if os.Geteuid() == 0 {
		err = m.bindByClone(ctx, socket)
	} else {
		err = m.bindForUser(ctx, socket)
	}
	m.control.binding.Store(false)
	if err != nil {
		return nil, "", err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) // where it is not known (Linux 6.16), accept bounds what comes of it
	const backlog = 128
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, "", fmt.Errorf("listen on %s: %w", socketName, err)
	}
	listener, err := net.FileListener(socket)
	return listener, fmt.Sprintf("%d:%d", info.Major, info.Minor), err
}

// bindByClone has the socket bound in a private clone of the mount.
func (m *Mount) bindByClone(ctx context.Context, socket *os.File) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, m.point, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cloning the mount for it needs CAP_SYS_ADMIN and Linux 5.12: %w", err)
	}
	tree := os.NewFile(uintptr(fd), m.point)
	defer func() { _ = tree.Close() }() // the socket keeps what it needs
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return fmt.Errorf("make the clone of the mount private: %w", err)
	}
	said, err := m.runHelper(ctx, fmt.Sprintf("/proc/self/fd/%d", HelperFD+1), nil, socket, tree)
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
	defer func() { _ = unix.Close(dir) }() // the socket keeps what it needs
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, socketName)}); err != nil {
		return fmt.Errorf("bind %s: %w", socketName, err)
	}
	return nil
}

// bindForUser lets the helper have a mount namespace of its own, as an ordinary user may in a user namespace. The namespace
// goes with the helper; its copy of the mount stays for the socket alone.
func (m *Mount) bindForUser(ctx context.Context, socket *os.File) error {
	said, err := m.runHelper(ctx, m.point, &syscall.SysProcAttr{
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

// helperTime bounds the helper, which needs milliseconds.
const helperTime = 10 * time.Second

// runHelper has a process bind the socket in the mount that it sees at point. The daemon must not do that itself: one that
// is killed while it waits for its own answer never ends, since the thread that waits keeps the connection to the kernel.
func (m *Mount) runHelper(ctx context.Context, point string, attr *syscall.SysProcAttr, files ...*os.File) (said string, err error) {
	if len(m.opt.Helper) == 0 {
		return "", errors.New("there is no helper that binds it")
	}
	// For the same reason the helper must not have that connection, which go-fuse leaves open for programs that are started.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return "", fmt.Errorf("keep open files from the helper: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTime)
	defer cancel()
	helper := exec.CommandContext(ctx, m.opt.Helper[0], append(m.opt.Helper[1:], point)...)
	helper.ExtraFiles = files
	helper.SysProcAttr = attr
	out, err := helper.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// HelperFD is where the command that Options.Helper names finds the socket.
const HelperFD = 3

// Bind is the work of that command: it binds the socket in the mount at point, as it sees it.
func Bind(point string) error { return bindIn(unix.AT_FDCWD, point+"/"+ControlName, HelperFD) }
