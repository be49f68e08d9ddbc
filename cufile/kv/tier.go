package kv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile/internal/driver"
	"github.com/hbmfs/hbmfs/internal/sys/uncached"
)

// tier is one file of a namespace, of as many connections as the daemon gives it on. A memory tier is mapped as a whole, which may be
// more than the file has. A region is used only once the daemon gave a slot of it.
type tier struct {
	kind     control.KVTierKind
	file     *os.File
	dev, ino uint64
	bytes    int64
	region   int64
	cuts     uint64
	writes   bool
	gpu      *gpu           // nil on the host
	memory   []byte         // the mapping; nil of a disk tier
	disk     *uncached.File // nil of a memory tier

	mu      sync.Mutex // guards the fields below
	users   int        // connections and requests
	regions []region
	pinned  int64
}

// region is a part of the mapping: whether its pages are there, and registered with CUDA.
type region struct {
	ready, registered bool
}

// newTier takes a descriptor over.
func newTier(f *os.File, t control.KVTier, slotBytes int64, writes bool, g *gpu) (*tier, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("fstat of a tier: %w", err)
	}
	n := &tier{kind: t.Kind, file: f, dev: st.Dev, ino: st.Ino, bytes: t.Bytes, region: t.Region, cuts: t.Cuts, writes: writes, gpu: g, users: 1}
	if t.Region <= 0 || t.Bytes < 0 || t.Region%slotBytes != 0 {
		return nil, fmt.Errorf("a tier of %d bytes in regions of %d with slots of %d cannot be", t.Bytes, t.Region, slotBytes)
	}
	if t.Kind != control.KVMemory {
		if n.disk = uncached.Through(f, "the volume was mounted so: without --memory, or with --disk-io buffered"); t.Flags&control.KVDirect != 0 {
			n.disk = uncached.Open(f)
		}
		return n, nil
	}
	if t.Bytes == 0 {
		return n, nil
	}
	n.regions = make([]region, (t.Bytes+t.Region-1)/t.Region)
	protection := unix.PROT_READ
	if writes {
		protection |= unix.PROT_WRITE
	}
	var err error
	if n.memory, err = unix.Mmap(int(f.Fd()), 0, int(t.Bytes), protection, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map the memory tier, %d bytes: %w", t.Bytes, err)
	}
	return n, nil
}

// is says whether a descriptor is the tier's file, whose regions are those that were prepared.
func (t *tier) is(f *os.File, given control.KVTier) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Dev == t.dev && st.Ino == t.ino &&
		given.Kind == t.kind && given.Bytes == t.bytes && given.Region == t.region && given.Cuts == t.cuts
}

func (t *tier) hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users++
}

// drop ends a use. The last one unmaps.
func (t *tier) drop() error {
	t.mu.Lock()
	t.users--
	last := t.users == 0
	t.mu.Unlock()
	if !last {
		return nil
	}
	var errs []error
	for i := range t.regions {
		if t.regions[i].registered {
			errs = append(errs, t.gpu.Within(func() error { return t.gpu.CUDA.Unregister(t.part(i)) }))
		}
	}
	if t.memory != nil {
		errs = append(errs, unix.Munmap(t.memory))
	}
	return errors.Join(append(errs, t.file.Close())...)
}

func (t *tier) part(i int) []byte {
	first := int64(i) * t.region
	return t.memory[first:min(first+t.region, int64(len(t.memory)))]
}

// prepare brings the pages of the region that an offset lies in, and registers it where there is a GPU. It says whether it is
// registered; where it cannot be, bytes are staged.
func (t *tier) prepare(offset int64) bool {
	if t.memory == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := int(offset / t.region)
	r := &t.regions[i]
	if r.ready {
		return r.registered
	}
	r.ready = true
	part := t.part(i)
	if t.gpu == nil {
		advice := unix.MADV_POPULATE_READ
		if t.writes {
			advice = unix.MADV_POPULATE_WRITE
		}
		_ = unix.Madvise(part, advice) // otherwise each page comes when it is used
		return false
	}
	flags := uint32(driver.HostPortable | driver.HostDeviceMap)
	if !t.writes {
		flags |= driver.HostReadOnly
	}
	if t.gpu.Within(func() error { return t.gpu.CUDA.Register(part, flags) }) == nil {
		r.registered = true
		t.pinned += int64(len(part))
	}
	return r.registered
}

// warm prepares the regions that the file has by now, so that requests need not.
func (t *tier) warm(ctx context.Context) {
	var st unix.Stat_t
	if t.memory == nil || unix.Fstat(int(t.file.Fd()), &st) != nil {
		return
	}
	for at := int64(0); at+t.region <= st.Size && at < t.bytes && ctx.Err() == nil; at += t.region {
		t.prepare(at)
	}
}

// inside says whether n bytes at a slot are the tier's, and whole in one region.
func (t *tier) inside(slot uint64, slotBytes int64, n int64) bool {
	return slot < uint64(t.bytes/slotBytes) && n <= slotBytes
}

// slot gives the mapped memory at an offset.
func (t *tier) slot(offset, n int64) []byte { return t.memory[offset : offset+n : offset+n] }

// direct tells whether slots are read and written past the page cache.
func (t *tier) direct() bool { return t.disk != nil && t.disk.Buffered() == "" }

// write copies bytes to an offset of a tier, past which they stay in the daemon's hands.
func (t *tier) write(p []byte, offset int64) error {
	if t.memory != nil {
		copy(t.slot(offset, int64(len(p))), p)
		return nil
	}
	return t.disk.WriteAt(p, offset)
}

func (t *tier) read(p []byte, offset int64) error {
	if t.memory != nil {
		copy(p, t.slot(offset, int64(len(p))))
		return nil
	}
	return t.disk.ReadAt(p, offset)
}
