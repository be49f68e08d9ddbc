package checkpoints

import (
	"bytes"
	"errors"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

// asCaller does something with the rights of a request's caller: its fsuid, its fsgid and, where those do not do, its groups. The kernel has asked
// default_permissions before; the backing filesystem answers for itself here, by quotas, access control lists and owners.
func asCaller(h *fuse.InHeader, do func() error) error {
	me := uint32(os.Geteuid())
	switch {
	case h.Uid == math.MaxUint32 || h.Gid == math.MaxUint32: // of a user namespace that has no such number here
		return unix.EOVERFLOW
	case h.Uid == me && (me != 0 || h.Gid == uint32(os.Getegid())):
		return do()
	case me != 0:
		return unix.EPERM
	}
	runtime.LockOSThread()
	err := asUser(h, nil, do)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		if groups := groupsOf(h.Pid); len(groups) > 0 {
			err = asUser(h, groups, do)
		}
	}
	if fsuid(me) && fsgid(uint32(os.Getegid())) {
		runtime.UnlockOSThread() // else the thread ends with its goroutine, and its rights with it
	}
	return err
}

// asUser is asCaller on a thread of its own.
func asUser(h *fuse.InHeader, groups []uint32, do func() error) error {
	if groups != nil {
		own, err := os.Getgroups()
		if err != nil {
			return err
		}
		mine := make([]uint32, len(own))
		for i, g := range own {
			mine[i] = uint32(g)
		}
		if err := setGroups(groups); err != nil {
			return err
		}
		defer func() { _ = setGroups(mine) }() // as they were
	}
	if !fsgid(h.Gid) || !fsuid(h.Uid) {
		return unix.EPERM
	}
	defer func() { fsuid(uint32(os.Geteuid())); fsgid(uint32(os.Getegid())) }()
	return do()
}

// fsuid sets the file system user of this thread, and tells whether it is that.
func fsuid(uid uint32) bool {
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	now, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, math.MaxUint32, 0, 0) // changes nothing
	return uint32(now) == uid
}

func fsgid(gid uint32) bool {
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(gid), 0, 0)
	now, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, math.MaxUint32, 0, 0) // changes nothing
	return uint32(now) == gid
}

// setGroups sets the supplementary groups of this thread alone, unlike package syscall.
func setGroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
		return errno
	}
	return nil
}

// groupsOf returns the supplementary groups of a thread, which waits for the answer to its request and so cannot change them.
func groupsOf(thread uint32) (groups []uint32) {
	if thread == 0 { // of a PID namespace that is not seen from here
		return nil
	}
	text, err := os.ReadFile("/proc/" + itoa(int(thread)) + "/status")
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(text) {
		rest, ok := strings.CutPrefix(string(line), "Groups:")
		if !ok {
			continue
		}
		for _, word := range strings.Fields(rest) {
			g, err := strconv.ParseUint(word, 10, 32)
			if err != nil {
				return nil
			}
			groups = append(groups, uint32(g))
		}
	}
	return groups
}
