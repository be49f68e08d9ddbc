// Package container tells in which container a process runs, and when a container has ended. A container is the processes that share a
// mount namespace: a program reaches a mount by no other way.
//
//	c, err := container.Of(thread)   // the thread waits meanwhile, for instance for the answer to a FUSE request
//	w := container.NewWatch(c)
//	err = w.Await(ctx)               // nil once its last process has ended
//	rw, err := container.Writes(pid, major, minor)
//
// Nothing asks a container runtime, or reads names of control groups: the kernel alone knows. It has to show all processes: root needs
// CAP_SYS_PTRACE, and the PID namespace of the machine (hostPID).
package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// ID names a container. It stays the same as long as the machine runs, so another process may go on with it. The zero ID names none.
type ID string

// getMountNamespaceID is NS_GET_MNTNS_ID of include/uapi/linux/nsfs.h (Linux 6.11), which golang.org/x/sys does not have yet. The
// kernel gives such a number once; that of the namespace's file is given to another namespace later.
const getMountNamespaceID = 0x8008b705

// Of returns the container of a thread.
func Of(thread int) (ID, error) { return idAt(fmt.Sprintf("/proc/%d/ns/mnt", thread)) }

// Self returns the container of this process.
func Self() (ID, error) { return idAt("/proc/self/ns/mnt") }

func idAt(path string) (ID, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("look at the mount namespace of a process: %w", err)
	}
	defer func() { _ = f.Close() }() // opened to name it: as long as it is open the namespace stays
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", os.NewSyscallError("fstat", err)
	}
	number, err := unix.IoctlGetInt(int(f.Fd()), getMountNamespaceID)
	if err != nil {
		number = 0
	}
	return ID(fmt.Sprintf("%d-%d", st.Ino, number)), nil
}

// link is the namespace of each process as the kernel shows it: faster than the ID, which decides.
func (c ID) link() string {
	inode, _, _ := strings.Cut(string(c), "-")
	return "mnt:[" + inode + "]"
}

// A process may be started while the others are looked through. So a container is over when nobody is found that often.
const looks = 3

// Watch waits for the end of a container. Its methods may be called at once.
type Watch struct {
	id ID

	mu    sync.Mutex      // guards the fields below
	known syscall.RawConn // a process of it; nil where none is known
	lost  bool            // the last that was known has ended
}

// NewWatch makes a watch, which waits in [Watch.Await] alone.
func NewWatch(id ID) *Watch { return &Watch{id: id} }

// Await waits for the end of the container. An error says that ctx has ended before, or that nobody can tell.
func (w *Watch) Await(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			w.set(nil, false)
		}
	}()
	for missed := 0; missed < looks; {
		pidfd, err := w.id.process()
		switch {
		case err != nil:
			return err
		case pidfd == nil:
			missed++
			err = pause.For(ctx, pause.Look)
		default:
			missed = 0
			err = w.awaitProcess(ctx, pidfd)
			_ = pidfd.Close() // it was only asked
		}
		if err != nil {
			return err
		}
	}
	w.set(nil, true)
	return nil
}

func (w *Watch) set(known syscall.RawConn, lost bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known, w.lost = known, lost
}

// Doubtful tells whether the container has ended, or may have: the process that was known of it has, and nobody has looked for another.
func (w *Watch) Doubtful() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ended := w.lost
	if w.known != nil {
		_ = w.known.Control(func(fd uintptr) { ended = hasEnded(fd) }) // it stays open as long as it is known
	}
	return ended
}

func hasEnded(pidfd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// process opens a process of the container, nil where there is none. The first one that is found is mostly that which was there first.
func (c ID) process() (*os.File, error) {
	pids, err := numbers("/proc")
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if !c.has(pid) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("pidfd_open", err)
		}
		if !c.has(pid) { // it has ended, and the number may be another's
			_ = unix.Close(fd) // it was only asked
			continue
		}
		_ = unix.SetNonblock(fd, true) // so that no thread waits
		return os.NewFile(uintptr(fd), "a process of a container"), nil
	}
	return nil, nil
}

// has tells whether a process runs in the container. Its first thread may have ended before the others.
func (c ID) has(pid int) bool {
	proc := fmt.Sprintf("/proc/%d", pid)
	link, err := os.Readlink(proc + "/ns/mnt")
	if err == nil {
		return link == c.link() && c.is(proc)
	}
	threads, err := numbers(proc + "/task")
	return err == nil && slices.ContainsFunc(threads, func(thread int) bool {
		task := fmt.Sprintf("%s/task/%d", proc, thread)
		link, err := os.Readlink(task + "/ns/mnt")
		return err == nil && link == c.link() && c.is(task)
	})
}

func (c ID) is(proc string) bool {
	id, err := idAt(proc + "/ns/mnt")
	return err == nil && id == c
}

// numbers lists the entries of a directory that are numbers, the smallest first.
func numbers(dir string) (all []int, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	_ = f.Close() // opened for reading
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all, err
}

// awaitProcess waits for the end of a process.
func (w *Watch) awaitProcess(ctx context.Context, pidfd *os.File) error {
	defer context.AfterFunc(ctx, func() { _ = pidfd.SetReadDeadline(time.Unix(1, 0)) })()
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	w.set(raw, false)
	defer w.set(nil, true)
	err = raw.Read(hasEnded)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Visible makes sure that the kernel shows the containers of other processes to this one.
func Visible() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	if sets[0].Effective&(1<<unix.CAP_SYS_PTRACE) == 0 {
		return errors.New("the kernel does not show the mount namespaces of others to this process: it needs CAP_SYS_PTRACE")
	}
	return nil
}

// Writes tells whether a process has a filesystem mounted somewhere where it may write. The numbers are its device.
func Writes(pid int, major, minor uint32) (bool, error) {
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "mountinfo"))
	if err != nil {
		return false, fmt.Errorf("look at the mounts of process %d: %w", pid, err)
	}
	defer func() { _ = f.Close() }() // opened for reading
	its, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		return m.Major != int(major) || m.Minor != int(minor), false
	})
	if err != nil {
		return false, fmt.Errorf("read the mounts of process %d: %w", pid, err)
	}
	return slices.ContainsFunc(its, func(m *mountinfo.Info) bool { return !slices.Contains(strings.Split(m.Options, ","), "ro") }), nil
}

// Device returns the numbers of the filesystem at a path. Nothing is asked of the server of that filesystem.
func Device(path string) (major, minor uint32, err error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("look at the filesystem at %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }() // opened to name it
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		return 0, 0, os.NewSyscallError("statx", err)
	}
	return st.Dev_major, st.Dev_minor, nil
}
