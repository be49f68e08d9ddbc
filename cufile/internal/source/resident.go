package source

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Resident gives the fraction of pieces that is in the page cache, 0 to 1, from a sample. It gives false where the
// kernel does not tell this user.
func Resident(pieces []Piece) (float64, bool) {
	const samples = 32
	pages, cached := int64(0), int64(0)
	for i := range min(samples, len(pieces)) {
		p := &pieces[i]
		if len(pieces) > samples {
			p = &pieces[rand.IntN(len(pieces))]
		}
		n, have, ok := residentPages(p.File, p.Offset, p.N)
		if !ok {
			return 0, false
		}
		pages, cached = pages+n, cached+have
	}
	if pages == 0 {
		return 0, false
	}
	return min(float64(cached)/float64(pages), 1), true
}

// residentPages counts a range's pages, and those that the cache holds.
func residentPages(b *Backing, offset, n int64) (pages, cached int64, ok bool) {
	first := offset / driver.PageSize * driver.PageSize
	n = driver.RoundUp(offset+n, driver.PageSize) - first
	pages = n / driver.PageSize
	var stat unix.Cachestat_t
	err := unix.Cachestat(uint(b.FD), &unix.CachestatRange{Off: uint64(first), Len: uint64(n)}, &stat, 0)
	if err == nil {
		return pages, int64(stat.Cache), true
	}
	return mincore(b, first, n)
}

// mincore does it on kernels before 6.5, for a sample at the front. The kernel says "resident" for everything to
// those who neither own the file nor may write to it, so the answer counts for nothing.
func mincore(b *Backing, first, n int64) (pages, cached int64, ok bool) {
	var st unix.Stat_t
	if err := unix.Fstat(b.FD, &st); err != nil || (os.Geteuid() != 0 && int(st.Uid) != os.Geteuid()) {
		return 0, 0, false
	}
	const most = 64 << 20
	n = min(n, most)
	memory, err := unix.Mmap(b.FD, first, int(n), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, false
	}
	defer func() { _ = unix.Munmap(memory) }() // a mapping that cannot be undone ends with the process
	flags := make([]byte, n/driver.PageSize)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(n), uintptr(unsafe.Pointer(&flags[0]))); errno != 0 {
		return 0, 0, false
	}
	for _, flag := range flags {
		cached += int64(flag & 1)
	}
	return n / driver.PageSize, cached, true
}

// OnNVMe says whether the block device under a file is NVMe, or something built of block devices by that name.
func OnNVMe(b *Backing) bool {
	target, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(b.Dev), unix.Minor(b.Dev)))
	if err != nil {
		return false
	}
	return strings.Contains(target, "/nvme")
}
