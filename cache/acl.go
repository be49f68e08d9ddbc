package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aclName is the attribute that holds the access control list of a file or directory.
const aclName = "system.posix_acl_access"

// perm returns the mode of name in the directory at, without the rights that an access control list takes from any of
// their class. name is "." for the directory itself.
//
// The group bits of a file with a list are its mask, the most that any user or group in the list may have. A mount that
// showed them would grant rights to the group that the list refuses it. Where they are zero, the kernel does not look at
// the list.
func (d *Dir) perm(at int, name string, st *unix.Stat_t) uint16 {
	mode := uint16(st.Mode & 0o777)
	if _, none := d.noACL.Load(st.Dev); none || mode&0o070 == 0 {
		return mode
	}
	var small [4 + 32*aclEntry]byte
	list, err := xattr(at, name, aclName, small[:])
	if errors.Is(err, unix.ERANGE) {
		list, err = xattr(at, name, aclName, make([]byte, 1<<16)) // XATTR_SIZE_MAX of Linux
	}
	switch {
	case errors.Is(err, unix.ENODATA):
		return mode
	case errors.Is(err, unix.EOPNOTSUPP) && d.withoutACL(at, st.Dev):
		return mode
	case err != nil: // without the list, only the owner has certain rights
		return mode & 0o700
	}
	return mode & certainOf(list)
}

// withoutACL finds out whether the files of a device have no lists. It asks for the directory at: a name in it could be a
// link by now, for which the kernel would say the same.
func (d *Dir) withoutACL(at int, dev uint64) bool {
	var st unix.Stat_t
	if unix.Fstat(at, &st) != nil || st.Dev != dev {
		return false
	}
	if _, err := xattr(at, ".", aclName, make([]byte, aclEntry)); !errors.Is(err, unix.EOPNOTSUPP) {
		return false
	}
	d.noACL.Store(dev, true)
	return true
}

// aclEntry is the size of an entry: tag (2), rights (2), id (4).
const aclEntry = 8

// Tags of entries, as in include/uapi/linux/posix_acl.h of Linux.
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
)

// certainOf makes a mode of an access control list: for each class the rights that everybody in it has. Users and groups
// that the list names count in it. It is the owner's alone where the list cannot be understood.
func certainOf(list []byte) uint16 {
	const owner, all, unnamed = 0o700, 0o7, ^uint16(0)
	if len(list) < 4 || binary.LittleEndian.Uint32(list) != 2 || (len(list)-4)%aclEntry != 0 {
		return owner
	}
	mask, users, groups := uint16(all), unnamed, unnamed
	var group, others uint16
	for p := list[4:]; len(p) > 0; p = p[aclEntry:] {
		rights := binary.LittleEndian.Uint16(p[2:]) & all
		switch binary.LittleEndian.Uint16(p) {
		case aclUserObj: // the mode has it
		case aclUser:
			users &= rights
		case aclGroupObj:
			group = rights
		case aclGroup:
			groups &= rights
		case aclMask:
			mask = rights
		case aclOther:
			others = rights
		default:
			return owner
		}
	}
	if users != unnamed {
		users &= mask
	}
	if groups != unnamed {
		groups &= mask
	}
	return owner | (group&mask&users)<<3 | others&users&groups
}

// xattr reads an attribute of name in the directory at, without following a link.
func xattr(at int, name, attribute string, p []byte) ([]byte, error) {
	n, err := getxattrat(at, name, attribute, p)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // before Linux 6.13, or in a sandbox that does not know the call
		n, err = unix.Lgetxattr(fmt.Sprintf("/proc/self/fd/%d/%s", at, name), attribute, p)
	}
	if err != nil {
		return nil, err
	}
	return p[:n], nil
}

// getxattrat is the system call of that name, which x/sys has the number of alone.
func getxattrat(at int, name, attribute string, p []byte) (int, error) {
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return 0, err
	}
	of, err := unix.BytePtrFromString(attribute)
	if err != nil {
		return 0, err
	}
	args := struct { // xattr_args of include/uapi/linux/xattr.h
		value       *byte
		size, flags uint32
	}{value: &p[0], size: uint32(len(p))}
	n, _, errno := unix.Syscall6(unix.SYS_GETXATTRAT, uintptr(at), uintptr(unsafe.Pointer(path)), unix.AT_SYMLINK_NOFOLLOW, uintptr(unsafe.Pointer(of)), uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
