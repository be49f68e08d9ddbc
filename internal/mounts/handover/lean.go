package handover

import (
	"bufio"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// leaner gives back pages of files that only its start needed, this program's above all. They are most of a keeper's memory,
// and come back where they are used. It leaves a mapping alone that has a page of its own, as relocation makes them.
func leaner() {
	debug.FreeOSMemory()
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return // it takes more memory
	}
	defer func() { _ = maps.Close() }() // opened for reading: nothing is lost
	var begin, end uint64
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		f := strings.Fields(lines.Text()) // proc_pid_smaps(5): from-to, rights, offset, device, inode, path; then its figures
		from, to, isRange := strings.Cut(f[0], "-")
		switch {
		case isRange:
			if begin, end = 0, 0; len(f) > 5 && !strings.Contains(f[1], "w") && strings.HasPrefix(f[5], "/") {
				begin, _ = strconv.ParseUint(from, 16, 64) // the kernel writes hexadecimal numbers
				end, _ = strconv.ParseUint(to, 16, 64)
			}
		case f[0] == "Anonymous:" && f[1] == "0" && begin < end:
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED) // advice
		}
	}
}
