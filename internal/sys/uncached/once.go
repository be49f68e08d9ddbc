package uncached

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// dontCache is RWF_DONTCACHE (Linux 6.14): pages that the read brings in are dropped after it, and those that were there stay.
const dontCache = 0x80

// Once reads bytes of any file that nobody needs again soon. It goes through the page cache, and leaves no new pages there where the kernel and the
// filesystem know how. Its zero value is for the files of one filesystem.
type Once struct{ plain atomic.Bool }

// Pread is as pread(2).
func (o *Once) Pread(fd int, p []byte, at int64) (n int, err error) {
	if !o.plain.Load() {
		n, err = unix.Preadv2(fd, [][]byte{p}, at, dontCache)
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
			return n, err
		}
		o.plain.Store(true)
	}
	return unix.Pread(fd, p, at)
}
