package mapped

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/cufile/internal/room"
	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// A process may map 65,530 files as a rule, and a dataset may have more. Where mappings run out, small files are read whole into pinned memory.
const (
	smallFile = 256 << 10 // bytes of a file that is read at most
	mostChunk = 64 << 20  // that are pinned at once for such files
	copyAlign = 64
)

// chunk is pinned memory that has copies of small files.
type chunk struct {
	memory []byte
	at     driver.Pointer
	room   room.Room
	copies int
}

// place gives room for a copy, by the number of its first byte; nil where there is none. It needs mu, which it gives up meanwhile, and the turn.
func (m *Windows) place(cu *driver.CUDA, n int64) (*chunk, int64, error) {
	n = driver.RoundUp(n, copyAlign)
	for _, c := range m.chunks {
		if first, ok := c.room.Take(n); ok {
			c.copies++
			return c, first, nil
		}
	}
	size := min(m.size, mostChunk)
	if m.bytes+size > m.limit || n > size {
		return nil, 0, nil
	}
	m.bytes += size
	m.mu.Unlock()
	c, err := newChunk(cu, size)
	m.mu.Lock()
	if err != nil {
		m.bytes -= size
		return nil, 0, err
	}
	m.chunks = append(m.chunks, c)
	first, _ := c.room.Take(n)
	c.copies++
	return c, first, nil
}

func newChunk(cu *driver.CUDA, size int64) (*chunk, error) {
	memory, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes for small files: %w", size, err)
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // small ones do, too
	c := &chunk{memory: memory}
	c.room.Give(0, size)
	if err = cu.Register(memory, driver.HostPortable|driver.HostDeviceMap); err != nil {
		return nil, errors.Join(unmapped(fmt.Sprintf("%d bytes for small files", size), err), unix.Munmap(memory))
	}
	if c.at, err = cu.DeviceAddress(memory); err != nil {
		return nil, errors.Join(err, cu.Unregister(memory), unix.Munmap(memory))
	}
	return c, nil
}

// copyIn reads a file into a window that has room in a chunk from first on.
func (n *window) copyIn(b *source.Backing, first int64) (at driver.Pointer, err error) {
	n.memory = n.chunk.memory[first:][:b.Length:b.Length]
	if err := b.ReadFull(n.memory, 0); err != nil {
		return 0, err
	}
	return n.chunk.at + driver.Pointer(first), b.Unchanged()
}

// uncopy gives back the room of a window's copy, and its chunk with the last one. It needs mu.
func (m *Windows) uncopy(cu *driver.CUDA, n *window) error {
	c := n.chunk
	first := driver.Address(n.memory) - driver.Address(c.memory)
	c.room.Give(int64(first), driver.RoundUp(int64(len(n.memory)), copyAlign))
	if c.copies--; c.copies > 0 {
		return nil
	}
	m.chunks = slices.DeleteFunc(m.chunks, func(o *chunk) bool { return o == c })
	m.bytes -= int64(len(c.memory))
	return errors.Join(cu.Unregister(c.memory), unix.Munmap(c.memory))
}
