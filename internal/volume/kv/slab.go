package kv

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
)

// kept is the name under which the holder of the mount keeps a file of the memory tier.
func (t *tier) kept(part string) string {
	return "kv-" + strconv.FormatUint(t.space.meta.ID, 16) + "-" + part
}

// memoryFiles is how many files of a memory tier the holder keeps.
const memoryFiles = 3

// openMemory opens the files of a memory tier that a daemon before has left, or makes them.
func (t *tier) openMemory() (err error) {
	life := t.space.store.opt.Life
	if life.Adopts() {
		t.slab, t.index, t.shown = life.Took(t.kept(slabName)), life.Took(t.kept(indexName)), life.Took(t.kept("shown"))
	}
	if t.slab != nil && t.index != nil {
		t.huge = hasHuge(t.slab)
		return nil
	}
	if t.slab, t.shown, err = memorySlab(t.regionBytes()%hugePage == 0); err != nil {
		return err
	}
	t.huge = hasHuge(t.slab)
	if t.index, err = handover.NewMemory("kv-index"); err != nil {
		return err
	}
	if life == nil {
		return nil
	}
	if room, bounded := life.Room(); bounded && int64(len(life.Names()))+memoryFiles > room/2 {
		t.unkept = true // the holder would close them
		return nil
	}
	err = errors.Join(life.Keep(t.kept(slabName), t.slab), life.Keep(t.kept(indexName), t.index))
	if t.shown != nil && err == nil {
		err = life.Keep(t.kept("shown"), t.shown)
	}
	return err
}

// hugePage is the unit of a region's size in memory, so that huge pages take no more than the limit.
const hugePage = 2 << 20

// hasHuge asks the kernel whether a file in memory gets huge pages.
func hasHuge(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Blksize == hugePage
}

// memorySlab makes a file in memory, of huge pages where the kernel has them. They need no reservation, and are made, registered and given back many
// times faster. Where this process may, it lies on a tmpfs of its own, of which a read-only mount shows it to clients that may not write. Root
// cannot open that again for writing. Otherwise it is a memfd that only this user can open.
func memorySlab(huge bool) (slab, shown *os.File, err error) {
	if huge {
		slab, shown, err = tmpfsSlab(huge)
	}
	if slab == nil { // a kernel without huge pages knows no such option
		slab, shown, err = tmpfsSlab(false)
	}
	if err == nil {
		return slab, shown, nil
	}
	if slab, err = handover.NewMemory("kv-slab"); err != nil {
		return nil, nil, err
	}
	return slab, nil, slab.Chmod(0o600)
}

// tmpfsSlab makes a file on a tmpfs that no path leads to.
func tmpfsSlab(huge bool) (slab, shown *os.File, err error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = unix.Close(fs) }() // the mount has the filesystem
	err = errors.Join(unix.FsconfigSetString(fs, "size", "0"), unix.FsconfigSetString(fs, "mode", "0700"))
	if huge {
		err = errors.Join(err, unix.FsconfigSetString(fs, "huge", "always"))
	}
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return nil, nil, err
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = unix.Close(mount) }() // files keep it
	fd, err := unix.Openat(mount, slabName, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, nil, err
	}
	slab = os.NewFile(uintptr(fd), slabName)
	if shown, err = readOnlyBelow(mount, slabName); err != nil {
		return nil, nil, errors.Join(err, slab.Close())
	}
	return slab, shown, nil
}

