package fs

import (
	"context"
	"errors"
	"fmt"
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
		err = m.bindByClone(fd)
	} else {
		err = m.bindByHelper(ctx, socket)
	}
	m.control.binding.Store(false)
	if err != nil {
		return nil, "", err
	}
	const backlog = 128
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, "", fmt.Errorf("listen on %s: %w", socketName, err)
	}
	listener, err := net.FileListener(socket)
	return listener, fmt.Sprintf("%d:%d", info.Major, info.Minor), err
}

// bindByClone binds the socket in a private clone of the mount.
func (m *Mount) bindByClone(fd int) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, m.point, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cloning the mount for it needs CAP_SYS_ADMIN and Linux 5.12: %w", err)
	}
	defer func() { _ = unix.Close(tree) }() // the socket keeps what it needs
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return fmt.Errorf("make the clone of the mount private: %w", err)
	}
	return bindIn(tree, ControlName, fd)
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

// helperTime bounds the helper, which needs milliseconds.
const helperTime = 10 * time.Second

// bindByHelper lets a process bind the socket that has its own mount namespace, as an ordinary user may have in a user
// namespace. The namespace goes with the process; its copy of the mount stays for the socket alone.
func (m *Mount) bindByHelper(ctx context.Context, socket *os.File) error {
	if len(m.opt.Helper) == 0 {
		return errors.New("only root binds it without a helper")
	}
	ctx, cancel := context.WithTimeout(ctx, helperTime)
	defer cancel()
	helper := exec.CommandContext(ctx, m.opt.Helper[0], append(m.opt.Helper[1:], m.point)...)
	helper.ExtraFiles = []*os.File{socket}
	helper.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}
	said, err := helper.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return fmt.Errorf("the helper in a user namespace failed: %s", strings.TrimSpace(string(said)))
	case err != nil:
		return fmt.Errorf("an ordinary user needs user namespaces for it, and this system has them forbidden or used up (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): %w", err)
	}
	return nil
}

// HelperFD is where the command that Options.Helper names finds the socket.
const HelperFD = 3

// BindForUser is the work of that command: it binds the socket in the mount at point, as it sees it.
func BindForUser(point string) error { return bindIn(unix.AT_FDCWD, point+"/"+ControlName, HelperFD) }
