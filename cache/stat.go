package cache

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// statOf returns what the kernel said of a file. The two structs are one and the same in the kernel's ABI; package os
// uses syscall's.
func statOf(info fs.FileInfo) (*unix.Stat_t, bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, false
	}
	return &unix.Stat_t{
		Dev: s.Dev, Ino: s.Ino, Mode: s.Mode, Uid: s.Uid, Gid: s.Gid, Size: s.Size,
		Mtim: unix.Timespec{Sec: s.Mtim.Sec, Nsec: s.Mtim.Nsec},
	}, true
}
