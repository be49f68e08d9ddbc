package kv

import (
	"bytes"
	"hash/maphash"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/uncached"
)

// States of slots.
const (
	free     = iota
	reserved // given to a client, or the mover, to be written; its key is in the table
	ready    // it has a block
	gone     // its block was removed while somebody held it
	stuck    // its record on the disk is unknown: it could not be written
)

// Bits of slots.
const (
	visited = 1 << iota // SIEVE's: somebody found it since the hand was here
	hasCRC
)

// slot is a tier's state of a slot, beside its key. Numbers in links are one higher, 0 is none.
type slot struct {
	next, prev  uint32 // in the queue of blocks, or in the list of free slots
	length, crc uint32 // of the block
	holds       uint32
	state       uint8
	keyLen      uint8
	bits        uint8
	_           uint8
}

const slotSize = int(unsafe.Sizeof(slot{}))

// shelf is a tier's state of the slots of one region.
type shelf struct {
	memory []byte
	slots  []slot
	keys   []byte // control.MaxKVKey each
}

func newShelf(n int) (*shelf, error) {
	b, err := memoryFor(n * (slotSize + control.MaxKVKey))
	if err != nil {
		return nil, err
	}
	return &shelf{b, unsafe.Slice((*slot)(unsafe.Pointer(&b[0])), n), b[n*slotSize:]}, nil
}

// list is a list of slots.
type list struct {
	head, tail uint32
	n          int64
}

// tier is one tier of a namespace. The lock of its Space guards all but constant fields.
type tier struct {
	kind        control.KVTierKind
	space       *Space
	budget      *budget
	slab, index *os.File
	io          *uncached.File // of the disk: the slab, for its slots
	shown       *os.File       // the slab as clients without the right to write get it; nil: the slab itself
	cuts        *uint64        // of memory: how often regions went, over all lives of the mount. The Space's lock guards it
	unkept      bool           // of memory: the holder has no room for its files
	huge        bool           // of memory: the kernel gives it huge pages where it has some
	slotBytes   int64
	perRegion   int64 // slots
	seed        maphash.Seed

	extending sync.Mutex // held while a region is made; before the Space's lock
	growing   bool       // that is under way
	asked     time.Time  // for other namespaces' space, in vain
	rung      uint64     // the budget's, by then
	shelves   []*shelf
	table     table
	free      list
	queue     list              // of blocks: the newest first
	hand      uint32            // of SIEVE
	charged   map[charge]uint32 // holds of slots by users

	bytes                            int64 // of blocks
	hits, evictions, copied, dropped uint64
	faults                           uint64
	stranded                         []uint32 // slots whose records have to be zeroed before they are used again, which has failed
	fault                            error    // the last one
	faulted                          time.Time
	closed                           bool // it is never written; set before others see the tier
}

// faultPause is how long a tier that has failed is not written.
const faultPause = 5 * time.Second

// down tells whether the tier has failed a moment ago.
func (t *tier) down() bool { return t.closed || t.fault != nil && time.Since(t.faulted) < faultPause }

// shut keeps a tier from ever being written.
func (t *tier) shut(why error) {
	t.failed(why)
	t.closed = true
}

// failed notes that a call has failed.
func (t *tier) failed(err error) {
	t.fault, t.faulted = err, time.Now()
	t.faults++
}

func (t *tier) regionBytes() int64 { return t.perRegion * t.slotBytes }

// indexBytes is the index of a region.
func (t *tier) indexBytes() int64 { return (t.perRegion*recordSize + 4095) &^ 4095 }

// cost is the part of the limit that a region takes.
func (t *tier) cost() int64 { return t.regionBytes() + t.indexBytes() }

func (t *tier) slots() int64 { return int64(len(t.shelves)) * t.perRegion }

// recordAt is where the record of a slot lies in the index.
func (t *tier) recordAt(n uint32) int64 {
	return int64(n)/t.perRegion*t.indexBytes() + int64(n)%t.perRegion*recordSize
}

func (t *tier) at(n uint32) *slot {
	return &t.shelves[int64(n)/t.perRegion].slots[int64(n)%t.perRegion]
}

// key gives the key of a slot, which is valid while the lock is held.
func (t *tier) key(n uint32) []byte {
	s := t.shelves[int64(n)/t.perRegion]
	i := int64(n) % t.perRegion
	return s.keys[i*control.MaxKVKey : i*control.MaxKVKey+int64(s.slots[i].keyLen)]
}

func (t *tier) setKey(n uint32, key []byte) {
	s := t.shelves[int64(n)/t.perRegion]
	i := int64(n) % t.perRegion
	s.slots[i].keyLen = uint8(len(key))
	copy(s.keys[i*control.MaxKVKey:], key)
}

func (t *tier) hash(key []byte) uint32 { return uint32(maphash.Bytes(t.seed, key)) }

// find gives the slot of a key that is ready or reserved.
func (t *tier) find(hash uint32, key []byte) (uint32, bool) {
	return t.table.find(hash, func(n uint32) bool { return bytes.Equal(t.key(n), key) })
}

