// Package trust says whether nobody but this process's user and root can change the files at a path. Bytes that are read
// from there and believed, as a cache's are, could otherwise be forged.
//
//	dir, err := trust.Dir("/nvme/hbmfs")    // made if it is not there; links of this user and of root are followed
//	dir, err = trust.Below(dir, "segments") // the same, but never a link
//	err = trust.File(&st)                   // what was opened in it
//
// The rules are those of sshd for its files. Each directory, from the root on, belongs to this user or to root, and
// neither its group nor others may write to it. In all but the last one a sticky bit is enough, as /tmp has it. Nobody
// can replace the files there, and the next one is looked at. An ACL that lets others write shows in the group's bits.
package trust

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const mostLinks = 40 // on the way to a directory, as in the kernel

// Error says why something is not trusted, and names the remedy.
type Error struct{ why string }

func (e *Error) Error() string { return e.why }

// Dir checks a directory and all above it. It makes those that are not there, for this user alone. Trusted files lie in a
// directory [Below] it. The path that Dir gives has no links.
func Dir(path string) (resolved string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	resolved = "/"
	links := 0
	for left := strings.Split(abs, "/"); len(left) > 0; {
		name := left[0]
		left = left[1:]
		if name == "" || name == "." {
			continue
		}
		if err := directory(resolved, unix.S_ISVTX); err != nil { // a user that can change it can lead anywhere from here
			return "", err
		}
		if resolved = filepath.Join(resolved, name); name == ".." {
			continue
		}
		target, err := link(resolved)
		if err != nil {
			return "", err
		}
		if target == "" {
			continue
		}
		if links++; links > mostLinks {
			return "", &os.PathError{Op: "open", Path: path, Err: unix.ELOOP}
		}
		if resolved = filepath.Dir(resolved); filepath.IsAbs(target) {
			resolved = "/"
		}
		left = append(strings.Split(target, "/"), left...)
	}
	return resolved, directory(resolved, unix.S_ISVTX)
}

// Below checks a directory in one that was checked, and makes it if it is not there. It may not be a link.
func Below(dir, name string) (path string, err error) {
	path = filepath.Join(dir, name)
	target, err := link(path)
	if err == nil && target != "" {
		err = &Error{fmt.Sprintf("%s is a link to %s, and is not followed: put a directory there", path, target)}
	}
	if err == nil {
		err = directory(path, 0)
	}
	return path, err
}

// File checks a file that was opened, or looked at.
func File(st *unix.Stat_t) error {
	if why := wrong(st, 0); why != "" {
		return &Error{"it " + why}
	}
	return nil
}

// link gives the target of a link, and "" for another file. Where nothing is, it makes a directory.
func link(path string) (target string, err error) {
	var st unix.Stat_t
	err = lstat(path, &st)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(path, 0o700); err == nil || errors.Is(err, fs.ErrExist) { // another process may be as far
			err = lstat(path, &st)
		}
	}
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", err
	}
	if why := owner(&st); why != "" {
		return "", &Error{fmt.Sprintf("%s is a link that %s: name the directory itself", path, why)}
	}
	return os.Readlink(path)
}

// directory checks one directory. A bit of excuse may let others write to it.
func directory(path string, excuse uint32) error {
	var st unix.Stat_t
	if err := lstat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &os.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	}
	why := wrong(&st, excuse)
	if why == "" {
		return nil
	}
	repair := "name a directory of your own, or chmod go-w " + path
	if owner(&st) != "" {
		repair = fmt.Sprintf("name a directory of your own, be that user, or chown %d %s", os.Geteuid(), path)
	}
	return &Error{fmt.Sprintf("%s %s: %s", path, why, repair)}
}

// wrong says how others could change a file, "" if they cannot.
func wrong(st *unix.Stat_t, excuse uint32) string {
	if why := owner(st); why != "" {
		return why
	}
	if st.Mode&0o022 != 0 && st.Mode&excuse == 0 {
		return fmt.Sprintf("may be written to by others (mode %04o), who could forge what is read there", st.Mode&0o7777)
	}
	return ""
}

func owner(st *unix.Stat_t) string {
	if me := uint32(os.Geteuid()); st.Uid != me && st.Uid != 0 {
		return fmt.Sprintf("belongs to user %d, who could forge what is read there", st.Uid)
	}
	return ""
}

func lstat(path string, st *unix.Stat_t) error {
	if err := unix.Lstat(path, st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return nil
}