// readOnlyBelow opens a file of a directory through a mount that is read-only, and that no path leads to.
func readOnlyBelow(dir int, name string) (*os.File, error) {
	clone, err := unix.OpenTree(dir, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("clone a mount: %w", err)
	}
	defer func() { _ = unix.Close(clone) }() // the file keeps it
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOATIME, Attr_clr: unix.MOUNT_ATTR__ATIME, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, fmt.Errorf("make the clone of a mount read-only: %w", err)
	}
	fd, err := unix.Openat(clone, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// give opens the slab for a client.
func (t *tier) give(write bool) (*os.File, error) {
	if write {
		return t.giveSlab()
	}
	if t.shown == nil && t.kind == control.KVDisk && !t.space.alone() {
		shown, err := readOnlyBelow(int(t.space.dir.Fd()), slabName)
		if err == nil {
			return shown, nil
		}
		return again(t.slab, unix.O_RDONLY) // this process is not root, and neither are those that it must not trust
	}
	if t.shown != nil {
		return again(t.shown, unix.O_RDONLY)
	}
	return again(t.slab, unix.O_RDONLY)
}

// giveSlab opens the slab once more: to write, or to read where the disk takes no writes.
func (t *tier) giveSlab() (*os.File, error) {
	if !t.closed {
		f, err := again(t.slab, unix.O_RDWR)
		if !noWrites(err) {
			return f, err
		}
		t.space.mu.Lock() // a disk that has become read-only: its blocks can be read, and memory takes new ones
		t.failed(err)
		t.space.mu.Unlock()
	}
	return again(t.slab, unix.O_RDONLY)
}

// again opens a file once more.
func again(f *os.File, flags int) (*os.File, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s again: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// extend makes one region more, where the limit has room for it. It is called without the lock, by one at a time: see [tier.growing].
func (t *tier) extend() (bool, error) {
	ok, err := t.budget.take(t.cost())
	if !ok || err != nil {
		return false, err
	}
	regions := int64(len(t.shelves)) // which nobody else changes now
	err = allocate(t.index, regions*t.indexBytes(), t.indexBytes())
	if err == nil {
		err = allocate(t.slab, regions*t.regionBytes(), t.regionBytes())
	}
	if err == nil && t.huge {
		populate(t.slab, regions*t.regionBytes(), t.regionBytes())
	}
	var s *shelf
	if err == nil {
		s, err = newShelf(int(t.perRegion))
	}
	t.space.mu.Lock()
	defer t.space.mu.Unlock()
	if err == nil {
		if err = t.table.fit(int(t.slots() + t.perRegion)); err != nil {
			unmap(s.memory)
		}
	}
	if err != nil {
		_ = t.index.Truncate(regions * t.indexBytes()) // it is found at the next mount
		_ = t.slab.Truncate(regions * t.regionBytes())
		t.budget.give(t.cost())
		return false, fmt.Errorf("make a slab longer: %w", err)
	}
	t.shelves = append(t.shelves, s)
	for n := t.slots() - 1; n >= regions*t.perRegion; n-- {
		t.setFree(uint32(n))
	}
	return true, nil
}

// populate has the kernel zero the pages of a region by several threads. Otherwise the client that registers the region waits for one.
func populate(f *os.File, at, n int64) {
	b, err := unix.Mmap(int(f.Fd()), at, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return // the client does it
	}
	var threads sync.WaitGroup
	part := max(n/int64(min(populators, runtime.NumCPU()))/hugePage, 1) * hugePage
	for from := int64(0); from < n; from += part {
		threads.Go(func() {
			_ = unix.Madvise(b[from:min(from+part, n)], unix.MADV_POPULATE_WRITE) // likewise
		})
	}
	threads.Wait()
	unmap(b)
}

// populators is how many threads zero a region.
const populators = 4

func allocate(f *os.File, at, n int64) error { return unix.Fallocate(int(f.Fd()), 0, at, n) }

// shrink gives the last region back, unless somebody holds a slot of it. The lock is held.
func (t *tier) shrink() bool {
	if len(t.shelves) == 0 || t.growing {
		return false
	}
	last := int64(len(t.shelves)-1) * t.perRegion
	for n := last; n < t.slots(); n++ {
		if s := t.at(uint32(n)); s.state == reserved || s.state == gone || s.state == stuck || s.holds > 0 {
			return false
		}
	}
	for n := last; n < t.slots(); n++ {
		if t.at(uint32(n)).state == ready {
			t.hide(uint32(n))
			t.evictions++
		} else {
			t.unlink(&t.free, uint32(n))
		}
	}
	if t.cuts != nil { // clients that come back map the file anew, and register it again
		*t.cuts++
	}
	shelves := len(t.shelves) - 1
	unmap(t.shelves[shelves].memory)
	t.shelves = t.shelves[:shelves]
	err := t.index.Truncate(int64(shelves) * t.indexBytes()) // first: a kill must not leave records without slots
	if err == nil {
		err = t.slab.Truncate(int64(shelves) * t.regionBytes())
	}
	if err != nil {
		t.failed(err)
		return false
	}
	t.budget.give(t.cost())
	return true
}

// zero empties the record of a slot.
func (t *tier) zero(n uint32) error {
	var none [recordSize]byte
	_, err := t.index.WriteAt(none[:], t.recordAt(n))
	return err
}