// push puts a slot first.
func (t *tier) push(l *list, n uint32) {
	s := t.at(n)
	s.prev, s.next = 0, l.head
	if l.head != 0 {
		t.at(l.head - 1).prev = n + 1
	} else {
		l.tail = n + 1
	}
	l.head = n + 1
	l.n++
}

// unlink takes a slot out of a list.
func (t *tier) unlink(l *list, n uint32) {
	s := t.at(n)
	if s.prev != 0 {
		t.at(s.prev - 1).next = s.next
	} else {
		l.head = s.next
	}
	if s.next != 0 {
		t.at(s.next - 1).prev = s.prev
	} else {
		l.tail = s.prev
	}
	s.next, s.prev = 0, 0
	l.n--
}

// setFree gives a slot back.
func (t *tier) setFree(n uint32) {
	s := t.at(n)
	*s = slot{state: free}
	t.push(&t.free, n)
}

// reserve takes a slot for a key.
func (t *tier) reserve(n, hash uint32, key []byte, length uint32) {
	s := t.at(n)
	*s = slot{state: reserved, length: length}
	t.setKey(n, key)
	t.table.insert(hash, n)
}

// show makes a reserved slot a block that is found.
func (t *tier) show(n uint32) {
	t.at(n).state = ready
	t.push(&t.queue, n)
	t.bytes += int64(t.at(n).length)
}

// hide takes a block out: nobody finds it any more. Its slot is gone, and its record is there still.
func (t *tier) hide(n uint32) {
	s := t.at(n)
	if t.hand == n+1 {
		t.hand = s.prev
	}
	t.unlink(&t.queue, n)
	t.table.remove(t.hash(t.key(n)), n)
	t.bytes -= int64(s.length)
	s.state = gone
}

// unreserve gives a reserved slot back that nobody has committed.
func (t *tier) unreserve(n uint32) {
	t.table.remove(t.hash(t.key(n)), n)
	t.setFree(n)
	t.spared()
}

// strand keeps a reserved slot from being used, whose record could not be written: it may say anything.
func (t *tier) strand(n uint32) {
	t.table.remove(t.hash(t.key(n)), n)
	t.at(n).state = stuck
	t.stranded = append(t.stranded, n)
}

// letGo ends one hold of a slot.
func (t *tier) letGo(n uint32) {
	s := t.at(n)
	if s.holds--; s.holds == 0 && s.state == gone {
		t.setFree(n)
	}
	t.spared()
}

// spared says of memory that nobody uses that less of it is held: who waits for it looks again. The lock is held.
func (t *tier) spared() {
	if t.kind == control.KVMemory && t.space.opened == 0 {
		t.budget.ring()
	}
}

// evict finds a block that makes room, by SIEVE: the hand goes from the oldest to the newest. It spares blocks that were found since its last visit,
// and takes the first other that nobody holds and that may go. It looks at most blocks. The block is hidden, and its record there still.
func (t *tier) evict(most int64, may func(n uint32) bool) (n uint32, ok bool) {
	at := t.hand
	for steps := min(2*t.queue.n, most); steps > 0; steps-- {
		if at == 0 {
			if at = t.queue.tail; at == 0 {
				return 0, false
			}
		}
		n = at - 1
		s := t.at(n)
		switch {
		case s.holds > 0:
		case s.bits&visited != 0:
			s.bits &^= visited
		case may == nil || may(n):
			t.hand = s.prev
			t.hide(n)
			t.evictions++
			return n, true
		}
		at = s.prev
	}
	if may == nil {
		t.hand = at
	}
	return 0, false
}

// mostSteps bounds a search for a block to evict, while the lock is held.
const mostSteps = 1 << 18

// take gives a slot without a block: a free one, or one whose block may go. old: its record has to be zeroed before somebody writes it.
func (t *tier) take(most int64, may func(n uint32) bool) (n uint32, old, ok bool) {
	if t.free.head != 0 {
		n = t.free.head - 1
		t.unlink(&t.free, n)
		return n, false, true
	}
	n, ok = t.evict(most, may)
	return n, ok, ok
}

// read fills p with a slot's bytes.
func (t *tier) read(p []byte, at int64) error {
	if t.io != nil {
		return t.io.ReadAt(p, at)
	}
	_, err := t.slab.ReadAt(p, at)
	return err
}

func (t *tier) write(p []byte, at int64) error {
	if t.io != nil {
		return t.io.WriteAt(p, at)
	}
	_, err := t.slab.WriteAt(p, at)
	return err
}

// close frees the tier's memory, and closes its files.
func (t *tier) close() {
	for _, s := range t.shelves {
		unmap(s.memory)
	}
	t.shelves = nil
	t.table.close()
	if t.io != nil {
		_ = t.io.Close() // as below
	}
	for _, f := range []*os.File{t.slab, t.index, t.shown} {
		if f != nil {
			_ = f.Close() // its data was synced before
		}
	}
}
