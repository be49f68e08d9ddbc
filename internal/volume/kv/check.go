package kv

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/uncached"
)

// intact looks whether the files of a namespace are as long as they were made. Blocks beyond the end of one that was cut are dropped, and it is made as
// long again.
func (sp *Space) intact() {
	for _, t := range sp.tiers {
		if t.length() {
			continue
		}
		sp.evicting.RLock()
		sp.mu.Lock()
		hidden := t.repair()
		sp.mu.Unlock()
		sp.erase(hidden)
		sp.evicting.RUnlock()
	}
}

// length tells whether the files of a tier have the length that they should have. One that is growing is looked at later.
func (t *tier) length() bool {
	t.space.mu.Lock()
	regions, growing := int64(len(t.shelves)), t.growing || t.down()
	t.space.mu.Unlock()
	var slab, index unix.Stat_t
	if growing || unix.Fstat(int(t.slab.Fd()), &slab) != nil || unix.Fstat(int(t.index.Fd()), &index) != nil {
		return true
	}
	return slab.Size == regions*t.regionBytes() && index.Size == regions*t.indexBytes()
}

// repair hides the blocks that a slab has lost, and allocates it again. The lock is held.
func (t *tier) repair() (hidden []booking) {
	var slab, index unix.Stat_t
	regions := int64(len(t.shelves))
	if t.growing || unix.Fstat(int(t.slab.Fd()), &slab) != nil || unix.Fstat(int(t.index.Fd()), &index) != nil {
		return nil
	}
	want := regions * t.regionBytes()
	if slab.Size == want && index.Size == regions*t.indexBytes() { // it was made longer meanwhile
		return nil
	}
	t.space.broken++
	if slab.Size < want {
		for n := slab.Size / t.slotBytes; n < t.slots(); n++ {
			if t.at(uint32(n)).state == ready {
				t.hide(uint32(n))
				t.at(uint32(n)).holds++
				hidden = append(hidden, booking{tier: t, slot: uint32(n)})
			}
		}
	}
	t.dropped += uint64(len(hidden))
	t.space.store.once(fmt.Sprint(t.space.name, time.Now().Unix()/60), "the %s slab of namespace %q was cut or grown behind the volume: it has %d bytes of %d; %d blocks are dropped", t.word(), t.space.name, slab.Size, want, len(hidden))
	err := t.restore(slab.Size, want, index.Size, regions*t.indexBytes())
	if err != nil {
		t.failed(err)
	}
	return hidden
}

// restore gives the files of a tier their lengths, and an index that was cut its records. The lock is held.
func (t *tier) restore(slab, want, index, wantIndex int64) error {
	if slab > want {
		if err := t.slab.Truncate(want); err != nil {
			return err
		}
	} else if slab < want {
		if err := allocate(t.slab, slab, want-slab); err != nil {
			return err
		}
	}
	if index > wantIndex {
		return t.index.Truncate(wantIndex)
	}
	if index == wantIndex {
		return nil
	}
	if err := allocate(t.index, index, wantIndex-index); err != nil {
		return err
	}
	var p [recordSize]byte
	for n := range t.slots() {
		if t.recordAt(uint32(n))+recordSize <= index || t.at(uint32(n)).state != ready {
			continue
		}
		t.compose(&p, uint32(n))
		if _, err := t.index.WriteAt(p[:], t.recordAt(uint32(n))); err != nil {
			return err
		}
	}
	return nil
}

// word names a tier for people.
func (t *tier) word() string {
	if t.kind == control.KVMemory {
		return "memory"
	}
	return "disk"
}

// sumOf reads a block, and gives its CRC-32C.
func (t *tier) sumOf(n uint32, length int64, buffer []byte) (uint32, error) {
	sum := uint32(0)
	for at := int64(0); at < length; {
		part := buffer[:min(int64(len(buffer)), length-at)]
		if err := t.read(part, int64(n)*t.slotBytes+at); err != nil {
			return 0, fmt.Errorf("read a block: %w", err)
		}
		sum = crc32.Update(sum, castagnoli(), part)
		at += int64(len(part))
	}
	return sum, nil
}

// inspect compares a block with its checksum, and drops it where it is damaged. The slot has a hold for that, which ends.
func (sp *Space) inspect(t *tier, n uint32) {
	sp.mu.Lock()
	s := *t.at(n)
	key := bytes.Clone(t.key(n))
	sp.mu.Unlock()
	var sum uint32
	var err error
	if s.bits&hasCRC != 0 && s.state == ready {
		sum, err = t.sumOf(n, int64(s.length), uncached.NewBuffer().Bytes)
	}
	if s.bits&hasCRC != 0 && s.state == ready && (err != nil || sum != s.crc) {
		sp.dropBlock(t, n, key, err == nil)
	}
	sp.mu.Lock()
	t.letGo(n)
	sp.mu.Unlock()
}

// dropBlock drops a block whose bytes have changed, or cannot be read, if it is there still.
func (sp *Space) dropBlock(t *tier, n uint32, key []byte, damaged bool) {
	sp.evicting.RLock()
	sp.mu.Lock()
	var hidden []booking
	if int64(n) < t.slots() && t.at(n).state == ready && bytes.Equal(t.key(n), key) {
		t.hide(n)
		t.at(n).holds++
		t.dropped++
		hidden = append(hidden, booking{tier: t, slot: n})
	}
	sp.mu.Unlock()
	sp.erase(hidden)
	sp.evicting.RUnlock()
	if len(hidden) == 0 {
		return
	}
	if damaged {
		sp.store.once("damaged "+sp.name+t.word(), "a block of namespace %q in the %s tier does not match its checksum, and is dropped: hbmfs kv verify looks at all", sp.name, t.word())
	} else {
		sp.store.once("unreadable "+sp.name+t.word(), "a block of namespace %q in the %s tier cannot be read, and is dropped", sp.name, t.word())
	}
}

// How much one KV_VERIFY looks at.
const (
	verifyBytes = 64 << 20
	verifySlots = 1 << 16
)

// verify answers KV_VERIFY. A cursor is the number of a slot, counted through all tiers.
func (sp *Space) verify(ctx context.Context, cursor uint64) (v control.KVVerified) {
	sp.intact()
	buffer := uncached.NewBuffer().Bytes
	at := cursor
	for ; at-cursor < verifySlots && v.Bytes < verifyBytes && ctx.Err() == nil; at++ {
		sp.mu.Lock()
		v.Slots = 0
		var t *tier
		n := at
		for _, c := range sp.tiers {
			v.Slots += uint64(c.slots())
			if t == nil && n < uint64(c.slots()) {
				t = c
			} else if t == nil {
				n -= uint64(c.slots())
			}
		}
		if t == nil {
			sp.mu.Unlock()
			v.At = v.Slots
			return v
		}
		s := t.at(uint32(n))
		if s.state != ready || s.bits&hasCRC == 0 {
			if s.state == ready {
				v.Unknown++
			}
			sp.mu.Unlock()
			continue
		}
		s.holds++
		key, length, crc := bytes.Clone(t.key(uint32(n))), int64(s.length), s.crc
		sp.mu.Unlock()
		sum, err := t.sumOf(uint32(n), length, buffer)
		v.Blocks++
		v.Bytes += uint64(length)
		if err != nil || sum != crc {
			v.Damaged++
			sp.dropBlock(t, uint32(n), key, err == nil)
		}
		sp.mu.Lock()
		t.letGo(uint32(n))
		sp.mu.Unlock()
	}
	v.Cursor, v.At = at, at
	return v
}
