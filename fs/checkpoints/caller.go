package checkpoints

import (
	"bytes"
	"errors"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/asuser"
)

func itoa(n int) string { return strconv.Itoa(n) }

// asCaller does something with the rights of a request's caller: its fsuid, its fsgid and, where those do not do, its groups. The kernel has asked
// default_permissions before, with the caller's capabilities. The backing filesystem answers for itself here, by quotas, access control lists
// and owners.
func asCaller(h *fuse.InHeader, do func() error) error {
	if h.Uid == math.MaxUint32 || h.Gid == math.MaxUint32 { // of a user namespace that has no such number here
		return unix.EOVERFLOW
	}
	if h.Uid == 0 && h.Gid != 0 && os.Geteuid() == 0 {
		return asRoot(int(h.Gid), do)
	}
	user := asuser.User{UID: h.Uid, GID: h.Gid, Capable: true}
	err := asuser.Do(user, do)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		if user.Groups = groupsOf(h.Pid); len(user.Groups) > 0 {
			err = asuser.Do(user, do)
		}
	}
	if errors.Is(err, asuser.ErrOther) {
		return unix.EPERM
	}
	return err
}

// asRoot does something as root of another group.
func asRoot(gid int, do func() error) error {
	runtime.LockOSThread()
	before, err := unix.SetfsgidRetGid(gid)
	if err != nil {
		return err
	}
	err = do()
	if _, back := unix.SetfsgidRetGid(before); back == nil {
		runtime.UnlockOSThread() // otherwise the thread ends
	}
	return err
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
