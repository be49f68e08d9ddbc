package copied

import (
	"bytes"
	"io"
	"os"

	"github.com/hbmfs/hbmfs/cufile/internal/device"
)

// fewest is the number of files for which counting the mappings again is not worth its time.
const fewest = 64

// hasRoom says whether one file more may be mapped. Everything in a process shares the kernel's limit, so mappings take it to half of that at
// most. A reader takes a quarter of the rest of the half, and then counts again: others may have mapped files meanwhile. It needs mu.
func (m *Mover) hasRoom() bool {
	if !m.full && m.room <= 0 {
		m.room = (device.MostMappings()/2 - mappings()) / 4
		m.full = m.room < fewest
	}
	return !m.full
}

// mappings counts those of this process. Where it cannot, there are too many.
func mappings() (n int) {
	file, err := os.Open("/proc/self/maps")
	if err != nil {
		return device.MostMappings()
	}
	defer func() { _ = file.Close() }() // it was only read
	for part := make([]byte, 64<<10); ; {
		k, err := file.Read(part)
		n += bytes.Count(part[:k], []byte{'\n'})
		switch {
		case err == io.EOF:
			return n
		case err != nil:
			return device.MostMappings()
		}
	}
}
