// Package asuser lets the kernel decide what a user may do: a daemon of root does an operation with that user's rights, on one
// thread.
//
//	err := asuser.Do(asuser.User{UID: 1000, GID: 1000, Groups: groups}, func() error {
//		return root.Mkdir("step-7", 0o777) // the kernel checks the user's rights, and the directory is theirs
//	})
//
// The thread has the user's fsuid, fsgid and supplementary groups. The kernel takes the capabilities of files from it with the fsuid,
// and Do takes CAP_SYS_RESOURCE, too: whoever has that passes quotas and the blocks that a filesystem reserves.
//
// Pitfalls. f runs on one locked thread: a goroutine that it starts has the daemon's rights. A user's capabilities count only where
// [User.Capable] says so, so root of a container has what modes grant to root.
package asuser

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// User is whose rights count.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
	Capable  bool     // root who has all capabilities of files: nothing is taken from this thread
}

// ErrOther says that this process may not act as another user.
var ErrOther = errors.New("only root may act as another user")

// Do runs f with a user's rights. Where this process is that user, and not root, f just runs.
func Do(u User, f func() error) error {
	me := os.Geteuid()
	switch {
	case me != 0 && uint32(me) == u.UID:
		return f()
	case me == 0 && u.UID == 0 && u.Capable:
		return f()
	case me != 0:
		return fmt.Errorf("act as user %d: %w", u.UID, ErrOther)
	}
	done := make(chan error)
	go func() { // ends with f
		runtime.LockOSThread()
		before, err := take(u)
		if err != nil {
			done <- fmt.Errorf("act as user %d: %w", u.UID, err)
			return // and the thread with it: it is locked
		}
		var ran error
		defer func() {
			if before.restore() == nil {
				runtime.UnlockOSThread() // otherwise the thread ends
			}
			done <- ran
		}()
		ran = errors.New("asuser: internal error: f has not returned")
		ran = f()
	}()
	return <-done
}

// FSUID is the user as whom this thread makes files and opens them: outside of [Do], the process's effective user.
func FSUID() uint32 {
	uid, _ := unix.SetfsuidRetUid(-1) // which changes nothing
	return uint32(uid)
}

// rights are those of a thread.
type rights struct {
	groups []uint32
	caps   [2]unix.CapUserData
}

// take gives this thread a user's rights, and returns those that it had.
func take(u User) (before rights, err error) {
	if before.groups, err = groups(); err != nil {
		return before, err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&head, &before.caps[0]); err != nil {
		return before, fmt.Errorf("read the thread's capabilities: %w", err)
	}
	if err := setGroups(u.Groups); err != nil {
		return before, err
	}
	if err := setFS(u.UID, u.GID); err != nil {
		return before, err
	}
	now := before.caps
	if err := unix.Capget(&head, &now[0]); err != nil {
		return before, fmt.Errorf("read the thread's capabilities: %w", err)
	}
	now[0].Effective &^= fileCapabilities
	now[unix.CAP_MAC_OVERRIDE>>5].Effective &^= 1 << (unix.CAP_MAC_OVERRIDE & 31)
	if err := unix.Capset(&head, &now[0]); err != nil {
		return before, fmt.Errorf("give up capabilities: %w", err)
	}
	return before, nil
}

// fileCapabilities pass checks of files. The kernel takes them with the fsuid where that is not root's; a peer that is root of a
// container may have none, either.
const fileCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_LINUX_IMMUTABLE | 1<<unix.CAP_MKNOD | 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_LEASE

func (r *rights) restore() error {
	fsErr := setFS(uint32(os.Geteuid()), uint32(os.Getegid()))
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return errors.Join(fsErr, unix.Capset(&head, &r.caps[0]), setGroups(r.groups))
}

// setFS sets the fsuid and the fsgid, which return no error: so they are read again.
func setFS(uid, gid uint32) error {
	_, _ = unix.SetfsgidRetGid(int(gid)) // it returns the one before
	_, _ = unix.SetfsuidRetUid(int(uid))
	nowGID, _ := unix.SetfsgidRetGid(-1)
	nowUID, _ := unix.SetfsuidRetUid(-1)
	if uint32(nowUID) != uid || uint32(nowGID) != gid {
		return fmt.Errorf("set the fsuid to %d and the fsgid to %d: %w", uid, gid, unix.EPERM)
	}
	return nil
}

func groups() ([]uint32, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_GETGROUPS, 0, 0, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("getgroups", errno)
	}
	list := make([]uint32, n)
	if n == 0 {
		return list, nil
	}
	n, _, errno = unix.RawSyscall(unix.SYS_GETGROUPS, n, uintptr(unsafe.Pointer(&list[0])), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("getgroups", errno)
	}
	return list[:n], nil
}

// setGroups sets the groups of this thread alone, unlike [unix.Setgroups].
func setGroups(list []uint32) error {
	list = slices.Clone(list)
	var first uintptr
	if len(list) > 0 {
		first = uintptr(unsafe.Pointer(&list[0]))
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(list)), first, 0)
	runtime.KeepAlive(list)
	return os.NewSyscallError("setgroups", errnoError(errno))
}

func errnoError(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
