package fs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// handles are the open files, in memory that the next daemon takes over. Each open has a handle of its own, so that a RELEASE that comes
// twice does nothing the second time. An OPEN whose answer was lost gets the same handle again.
type handles struct {
	file *os.File
	head *handlesHead
	slot []handle
	room *shares.Shares

	mu      sync.Mutex // guards the fields below, and who changes a slot
	free    []uint32   // slots that were used once
	used    uint32     // slots from here on were never used
	answers map[uint64]uint32
}

// handlesHead is the first page of the memory. Its layout, and that of handle, belong to handlesVersion.
type handlesHead struct {
	version     uint64
	lastBacking atomic.Int64 // the last backing id that the kernel gave
	lastObject  atomic.Int64 // the last number of a backing file that readers past FUSE heard of
	lives       atomic.Int64 // daemons that took the mount over
	standstill  atomic.Int64 // ns, at the last hand-over; 0 where it is not known
	worst       atomic.Int64
	crashes     atomic.Int64 // of lives
	owner       atomic.Int64 // the process that serves, 0 where it is not known
}

const handlesVersion = 1

// requestWrites marks a slot whose file may be written to. The kernel's numbers of requests are even (FUSE_INT_REQ_BIT of fs/fuse/fuse_dev_i.h). So
// daemons that do not know the mark can go on with the table.
const requestWrites = 1

// handle is a slot of the table. state makes it valid, and is written last.
type handle struct {
	state   atomic.Uint32
	life    uint32 // counts the uses of the slot
	node    uint32
	backing int32
	request uint64 // the number of the OPEN, and requestWrites
	size    uint32 // of a text
	uid     uint32 // who opened it
}

// States of a slot. A file that closes may have lost its backing id already.
const (
	handleFree uint32 = iota
	handleCached
	handlePassthrough
	handleClosing
	handleText
	handleOuter // of the filesystem around this one
)

// handlesMax bounds the files that are open at once. Pages of the table that were never used take no memory.
const (
	handlesMax  = 4 << 20
	handlesPage = 4096
	handlesSize = handlesPage + handlesMax*int(unsafe.Sizeof(handle{}))
)

// newHandles makes an empty table. It lies in a file in memory also where nobody takes it over. That counts as the pages that are used,
// however strict the kernel is with memory.
func newHandles() (*handles, error) {
	f, err := handover.NewMemory("handles")
	if err != nil {
		return nil, err
	}
	t := &handles{file: f, room: shares.New(handlesMax/2, handlesMax/2, 0)}
	if err = f.Truncate(int64(handlesSize)); err == nil {
		err = t.mapped()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the table of open files: %w", err), f.Close())
	}
	t.head.version = handlesVersion
	t.head.owner.Store(int64(os.Getpid()))
	return t, nil
}

// claim makes this process the one that serves after another, of which 0 says that it is not known. It is false where a third one was
// faster, and lives.
func (t *handles) claim(before int) bool {
	me, owner := int64(os.Getpid()), t.head.owner.Load()
	if before == 0 {
		t.head.owner.Store(me)
		return true
	}
	return (owner == 0 || owner == int64(before) || handover.Dying(int(owner))) && t.head.owner.CompareAndSwap(owner, me)
}

// openHandles takes over the table of the daemon before.
func openHandles(f *os.File) (*handles, error) {
	info, err := f.Stat()
	if err != nil || info.Size() != int64(handlesSize) {
		return nil, errors.Join(fmt.Errorf("%w: the table of open files has another size", handover.ErrRefused), err)
	}
	t := &handles{file: f, room: shares.New(handlesMax/2, handlesMax/2, 0), answers: map[uint64]uint32{}}
	if err := t.mapped(); err != nil {
		return nil, err
	}
	if t.head.version != handlesVersion {
		return nil, fmt.Errorf("%w: the table of open files has version %d, not %d", handover.ErrRefused, t.head.version, handlesVersion)
	}
	return t, nil
}

func (t *handles) mapped() error {
	p, err := unix.Mmap(int(t.file.Fd()), 0, handlesSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("map the table of open files: %w", err)
	}
	t.head = (*handlesHead)(unsafe.Pointer(&p[0]))
	t.slot = unsafe.Slice((*handle)(unsafe.Pointer(&p[handlesPage])), handlesMax)
	return nil
}

// recover goes through the slots that the daemon before has left.
func (t *handles) recover(each func(h *handle)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A slot that was never used has no life. Slots are taken from the lowest on, so a long stretch of such ones is the end.
	const stretch = 1024
	for i, unused := uint32(0), 0; i < handlesMax && unused < stretch; i++ {
		h := &t.slot[i]
		if h.life == 0 {
			unused++
			continue
		}
		unused, t.used = 0, i+1
		if h.state.Load() != handleFree {
			each(h)
		}
		if h.state.Load() == handleFree {
			t.free = append(t.free, i)
			continue
		}
		t.answers[h.request&^requestWrites] = i
		t.room.Book(h.uid, 1)
	}
}

// nodes are those of the open files.
func (t *handles) nodes() map[int]bool {
	open := map[int]bool{}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.used {
		if h := &t.slot[i]; h.state.Load() != handleFree {
			open[int(h.node)] = true
		}
	}
	return open
}

func nodeNumber(id uint64) uint32 { return uint32(number(id)) }

// number is the kernel's handle of an open file: the slot and its use.
func (t *handles) number(i uint32) uint64 { return uint64(t.slot[i].life)<<32 | uint64(i) }

// get returns the slot of an open file, nil where it is not open any more.
func (t *handles) get(number uint64) *handle {
	i := uint32(number)
	if i >= handlesMax || t.slot[i].life != uint32(number>>32) || t.slot[i].state.Load() == handleFree {
		return nil
	}
	return &t.slot[i]
}

// open books a file that a request opens, and returns its handle. ok is false where its user has no room left.
func (t *handles) open(of *fuse.InHeader, state uint32, backing int32, size int) (number uint64, ok bool) {
	return t.openAs(of, nodeNumber(of.NodeId), state, backing, size)
}

func (t *handles) openAs(of *fuse.InHeader, node, state uint32, backing int32, size int) (number uint64, ok bool) {
	if !t.room.Reserve(of.Uid, 1) {
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.used
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		t.used++
	}
	h := &t.slot[i]
	h.life = max(h.life+1, 1)
	h.node, h.backing, h.size, h.uid = node, backing, uint32(size), of.Uid
	_, h.request = handover.Resent(of.Unique)
	h.state.Store(state)
	return t.number(i), true
}

// answered returns the earlier answer to an OPEN that the kernel sends again, nil without one.
func (t *handles) answered(of *fuse.InHeader) (number uint64, h *handle) {
	again, request := handover.Resent(of.Unique)
	if !again {
		return 0, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.answers[request]
	if !ok || t.slot[i].state.Load() == handleFree || t.slot[i].node != nodeNumber(of.NodeId) {
		return 0, nil
	}
	return t.number(i), &t.slot[i]
}

// close frees a slot. It does nothing where that is done already.
func (t *handles) close(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.get(number)
	if h == nil {
		return
	}
	delete(t.answers, h.request&^requestWrites)
	t.room.Book(h.uid, -1)
	h.state.Store(handleFree)
	t.free = append(t.free, uint32(number))
}
