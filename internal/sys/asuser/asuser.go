// Package asuser lets the kernel decide about a user's rights: a daemon of root does an operation with that user's rights, on
// one thread.
//
//	err := asuser.Do(asuser.User{UID: 1000, GID: 1000, Groups: groups}, func() error {
//		return root.Mkdir("step-7", 0o777) // the kernel checks the user's rights, and the directory is theirs
//	})
//
// The thread has the user's fsuid, fsgid and supplementary groups. The kernel takes the capabilities of files from it with the fsuid.
// Do takes CAP_SYS_RESOURCE, too, since a process with it passes quotas and the blocks that a filesystem reserves.
//
// Pitfalls. f runs on the caller's thread, which is locked meanwhile: a goroutine that it starts has the daemon's rights. A user's
// capabilities count only where [User.Capable] says so, so root of a container has the rights that modes grant to root. A thread that
// does not get the daemon's rights back ends the process. Nothing else would keep it from doing others' work with a user's rights.
package asuser

import (
	"errors"
	"fmt"
	"math"
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
	Capable  bool     // root who has all capabilities of files: nothing but the group changes
}

// ErrOther says that this process may not act as another user.
var ErrOther = errors.New("only root may act as another user")

// Do runs f with a user's rights. Where this process is that user, and not root, f just runs.
func Do(u User, f func() error) error {
	me := os.Geteuid()
	switch {
	case u.UID == math.MaxUint32 || u.GID == math.MaxUint32: // of a user namespace that has no such number here
		return fmt.Errorf("act as a user without a number: %w", unix.EOVERFLOW)
	case me != 0 && uint32(me) == u.UID:
		return f()
	case me != 0:
		return fmt.Errorf("act as user %d: %w", u.UID, ErrOther)
	case u.UID == 0 && u.Capable && uint32(os.Getegid()) == u.GID:
		return f()
	}
	runtime.LockOSThread()
	before, err := take(u)
	if err == nil {
		defer before.giveBack()
		return f()
	}
	before.giveBack()
	return fmt.Errorf("act as user %d: %w", u.UID, err)
}

// Caller runs f with the rights of a thread that waits for an answer of this process, so its groups stay as they are. They are asked for
// where the user and the group alone do not do: f then runs again. Root has all capabilities of files.
func Caller(uid, gid, thread uint32, f func() error) error {
	u := User{UID: uid, GID: gid, Capable: true}
	err := Do(u, f)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		if u.Groups = groupsOf(thread); len(u.Groups) > 0 {
			err = Do(u, f)
		}
	}
	return err
}

// rights are those of a thread.
type rights struct {
	groups []uint32
	caps   *[2]unix.CapUserData // nil: they have not changed
}

// take gives this thread a user's rights, and returns those that it had, also where it fails.
func take(u User) (before rights, err error) {
	if u.UID == 0 && u.Capable {
		return before, setFS(0, u.GID)
	}
	if before.groups, err = groups(); err != nil {
		return before, err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return before, fmt.Errorf("read the thread's capabilities: %w", err)
	}
	had := caps
	before.caps = &had
	if !slices.Equal(before.groups, u.Groups) {
		if err := setGroups(u.Groups); err != nil {
			return before, err
		}
	}
	if err := setFS(u.UID, u.GID); err != nil {
		return before, err
	}
	caps[0].Effective &^= fileCapabilities
	caps[unix.CAP_MAC_OVERRIDE>>5].Effective &^= 1 << (unix.CAP_MAC_OVERRIDE & 31)
	if err := unix.Capset(&head, &caps[0]); err != nil {
		return before, fmt.Errorf("give up capabilities: %w", err)
	}
	return before, nil
}

// giveBack gives the thread the daemon's rights.
func (r *rights) giveBack() {
	if err := r.restore(); err != nil {
		go func() { // nobody recovers from it here
			panic(fmt.Sprintf("asuser: internal error: a thread keeps a user's rights: %v", err))
		}()
		select {}
	}
	runtime.UnlockOSThread()
}

// fileCapabilities pass checks of files. The kernel takes them with the fsuid where that is not root's; a peer that is root of a
// container may have none, either.
const fileCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_LINUX_IMMUTABLE | 1<<unix.CAP_MKNOD | 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_LEASE

func (r *rights) restore() error {
	err := setFS(uint32(os.Geteuid()), uint32(os.Getegid()))
	if r.caps == nil {
		return err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	err = errors.Join(err, unix.Capset(&head, &r.caps[0]))
	if now, groupsErr := groups(); groupsErr != nil || !slices.Equal(now, r.groups) {
		err = errors.Join(err, groupsErr, setGroups(r.groups))
	}
	return err
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
