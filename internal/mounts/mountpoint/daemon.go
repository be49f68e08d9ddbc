package mountpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
)

// Daemon is the process that serves a mount. Close it.
type Daemon struct {
	PID int

	pidfd     int
	certain   bool // the kernel says that it serves this mount
	elsewhere bool // PID is its number in a PID namespace that is not seen from here
}

// ErrUntold says that this kernel does not tell which process serves which FUSE mount.
var ErrUntold = errors.New("the kernel does not tell which process serves the mount")

// FindDaemon finds the process that serves a mount, nil where none can be seen from here. Then it belongs to another user,
// lives in another PID namespace, or is gone. It asks /proc alone.
func FindDaemon(mount *mountinfo.Info) (*Daemon, error) {
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	untold := false
	for _, proc := range procs {
		fds, told := connections(proc, mount.Minor)
		untold = untold || !told
		if len(fds) == 0 || holds(proc) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil {
			return nil, err
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has just ended
		}
		if fds, _ = connections(proc, mount.Minor); !connected(pidfd, fds) { // or another process has its number by now
			_ = unix.Close(pidfd) // opened to name it
			continue
		}
		return &Daemon{PID: pid, pidfd: pidfd, certain: true}, nil
	}
	if untold {
		return nil, ErrUntold
	}
	return nil, nil //nolint:nilnil // a daemon that cannot be seen is no error
}

// DaemonByPID is FindDaemon for kernels that do not tell, with the number from the mount's status. That may be of another
// PID namespace, so the process must be one that serves a FUSE mount.
func DaemonByPID(pid int) *Daemon {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	if _, told := connections(fmt.Sprintf("/proc/%d", pid), 0); told {
		_ = unix.Close(pidfd) // opened to name it
		return nil
	}
	return &Daemon{PID: pid, pidfd: pidfd}
}

// DaemonOf finds the process that listens on the control socket of the mount at a path, in any PID namespace. told is its number
// there, as the mount's status has it. It is nil where the kernel does not tell (before Linux 6.5), and where there is no socket.
// The daemon must just have answered: the way to the socket leads through the mount.
func DaemonOf(path string, told int) *Daemon {
	dir, err := unix.Open(filepath.Join(path, ControlName), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(dir) }() // opened to name it
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }() // nothing is asked on it
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, SocketName)}); err != nil {
		return nil
	}
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return nil
	}
	d := &Daemon{PID: told, pidfd: pidfd, certain: true, elsewhere: true}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd)) // without it the number is not known here
	_, after, _ := bytes.Cut(text, []byte("Pid:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	if here, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && here > 0 {
		d.PID, d.elsewhere = here, false
	}
	return d
}

// String names the process.
func (d *Daemon) String() string {
	if d.elsewhere {
		return fmt.Sprintf("pid %d in another PID namespace", d.PID)
	}
	return fmt.Sprintf("pid %d", d.PID)
}

// Command is the command line that sends it a signal, such as KILL.
func (d *Daemon) Command(signal string) string {
	if d.elsewhere {
		return fmt.Sprintf("kill -%s %d in its PID namespace", signal, d.PID)
	}
	return fmt.Sprintf("kill -%s %d", signal, d.PID)
}

// connections finds the descriptors by which a process has the FUSE connection of this number. It gives false for told where the process has one
// whose number the kernel does not tell.
func connections(proc string, number int) (found []int, told bool) {
	fds, _ := os.ReadDir(filepath.Join(proc, "fd")) // another user's
	told = true
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		if err != nil || filepath.Base(to) != "fuse" { // "/fuse" where the daemon that opened it was in a container that is gone
			continue
		}
		text, _ := os.ReadFile(filepath.Join(proc, "fdinfo", fd.Name())) // it may be closed by now
		_, after, tells := bytes.Cut(text, []byte("fuse_connection:"))
		line, _, _ := bytes.Cut(after, []byte("\n"))
		descriptor, fdErr := strconv.Atoi(fd.Name())
		if n, err := strconv.Atoi(string(bytes.TrimSpace(line))); tells && err == nil && fdErr == nil && n == number {
			found = append(found, descriptor)
		}
		told = told && (tells || to != "/dev/fuse")
	}
	return found, told || len(found) > 0
}

// Served says whether this process may serve a mount. Where the kernel does not tell, any FUSE mount may be its own.
func Served(mount *mountinfo.Info) bool {
	fds, told := connections("/proc/self", mount.Minor)
	return strings.HasPrefix(mount.FSType, "fuse") && (len(fds) > 0 || !told)
}

