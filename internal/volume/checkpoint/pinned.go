package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/sys/pause"
)

// A system call may pin a page of a shared mapping and write to it when the mapping and its descriptor are long gone. Examples are
// process_vm_writev that waits on userfaultfd, a read with O_DIRECT from a slow device, and RDMA. The kernel's lease does not show that. But the
// kernel drops no page from the page cache that somebody has pinned, so a file without any page in memory can be written to no more.
//
// A reflink would not do. The clone and the pinned page share blocks of the disk, and the kernel writes a page that was dirtied by a pin in place.

// unpinned makes sure that nobody has pinned a page of a file that has a lease. It syncs the file and drops its pages, until all are gone. [ErrOpen]: some
// stay for [pause.Patience], since the kernel holds some itself while it moves or reclaims pages, and for patience. Files of tmpfs and DAX are memory themselves, and there nobody can tell.
func unpinned(ctx context.Context, f *os.File, name string, sync func() error, patience time.Duration) error {
	if isMemory(f) {
		return nil
	}
	for deadline := time.Now().Add(max(patience, pause.Patience)); ; {
		if err := sync(); err != nil {
			return err
		}
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return os.NewSyscallError("fadvise", err)
		}
		pages, err := cached(f)
		if err != nil || pages == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return failf(ErrOpen, "a program could map file %q for writing, and %d of its pages are in use: end what maps or reads it, and system calls that may still write to it, then publish again", name, pages)
		}
		if err := pause.For(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

func isMemory(f *os.File) bool {
	var st unix.Statfs_t
	err := unix.Fstatfs(int(f.Fd()), &st)
	return err == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC || st.Type == unix.HUGETLBFS_MAGIC)
}

// cached counts the pages of a file in the page cache. A kernel before 6.5 cannot tell.
func cached(f *os.File) (pages uint64, err error) {
	var st unix.Cachestat_t
	err = unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &st, 0)
	if errors.Is(err, unix.ENOSYS) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for pages in memory: %w", err)
	}
	return st.Cache, nil
}
