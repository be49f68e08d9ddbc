package cufile

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pages is anonymous memory, in huge pages where the kernel has them.
type pages struct {
	bytes []byte // what was asked for, on the border of a huge page if it is as long as one
	whole []byte // the mapping that it lies in
}

// hugeMemory gives n bytes of zeros that are there already: no page fault comes later. free gives them back.
func hugeMemory(n int64) (pages, error) {
	const huge = 2 << 20
	length := n
	if n >= huge {
		length += huge // so that one begins within
	}
	whole, err := unix.Mmap(-1, 0, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return pages{}, fmt.Errorf("allocate %d bytes of host memory: %w", n, err)
	}
	p := pages{bytes: whole[:n:n], whole: whole}
	if n >= huge {
		skip := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(whole))) % huge)
		p.bytes = whole[skip : skip+n : skip+n]
		// Neither is needed: without, pages come later and smaller.
		_ = unix.Madvise(p.bytes, unix.MADV_HUGEPAGE)
		_ = unix.Madvise(p.bytes, unix.MADV_POPULATE_WRITE)
	}
	return p, nil
}

func (p *pages) free() error {
	whole := p.whole
	*p = pages{}
	if whole == nil {
		return nil
	}
	return unix.Munmap(whole)
}