// connected tells whether a process has a connection that serves a mount still. A connection keeps its number after the unmount, when the kernel
// may give that to the next filesystem.
func connected(pidfd int, fds []int) bool {
	for _, fd := range fds {
		device, err := unix.PidfdGetfd(pidfd, fd, 0)
		switch {
		case errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESRCH):
			continue // closed meanwhile
		case err != nil:
			return true // the kernel does not let this process look: the number is all there is
		}
		is := handover.Copy{handover.Device: device}.Connected()
		_ = unix.Close(device) // only looked at
		if is {
			return true
		}
	}
	return false
}

// holds tells whether a process keeps connections to the kernel for daemons, and serves none itself. Such are a keeper, a daemon that
// waits for its turn, the host of hbmfs-csi, and systemd.
func holds(proc string) bool {
	comm, _ := os.ReadFile(filepath.Join(proc, "comm")) // it may have ended
	return slices.Contains([]string{handover.Comm, handover.SpareComm, "hbmfs-csi", "systemd"}, strings.TrimSpace(string(comm)))
}

// FindKeeper finds the process that keeps a mount when its daemon goes, 0 where none can be seen from here.
func FindKeeper(mount *mountinfo.Info) (pid int) {
	procs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is sound
	for _, proc := range procs {
		comm, _ := os.ReadFile(filepath.Join(proc, "comm")) // it may have ended
		if strings.TrimSpace(string(comm)) != handover.Comm {
			continue
		}
		pid, _ = strconv.Atoi(filepath.Base(proc)) // it is a number
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has just ended
		}
		fds, _ := connections(proc, mount.Minor)
		is := connected(pidfd, fds)
		_ = unix.Close(pidfd) // opened to name it
		if is {
			return pid
		}
	}
	return 0
}

// Close forgets the daemon.
func (d *Daemon) Close() { _ = unix.Close(d.pidfd) } // opened to name it

// Ended waits for the end of the daemon, as long as ctx allows, and reports whether it has ended.
func (d *Daemon) Ended(ctx context.Context) bool {
	const look = 20 // milliseconds
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(d.pidfd), Events: unix.POLLIN}}, look)
		if n > 0 {
			return true
		}
		if ctx.Err() != nil || (err != nil && !errors.Is(err, unix.EINTR)) {
			return false
		}
	}
}

// Stopped tells whether a signal, or a debugger, keeps the daemon from running.
func (d *Daemon) Stopped() bool {
	if d.elsewhere {
		return false // nobody tells
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.PID))
	_, after, _ := bytes.Cut(stat, []byte(") "))
	return err == nil && (bytes.HasPrefix(after, []byte("T")) || bytes.HasPrefix(after, []byte("t")))
}

// Kill ends the daemon at once. It does nothing where the kernel did not say that the process serves the mount.
func (d *Daemon) Kill() error {
	if !d.certain {
		return nil
	}
	err := unix.PidfdSendSignal(d.pidfd, unix.SIGKILL, nil, 0)
	switch {
	case err == nil || errors.Is(err, unix.ESRCH):
		return nil
	case d.elsewhere && errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the daemon (%v) cannot be ended from here: %s ends it", d, d.Command("KILL"))
	}
	return fmt.Errorf("end the daemon (%v): %w", d, err)
}

// ShownBy finds a process in another mount namespace that still shows the filesystem of a mount, 0 where none can be seen.
func ShownBy(mount *mountinfo.Info) (pid int) {
	procs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is sound
	own, _ := os.Readlink("/proc/self/ns/mnt")
	seen := map[string]bool{own: true}
	for _, proc := range procs {
		namespace, err := os.Readlink(filepath.Join(proc, "ns", "mnt"))
		if err != nil || seen[namespace] {
			continue
		}
		seen[namespace] = true
		table, err := os.Open(filepath.Join(proc, "mountinfo"))
		if err != nil {
			continue // it has ended
		}
		// A device number that is free again is soon another filesystem's.
		same, _ := mountinfo.GetMountsFromReader(table, func(i *mountinfo.Info) (skip, stop bool) {
			return i.Major != mount.Major || i.Minor != mount.Minor || i.FSType != mount.FSType || i.Source != mount.Source, false
		})
		_ = table.Close() // opened for reading: nothing is lost
		if pid, err = strconv.Atoi(filepath.Base(proc)); err == nil && len(same) > 0 {
			return pid
		}
	}
	return 0
}
