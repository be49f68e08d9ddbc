package kv

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
)

// kind is the kind of a hold.
type kind uint8

const (
	pin         kind = iota + 1
	reservation      // of a slot that a client writes
	committed        // a reservation whose COMMIT a daemon before has done, and may not have answered
)

// hold is a slot that a process holds.
type hold struct {
	space *Space
	tier  *tier
	slot  uint32
	kind  kind
	busy  bool  // a COMMIT of it is under way
	entry int32 // in the table of holds
}

// holdTable has the holds for the next daemon: memory that all lives share. An entry, little-endian: token (u64, written last; 0: it is free), owner,
// namespace (u64 each), slot, length (u32 each), tier, kind, length of the key (u8 each), 5 zeros, key. Of the owner's process follow the inode of its
// descriptors (u64; 0: the kernel has none), the user and the number (u32 each). Behind the entries is a cell for each namespace: its number (u64),
// and how often its memory tier was cut (u64).
type holdTable struct {
	file   *os.File
	memory []byte

	mu   sync.Mutex // guards the fields below
	free []int32
	next int32 // beyond it nothing was used
}

const (
	entrySize = 128
	entries   = 2 * mostHolds // the user of the daemon has a share apart, and each user a few in any case
	entryKey  = 40
	entryOf   = entryKey + control.MaxKVKey
	cutsAt    = entries * entrySize
	cutsSize  = 16
	tableSize = cutsAt + mostSpaces*cutsSize
	keptHolds = "kv-holds"
)

// openHolds takes the table of the daemon before, or makes one.
func (s *Store) openHolds() (h *holdTable, err error) {
	h = &holdTable{}
	life := s.opt.Life
	if life.Adopts() {
		h.file = life.Took(keptHolds)
	}
	if h.file == nil {
		if h.file, err = handover.NewMemory("kv-holds"); err != nil {
			return nil, err
		}
		if life != nil {
			err = life.Keep(keptHolds, h.file)
		}
		if err != nil {
			return nil, err
		}
	}
	if err = h.file.Truncate(tableSize); err != nil {
		return nil, err
	}
	h.memory, err = unix.Mmap(int(h.file.Fd()), 0, tableSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the table of holds: %w", err)
	}
	return h, nil
}

func (h *holdTable) close() {
	if h != nil {
		unmap(h.memory)
		_ = h.file.Close() // it is memory
	}
}

func (h *holdTable) token(n int32) *uint64 {
	return (*uint64)(unsafe.Pointer(&h.memory[int(n)*entrySize]))
}

// cuts gives the cell that counts how often the memory tier of a namespace was cut. Without room it counts from a number that no client has seen.
func (h *holdTable) cuts(id uint64) *uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := cutsAt; at < tableSize; at += cutsSize {
		of := (*uint64)(unsafe.Pointer(&h.memory[at]))
		if *of == 0 {
			*of = id
		}
		if *of == id {
			return (*uint64)(unsafe.Pointer(&h.memory[at+8]))
		}
	}
	n := newID()
	return &n
}

// take finds a free entry.
func (h *holdTable) take() (n int32, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if last := len(h.free) - 1; last >= 0 {
		n, h.free = h.free[last], h.free[:last]
		return n, true
	}
	if h.next == entries {
		return 0, false
	}
	h.next++
	return h.next - 1, true
}

// add writes an entry, where there is room for one.
func (h *holdTable) add(token uint64, by *owner, o *hold, key []byte, length uint32) (ok bool) {
	if o.entry, ok = h.take(); !ok {
		return false
	}
	e := h.memory[int(o.entry)*entrySize : (int(o.entry)+1)*entrySize]
	binary.LittleEndian.PutUint64(e[8:], by.id)
	binary.LittleEndian.PutUint64(e[16:], o.space.meta.ID)
	binary.LittleEndian.PutUint32(e[24:], o.slot)
	binary.LittleEndian.PutUint32(e[28:], length)
	e[32], e[33], e[34] = byte(o.tier.kind), byte(o.kind), byte(len(key))
	copy(e[entryKey:], key)
	binary.LittleEndian.PutUint64(e[entryOf:], by.inode)
	binary.LittleEndian.PutUint32(e[entryOf+8:], by.uid)
	binary.LittleEndian.PutUint32(e[entryOf+12:], uint32(by.pid))
	atomic.StoreUint64(h.token(o.entry), token)
	return true
}

