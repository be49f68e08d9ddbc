package direct

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// Output is a file that cuFile writes. Several threads may at once.
type Output struct {
	mover  *Mover
	name   string
	fd     int
	handle driver.Handle
}

// Output registers a file that is open for writing. cuFile wants a descriptor with O_DIRECT and without O_NOFOLLOW, so the file is
// opened again.
func (d *Mover) Output(fd int, name string) (*Output, error) {
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s again for cuFile: %w", name, err)
	}
	h, err := d.lib.Register(uintptr(again))
	if err != nil {
		_ = unix.Close(again) // nothing was written
		return nil, fmt.Errorf("register %s with cuFile: %w", name, err)
	}
	return &Output{d, name, again, h}, nil
}

// Write moves HBM to an offset of the file. All of it is aligned to pages.
func (o *Output) Write(from driver.Pointer, n, offset int64) error {
	for done := int64(0); done < n; {
		some, err := o.mover.lib.Write(o.handle, from, n-done, offset+done, done)
		if err == nil && some == 0 {
			err = unix.EIO // nothing was written, and nothing says why
		}
		if err != nil {
			return err
		}
		done += some
	}
	return nil
}

// Close gives the file back to cuFile, which has written it.
func (o *Output) Close() error {
	o.mover.lib.Deregister(o.handle)
	return unix.Close(o.fd)
}

// WriteCounts reads the counters of the GPU with this UUID.
func (d *Mover) WriteCounts(uuid [16]byte) (driver.WayCounts, error) { return d.lib.WriteCounts(uuid) }
