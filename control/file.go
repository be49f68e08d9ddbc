package control

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors of questions to a file or to a mount.
var (
	// ErrNotHBMFS says that a file is not in a mount of hbmfs, or has no extents.
	ErrNotHBMFS = errors.New("not a data file of an hbmfs mount")
	// ErrVersion says that the daemon speaks another version of the protocol.
	ErrVersion = errors.New("the daemon speaks another version of the control protocol")
	// ErrStale says that the daemon no longer knows a ticket or an object: it was restarted, or the ticket was too old.
	ErrStale = errors.New("stale: ask for the extents again")
)

// Questions to an open file take no context. The daemon answers them from memory, within microseconds. While it is stopped,
// the kernel ends no wait for it, as with every call on a file of its mount.

// Info asks for the identity of an open file.
func Info(f *os.File) (FileInfo, error) {
	p := pad(put32(make([]byte, 0, InfoSize), Version, 0), InfoSize-8)
	if err := ioctl(f, InfoCommand, p); err != nil {
		return FileInfo{}, fmt.Errorf("ask what %s is: %w", f.Name(), err)
	}
	i, err := ParseFileInfo(p)
	if err != nil {
		return FileInfo{}, fmt.Errorf("ask what %s is: %w", f.Name(), err)
	}
	return i, nil
}

// Batches asks for the extents of [off, off+n) of an open file, an answer at a time. With tickets each answer comes
// with one for its objects, which [Client.Redeem] takes within ten seconds: so redeem before the next answer.
func Batches(f *os.File, off, n int64, tickets bool) iter.Seq2[Batch, error] {
	q := ExtentsRequest{Offset: off, Length: min(n, math.MaxInt64-off)}
	if tickets {
		q.Flags = ExtentsTicket
	}
	return func(yield func(Batch, error) bool) {
		for room := firstRoom; ; room = MaxExtents {
			b, err := askExtents(f, q, room)
			if !yield(b, err) || err != nil || b.Last() {
				return
			}
			q.Cursor = b.Cursor
		}
	}
}

// firstRoom is the room of the first question, in extents: most files have few, and the kernel copies all of the room.
const firstRoom = 16

// Extents returns the extents of [off, off+n) of an open file, cut to it.
func Extents(f *os.File, off, n int64) ([]Extent, error) {
	var all []Extent
	for b, err := range Batches(f, off, n, false) {
		if err != nil {
			return nil, err
		}
		all = append(all, b.Extents...)
	}
	return all, nil
}

// Count returns how many extents [off, off+n) of an open file has.
func Count(f *os.File, off, n int64) (int64, error) {
	b, err := askExtents(f, ExtentsRequest{Flags: ExtentsCount, Offset: off, Length: min(n, math.MaxInt64-off)}, 0)
	return b.Total, err
}

func askExtents(f *os.File, q ExtentsRequest, room int) (Batch, error) {
	p := make([]byte, 0, ExtentsHeaderSize+room*ExtentSize)
	p = pad(q.AppendTo(p), room*ExtentSize)
	err := ioctl(f, ExtentsCommand(room), p)
	var b Batch
	if err == nil {
		b, err = ParseBatch(p)
	}
	if err != nil {
		return Batch{}, fmt.Errorf("ask for the extents of %s: %w", f.Name(), err)
	}
	return b, nil
}

// Prefetch says which ranges of an open file will be read soon, at most [MaxRanges]. The daemon may have too much to do
// already: then the error wraps EAGAIN, and nothing is lost.
func Prefetch(f *os.File, ranges ...Range) error {
	if err := ioctl(f, PrefetchCommand(len(ranges)), AppendPrefetch(nil, ranges)); err != nil {
		return fmt.Errorf("prefetch %s: %w", f.Name(), err)
	}
	return nil
}

// ioctl sends p and receives it changed. Go's own signals interrupt a process that waits for FUSE, so it asks again.
func ioctl(f *os.File, command uint32, p []byte) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		for {
			_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, uintptr(command), uintptr(unsafe.Pointer(&p[0])))
			if errno != syscall.EINTR {
				return
			}
		}
	})
	switch {
	case err != nil:
		return err
	case errno == syscall.ENOTTY, errno == syscall.EOPNOTSUPP:
		return ErrNotHBMFS
	case errno == syscall.EINVAL && p[0] != Version:
		return fmt.Errorf("%w: %d, this program %d", ErrVersion, p[0], Version)
	case errno != 0:
		return errno
	}
	return nil
}
