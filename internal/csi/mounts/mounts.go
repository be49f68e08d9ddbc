// Package mounts changes the mount table as a keeper of FUSE mounts must. It never stacks a mount upon another, never
// touches mounts other than hbmfs's, and never follows a link that somebody put in its way.
//
// Two facts decide how it works. The path of a mount whose daemon is dead cannot be looked at, so only the mount table
// tells which mounts are where. And mounts propagate. Kubernetes shares kubelet's directory between the host and this
// container, and a mount upon the original appears upon each copy that is its peer. So copies are made private before
// they are attached, and dead mounts are replaced, not covered.
package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// FSType is how the kernel names mounts of hbmfs.
const FSType = "fuse.hbmfs"

// moveBeneath is MOVE_MOUNT_BENEATH (Linux 6.5), which golang.org/x/sys does not have yet.
const moveBeneath = 0x200

// ErrForeign says that something which is no mount of hbmfs is mounted at a place.
var ErrForeign = errors.New("something else is mounted there")

// Device names a superblock, as the mount table does: "0:57".
func Device(m *mountinfo.Info) string { return fmt.Sprintf("%d:%d", m.Major, m.Minor) }

// Top returns the mount that is seen at an absolute path, nil where there is none. It does not touch the path.
func Top(path string) (*mountinfo.Info, error) {
	all, err := mountinfo.GetMounts(at(path))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	for _, m := range uncovered(all) {
		return m, nil
	}
	return nil, nil
}

// at finds all mounts at a path: mountinfo's own filter stops at the first.
func at(path string) mountinfo.FilterFunc {
	return func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false }
}

// uncovered leaves out the mounts that others lie upon. The order of the table says nothing, since a mount can be put
// beneath an older one.
func uncovered(all []*mountinfo.Info) []*mountinfo.Info {
	covered, paths := map[int]bool{}, map[int]string{}
	for _, m := range all {
		paths[m.ID] = m.Mountpoint
	}
	for _, m := range all {
		if paths[m.Parent] == m.Mountpoint { // it lies upon another's root
			covered[m.Parent] = true
		}
	}
	return slices.DeleteFunc(all, func(m *mountinfo.Info) bool { return covered[m.ID] })
}

// Resolve returns the path by which the mount table knows a place: without links in the directories above it.
func Resolve(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

// Detach takes every mount of hbmfs at path out of the tree, dead or alive. Processes that have files open in one go on.
func Detach(path string) error { return detach(path, unix.MNT_DETACH) }

// Abort is Detach, and ends the filesystems as well, wherever else they are seen: processes that wait for their daemon
// get an error. Files that are open with passthrough, mapped, or open in a reader go on.
func Abort(path string) error { return detach(path, unix.MNT_DETACH|unix.MNT_FORCE) }

func detach(path string, flags int) error {
	for {
		top, err := Top(path)
		if err != nil || top == nil {
			return err
		}
		if top.FSType != FSType {
			return fmt.Errorf("detach %s: %w (%s)", path, ErrForeign, top.FSType)
		}
		if err := unix.Unmount(path, flags|unix.UMOUNT_NOFOLLOW); err != nil {
			if now, topErr := Top(path); topErr == nil && (now == nil || now.ID != top.ID) {
				continue // it went by itself, with the mount that it was propagated from
			}
			return fmt.Errorf("detach %s: %w", path, err)
		}
	}
}

// Tree is a copy of a mount that is attached nowhere yet.
type Tree struct{ fd int }

// Clone copies the mount at path, or the part at root in it, for somewhere else. The copy is private, without device files and set-user-id programs, and
// read-only unless it is to be writable. The mount must have this device: where it just went, the directory below is nobody's dataset.
func Clone(path, root, device string, writable bool) (*Tree, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, filepath.Join(path, root), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_NO_AUTOMOUNT|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("copy the mount %s: %w", filepath.Join(path, root), err)
	}
	var st unix.Statx_t // not synced: the daemon is not asked
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st); err != nil || fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor) != device {
		_ = unix.Close(fd) // the copy goes with it
		return nil, errors.Join(fmt.Errorf("copy the mount %s: it is gone", path), err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	if !writable {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = unix.Close(fd) // the copy goes with it
		return nil, fmt.Errorf("set the options of the copy of %s: %w", path, err)
	}
	return &Tree{fd}, nil
}

// Close forgets the copy where it was not attached.
func (t *Tree) Close() { _ = unix.Close(t.fd) }

// Attach mounts the copy at path, which must be a directory without a mount.
func (t *Tree) Attach(path string) error {
	dir, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(dir) }() // opened to name it
	if err := unix.MoveMount(t.fd, "", dir, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", path, err)
	}
	return nil
}

// Replace puts the copy where a mount is now, which goes. Where the kernel can (Linux 6.5), nobody sees the directory
// below for a moment: an empty directory would be taken for an empty dataset.
func (t *Tree) Replace(path string) error {
	err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH|moveBeneath)
	if err == nil {
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("detach the mount above the new one at %s: %w", path, err)
		}
		return nil
	}
	// A mount that came with a copy of another user namespace's mount table is locked: it can be covered, not taken away.
	// It is the only one that is ever covered, and its cover is replaced the next time.
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("detach %s: %w", path, err)
	}
	if err := unix.MoveMount(t.fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount on %s: %w", path, err)
	}
	return nil
}

// Dead tells whether the daemon of the mount at path is gone. It asks the kernel, which asks the daemon where there is
// one: a daemon that is stuck keeps the caller waiting. A link at path is none.
func Dead(path string) bool {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		var st unix.Statfs_t
		err = unix.Fstatfs(fd, &st)
		_ = unix.Close(fd) // opened to name it
	}
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}

// RemoveDir removes an empty directory. One that is a mount point, or has something in it, stays, which is an error.
func RemoveDir(path string) error {
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}
