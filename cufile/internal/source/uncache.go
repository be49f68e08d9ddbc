package source

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// OpenOf pins those of some files that are open now, and gives them. The caller unpins them.
func (h *Descriptors) OpenOf(files []*Backing) (open []*Backing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range files {
		if b.element != nil {
			open = append(open, b)
		}
	}
	h.pinAll(open)
	return open
}

// Uncache advises the kernel to drop a file's pages from the page cache, and gives the bytes that went: all of the file's where the kernel does not say to
// this user how many there were. b is open. Pages that some process has mapped or pinned stay, and so do dirty ones (mapping_evict_folio in Linux's mm/truncate.c).
func Uncache(b *Backing) (int64, error) {
	pages, before, known := residentPages(b, 0, b.Length)
	if known && before == 0 {
		return 0, nil
	}
	err := unix.Fadvise(b.FD, 0, 0, unix.FADV_DONTNEED)
	for errors.Is(err, unix.EINTR) {
		err = unix.Fadvise(b.FD, 0, 0, unix.FADV_DONTNEED)
	}
	if err != nil {
		return 0, fmt.Errorf("drop %s from the page cache: %w", b.Name, err)
	}
	_, after, ok := residentPages(b, 0, b.Length)
	if !known || !ok {
		return b.Length, nil
	}
	return int64(float64(max(before-after, 0)) / float64(pages) * float64(b.Length)), nil
}
