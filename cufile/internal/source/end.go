package source

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

// End tells whether a file was cut before the end of memory that it is mapped to, without a descriptor. It is the last byte of the memory's last page
// that is not zero. Where a file is cut in that page the rest of it becomes zeros; where it is cut before, the page can be read no more. Linux copies
// the byte for us, since reading it ourselves would then be a SIGBUS.
type End struct {
	at   uintptr
	byte byte
}

// EndOf looks at mapped memory, which is whole pages. It fails where the file was cut already, or the kernel does not copy memory of a process to itself.
func EndOf(memory []byte) (*End, error) {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(memory))) + uintptr(len(memory)) - driver.PageSize
	page := make([]byte, driver.PageSize)
	n, err := copyOwn(page, []unix.RemoteIovec{{Base: first, Len: driver.PageSize}})
	if err == nil && n < len(page) {
		err = unix.EFAULT
	}
	if err != nil {
		return nil, fmt.Errorf("read the last page of a mapping: %w", err)
	}
	last := len(page) - 1
	for last > 0 && page[last] == 0 {
		last--
	}
	return &End{first + uintptr(last), page[last]}, nil
}

// copyOwn copies memory of this process, up to the first that cannot be read.
func copyOwn(to []byte, from []unix.RemoteIovec) (int, error) {
	local := unix.Iovec{Base: unsafe.SliceData(to)}
	local.SetLen(len(to))
	return unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{local}, from, 0)
}

// mostEnds is how many one system call looks at (IOV_MAX).
const mostEnds = 1024

// cut gives those of at most mostEnds ends that are not as they were.
func cut(ends []*End) (list []int) {
	from, found := make([]unix.RemoteIovec, len(ends)), make([]byte, len(ends))
	for i, e := range ends {
		from[i] = unix.RemoteIovec{Base: e.at, Len: 1}
	}
	for first := 0; first < len(ends); {
		n, err := copyOwn(found[first:], from[first:])
		if err != nil {
			n = 0
		}
		for i := first; i < first+n; i++ {
			if found[i] != ends[i].byte {
				list = append(list, i)
			}
		}
		if first += n; first < len(ends) { // where it stopped
			list = append(list, first)
			first++
		}
	}
	return list
}
