package kv

import (
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// table finds slots by the hash of their keys: open addressing with linear probing. A cell has the hash beside the slot's number, so that a probe
// looks at a key only where the hash is equal. Keys themselves are compared by who asks.
type table struct {
	cells []uint64 // hash<<32 | slot+1; 0 is an empty one
	used  int
}

// hugeFrom is how large memory is that huge pages pay for.
const hugeFrom = 8 << 20

// memoryFor maps n bytes that are zero and outside of Go's heap.
func memoryFor(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("make memory for the index: %w", err)
	}
	if n >= hugeFrom {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // lookups are faster where the kernel has huge pages
	}
	return b, nil
}

func unmap(b []byte) {
	if b != nil {
		_ = unix.Munmap(b) // it was mapped by memoryFor
	}
}

// fit makes room for n slots, at a load of 4/5 at most.
func (t *table) fit(n int) error {
	want := 1 << bits.Len(uint(max(n+n/4, 63)))
	if want <= len(t.cells) {
		return nil
	}
	b, err := memoryFor(want * 8)
	if err != nil {
		return err
	}
	old := t.cells
	t.cells = unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), want)
	t.used = 0
	for _, c := range old {
		if c != 0 {
			t.insert(uint32(c>>32), uint32(c)-1)
		}
	}
	drop(old)
	return nil
}

func drop(cells []uint64) {
	if len(cells) > 0 {
		unmap(unsafe.Slice((*byte)(unsafe.Pointer(&cells[0])), len(cells)*8))
	}
}

func (t *table) close() {
	drop(t.cells)
	t.cells, t.used = nil, 0
}

// insert adds a slot, which is not there.
func (t *table) insert(hash, n uint32) {
	mask := uint32(len(t.cells) - 1)
	i := hash & mask
	for t.cells[i] != 0 {
		i = (i + 1) & mask
	}
	t.cells[i] = uint64(hash)<<32 | uint64(n+1)
	t.used++
}

// find gives the slot of a key.
func (t *table) find(hash uint32, is func(n uint32) bool) (n uint32, ok bool) {
	if len(t.cells) == 0 {
		return 0, false
	}
	mask := uint32(len(t.cells) - 1)
	for i := hash & mask; t.cells[i] != 0; i = (i + 1) & mask {
		if c := t.cells[i]; uint32(c>>32) == hash && is(uint32(c)-1) {
			return uint32(c) - 1, true
		}
	}
	return 0, false
}

// remove takes a slot out. Cells that follow move up, so that no search ends before them.
func (t *table) remove(hash, n uint32) {
	mask := uint32(len(t.cells) - 1)
	i := hash & mask
	for want := uint64(hash)<<32 | uint64(n+1); t.cells[i] != want; i = (i + 1) & mask {
		if t.cells[i] == 0 {
			return
		}
	}
	t.used--
	for j := i; ; {
		t.cells[i] = 0
		for {
			if j = (j + 1) & mask; t.cells[j] == 0 {
				return
			}
			home := uint32(t.cells[j]>>32) & mask
			if (j-home)&mask >= (j-i)&mask { // it may stand at i
				break
			}
		}
		t.cells[i], i = t.cells[j], j
	}
}
