package cache

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// stampBy chooses the times that a version is made of.
type stampBy bool

const (
	byModTime    stampBy = false // inode, size and modification time, as rsync's quick check compares them
	byChangeTime stampBy = true  // the time of the last change of the inode as well
)

// stamp is the identity of a file when it was listed.
type stamp struct {
	ino   uint64
	size  int64
	mtime unix.Timespec
	ctime unix.Timespec // zero where it does not count
}

func (by stampBy) stamp(st *unix.Stat_t) stamp {
	s := stamp{ino: st.Ino, size: st.Size, mtime: st.Mtim}
	if by == byChangeTime {
		s.ctime = st.Ctim
	}
	return s
}

func (d *Dir) stampOf(fd int) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return stamp{}, fmt.Errorf("stat an open file: %w", err)
	}
	return d.by.stamp(&st), nil
}

// version is the stamp as [layout.Object] holds it.
func (s stamp) version() string { return string(s.append(make([]byte, 0, versionMax))) }

// is compares without making a string: each open of a file does.
func (s stamp) is(version string) bool {
	return string(s.append(make([]byte, 0, versionMax))) == version
}

// versionMax is the length of the longest version: six numbers of 64 bits, with signs and separators.
const versionMax = 6*20 + 5

func (s stamp) append(v []byte) []byte {
	v = strconv.AppendUint(v, s.ino, 10)
	v = strconv.AppendInt(append(v, '-'), s.size, 10)
	v = appendTime(append(v, '-'), s.mtime)
	if s.ctime != (unix.Timespec{}) {
		v = appendTime(append(v, '-'), s.ctime)
	}
	return v
}

func appendTime(v []byte, t unix.Timespec) []byte {
	v = strconv.AppendInt(v, t.Sec, 10)
	return strconv.AppendInt(append(v, '.'), t.Nsec, 10)
}
