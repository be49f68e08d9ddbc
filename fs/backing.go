package fs

import (
	"log/slog"
	"os"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
)

// noBacking is the backing id of a file that is read through this process.
const noBacking int32 = 0

// backings are the backing files that the kernel has for passthrough: one for each open inode, however often it is open.
// This process keeps no descriptor of them.
type backings struct {
	server interface { // the part of fuse.Server that takes files for passthrough
		RegisterBackingFd(*fuse.BackingMap) (id int32, errno syscall.Errno)
		UnregisterBackingFd(id int32) syscall.Errno
	}

	mu     sync.Mutex
	byNode map[int]*backing
	// refused are the nodes whose files the kernel has refused. cached counts the opens of a node without passthrough, now.
	refused  map[int]bool
	cached   map[int]int
	off      string // why there is no passthrough at all, "" while there is
	failures int64
	lastErr  string
	booked   func(id int32) // called once the books have an id that is new
}

type backing struct {
	id       int32
	opens    int
	released func() // called after the last close; nil where the daemon before has registered the file
}

func (b *backings) init() {
	b.byNode, b.refused, b.cached, b.booked = map[int]*backing{}, map[int]bool{}, map[int]int{}, func(int32) {}
}

// closedCached is the end of an open without passthrough. It reports whether no other is left.
func (b *backings) closedCached(i int) (last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cached[i]--; b.cached[i] == 0 {
		delete(b.cached, i)
		return true
	}
	return false
}

func (b *backings) disable(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.off = why
}

// why returns the reason for which passthrough is off, "" while it is on.
func (b *backings) why() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.off
}

// open opens node i with a backing id, until release, or through this process, with noBacking, until closedCached. One lock
// guards both, since the kernel refuses to mix them (EIO). open closes fd, which is -1 where there is no one local file. It
// calls released once the kernel no longer has the file, or at once where the kernel does not get this one. It books its
// decision under the lock, so that the books of the next daemon have every id. Where book says no, nothing is open.
func (b *backings) open(i, fd int, released func(), book func(id int32) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.byNode[i]
	switch {
	case k == nil:
		k = b.register(i, fd, released)
	case k.released == nil && fd >= 0: // the daemon before has registered it
		k.released = released
		_ = unix.Close(fd) // opened for reading: nothing is lost
	default:
		discard(fd, released)
	}
	if k == nil {
		if !book(noBacking) {
			return false
		}
		b.cached[i]++
		return true
	}
	k.opens++
	if !book(k.id) {
		b.drop(i, k, func() {})
		return false
	}
	if k.opens == 1 { // its id is new
		b.booked(k.id)
	}
	return true
}

// register offers a file to the kernel, and returns nil where the kernel does not get it.
func (b *backings) register(i, fd int, released func()) *backing {
	if fd < 0 || b.off != "" || b.refused[i] || b.cached[i] > 0 {
		discard(fd, released)
		return nil
	}
	id, errno := b.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if errno != 0 {
		b.failures++
		b.lastErr = errno.Error()
		b.refused[i] = true
		if errno == syscall.EPERM {
			b.off = noCapability
		}
		discard(fd, released)
		return nil
	}
	_ = unix.Close(fd) // opened for reading: nothing is lost
	b.byNode[i] = &backing{id: id, released: released}
	return b.byNode[i]
}

const noCapability = "the kernel wants CAP_SYS_ADMIN in the initial user namespace for passthrough: mount as root outside of containers"

// discard closes a file that is not needed.
func discard(fd int, released func()) {
	if fd >= 0 {
		_ = unix.Close(fd) // opened for reading: nothing is lost
		released()
	}
}

// release is the end of an open with passthrough. closing is called before the kernel takes the id back.
func (b *backings) release(i int, closing func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.byNode[i]; k != nil {
		b.drop(i, k, closing)
	}
}

func (b *backings) drop(i int, k *backing, closing func()) {
	if k.opens--; k.opens == 0 {
		closing()
		delete(b.byNode, i)
		_ = b.server.UnregisterBackingFd(k.id) // it fails only when the mount is gone, and all its ids with it
		if k.released != nil {
			k.released()
		}
	}
}

// adopt books an open of the daemon before.
func (b *backings) adopt(i int, id int32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id == noBacking {
		b.cached[i]++
		return
	}
	if b.byNode[i] == nil {
		b.byNode[i] = &backing{id: id}
	}
	b.byNode[i].opens++
}

// judge says why there is no passthrough, where that is known.
func (b *backings) judge(kernel *fuse.InitIn, log *slog.Logger) {
	if kernel.Flags64()&fuse.CAP_PASSTHROUGH == 0 {
		b.disable("the kernel has no FUSE passthrough: it came with Linux 6.9")
	} else if os.Geteuid() != 0 {
		b.disable("passthrough needs CAP_SYS_ADMIN: mount as root to let the kernel read the source itself")
	}
	if why := b.why(); why != "" {
		log.Info("files are read without passthrough", "reason", why)
	}
}

// closeLost gives back the backing id that the daemon before got and did not book. The kernel counts them, and one is got at a time. So
// IDs between the last that was booked and the next are lost, unless an open file has one: that is booked a moment earlier.
func (b *backings) closeLost(head *handlesHead, booked map[int32]bool) {
	f, err := handover.NewMemory("probe")
	if err != nil || b.why() != "" {
		return
	}
	defer func() { _ = f.Close() }() // it is empty
	next, errno := b.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(f.Fd())})
	if errno != 0 {
		return
	}
	const most = 1 << 10 // more are no gap: the kernel has begun again
	last := int32(head.lastBacking.Load())
	for id := last + 1; id < next && next-last < most; id++ {
		if !booked[id] {
			_ = b.server.UnregisterBackingFd(id) // most were never given
		}
	}
	_ = b.server.UnregisterBackingFd(next) // it was only asked for
	head.lastBacking.Store(int64(next))
}