// remove frees an entry.
func (h *holdTable) remove(o *hold) {
	atomic.StoreUint64(h.token(o.entry), 0)
	h.mu.Lock()
	h.free = append(h.free, o.entry)
	h.mu.Unlock()
}

// entry is a hold that a daemon before has left.
type entry struct {
	token, owner, space uint64
	slot, length        uint32
	tier                control.KVTierKind
	kind                kind
	key                 []byte
	inode               uint64 // of the owner's process
	uid, pid            uint32
}

// each gives all entries, and finds those that are free.
func (h *holdTable) each(f func(n int32, e entry) (keep bool)) {
	h.next = entries
	for n := int32(entries - 1); n >= 0; n-- {
		p := h.memory[int(n)*entrySize : (int(n)+1)*entrySize]
		token := atomic.LoadUint64(h.token(n))
		if token != 0 {
			e := entry{
				token, binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[16:]), binary.LittleEndian.Uint32(p[24:]), binary.LittleEndian.Uint32(p[28:]),
				control.KVTierKind(p[32]), kind(p[33]), p[entryKey : entryKey+min(int(p[34]), control.MaxKVKey)],
				binary.LittleEndian.Uint64(p[entryOf:]), binary.LittleEndian.Uint32(p[entryOf+8:]), binary.LittleEndian.Uint32(p[entryOf+12:]),
			}
			if f(n, e) {
				continue
			}
			atomic.StoreUint64(h.token(n), 0)
		}
		if h.next == n+1 {
			h.next = n
		} else {
			h.free = append(h.free, n)
		}
	}
}

// adoptHolds goes on with processes' holds from the daemon before.
func (s *Store) adoptHolds() {
	if !s.opt.Life.Adopts() {
		return
	}
	owners := s.adoptOwners()
	s.mu.Lock()
	s.await = time.Now().Add(awaitTime)
	s.mu.Unlock()
	byID := map[uint64]*Space{}
	for _, sp := range s.all() {
		byID[sp.meta.ID] = sp
	}
	s.table.each(func(n int32, e entry) bool {
		o, sp := owners[e.owner], byID[e.space]
		if o == nil {
			if o = s.missedOwner(&e); o != nil {
				owners[o.id] = o
			}
		}
		if o == nil || sp == nil {
			return false
		}
		return o.adopt(s, sp, n, &e)
	})
	for _, o := range owners {
		s.watch(o)
	}
}

// adopt goes on with a hold of the daemon before.
func (o *owner) adopt(s *Store, sp *Space, n int32, e *entry) bool {
	var t *tier
	for _, c := range sp.tiers {
		if c.kind == e.tier {
			t = c
		}
	}
	if t == nil || int64(e.slot) >= t.slots() || len(e.key) == 0 {
		return false
	}
	sl := t.at(e.slot)
	h := &hold{space: sp, tier: t, slot: e.slot, kind: e.kind, entry: n}
	switch {
	case e.kind == reservation && sl.state == free:
		if _, there := t.find(t.hash(e.key), e.key); there { // its COMMIT was done, and the slot moved on: the token is over
			return false
		}
		t.unlink(&t.free, e.slot)
		t.reserve(e.slot, t.hash(e.key), e.key, e.length)
		sp.reservations++
	case sl.state == ready && string(t.key(e.slot)) == string(e.key): // a pin, or a reservation whose COMMIT was done
		if e.kind == reservation {
			h.kind = committed
		}
		sl.holds++
		sp.pins++
	case e.kind == pin && (sl.state == free || sl.state == gone): // its block was removed, and the process reads it still
		if sl.state == free {
			t.unlink(&t.free, e.slot)
			*sl = slot{state: gone}
		}
		sl.holds++
		sp.pins++
	default:
		return false
	}
	o.holds[e.token] = h
	s.book(o.uid, t, e.slot)
	if last := s.token.Load(); e.token > last {
		s.token.Store(e.token)
	}
	return true
}
