package checkpoint

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// proven makes sure that a file's bytes are on the disk. Linux reports a write-back error once to each descriptor that was open before it, and a
// writer may ignore the error on its own. Read was open before the first byte was written. Where there is no such descriptor, the bytes on the
// disk are compared with the sums, which the writer has computed in its memory.
func (d *Draft) proven(root *os.Root, m *Making, sums []uint32) error {
	if m.lost != nil {
		return m.lost
	}
	var err error
	if m.Read != nil && !m.Doubt {
		err = m.Read.Sync()
	} else {
		err = onDisk(root, m, sums)
	}
	if err != nil {
		m.lost = fmt.Errorf("bytes of file %q of checkpoint %s are not on the disk: save it again: %w", m.Name, d.path, err)
	}
	return m.lost
}

// onDisk compares a file with its sums, past the page cache.
func onDisk(root *os.Root, m *Making, sums []uint32) error {
	f, err := reopen(root, m, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	if err := f.Sync(); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_DIRECT); err != nil { // the filesystem has no such reads
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return err
		}
	}
	buf, err := unix.Mmap(-1, 0, verifySlice, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS) // aligned
	if err != nil {
		return fmt.Errorf("take memory to read it: %w", err)
	}
	defer func() { _ = unix.Munmap(buf) }() // nobody else has it
	for chunk, want := range sums {
		at := int64(chunk) * Chunk
		sum := uint32(0)
		for end := min(m.Size, at+Chunk); at < end; {
			n := int(min(verifySlice, end-at))
			got, err := f.ReadAt(buf[:(n+page-1)/page*page], at)
			if got < n {
				return errors.Join(err, unix.EIO)
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			sum = crc32.Update(sum, castagnoli(), buf[:n])
			at += int64(n)
		}
		if sum != want {
			return fmt.Errorf("crc32c of chunk %d is %08x there, and %08x was written: %w", chunk, sum, want, unix.EIO)
		}
	}
	return nil
}

// reopen opens a file again that [Draft.Make] has made.
func reopen(root *os.Root, m *Making, how int) (*os.File, error) {
	if m.Read != nil {
		return again(m.Read, how)
	}
	return root.OpenFile(m.Name, how, 0)
}
