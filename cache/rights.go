package cache

import (
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

// Rights are the permissions of a file or a directory at the source, as far as a mode can say them. Where an access
// control list says more, they are less. See [Rights.Certain].
type Rights struct {
	Perm     uint16
	UID, GID uint32
}

// The rights that a user needs to read a file, or to pass through a directory.
const (
	ToRead uint16 = 0o4
	ToPass uint16 = 0o1
)

// Certain returns the classes of a file's users in which everybody has the right at r, a shard beside the file or a
// directory above it. The classes are 0o400 for the owner uid, 0o040 for the group gid and 0o004 for others. A user may
// be of another class at r, where only the class that fits first counts: a right of others is no right of the group.
func (r Rights) Certain(uid, gid uint32, right uint16) (classes uint16) {
	owner, group, others := r.Perm>>6&right != 0, r.Perm>>3&right != 0, r.Perm&right != 0
	ownerElse := owner || uid == r.UID // for users that are not uid, one of whom may be r's owner
	groupElse := group || gid == r.GID // for users that are not of gid, some of whom may be of r's group
	any := group && others             // for users that are not r's owner
	if uid == r.UID && owner || uid != r.UID && any {
		classes |= 0o400
	}
	if ownerElse && (gid == r.GID && group || gid != r.GID && any) {
		classes |= 0o040
	}
	if ownerElse && groupElse && others {
		classes |= 0o004
	}
	return classes
}

// only removes the rights to read and to execute from all classes but the given ones.
func only(perm, classes uint16) uint16 { return perm &^ (0o555 &^ (classes | classes>>2)) }

// StillGrants returns an error, which wraps [fs.ErrPermission], if an open file of o no longer grants the listed
// rights.
func (d *Dir) StillGrants(o *layout.Object, fd int) error {
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return fmt.Errorf("stat %q: %w", o.Name, err)
	}
	if now.Uid != o.UID || now.Gid != o.GID || o.Perm&0o444&^uint16(now.Mode) != 0 {
		return fmt.Errorf("open %q: it has another owner, or grants less, than when the dataset was mounted: mount it again: %w", o.Name, fs.ErrPermission)
	}
	return nil
}
