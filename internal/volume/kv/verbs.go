package kv

import (
	"bytes"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// grant makes a hold of a slot. The namespace's lock is held. It fails where users hold their share, the process has ended, or goes on with
// another connection.
func (c *Session) grant(t *tier, n uint32, k kind) (token uint64, errno unix.Errno) {
	s, o := c.store, c.owner
	if !s.charge(o.uid, t, n) {
		return 0, unix.EDQUOT
	}
	token = s.newToken()
	h := &hold{space: t.space, tier: t, slot: n, kind: k}
	o.mu.Lock()
	switch {
	case o.latest != c:
		errno = unix.ESTALE
	case o.over || !s.table.add(token, o, h, t.key(n), t.at(n).length):
		errno = unix.EDQUOT
	default:
		o.holds[token] = h
	}
	o.mu.Unlock()
	if errno != 0 {
		s.uncharge(o.uid, t, n)
		return 0, errno
	}
	if k == pin {
		t.at(n).holds++
		t.space.pins++
	} else {
		t.space.reservations++
	}
	return token, 0
}

// forget takes a hold out of all books. The namespace's lock is held.
func (s *Store) forget(o *owner, token uint64) *hold {
	o.mu.Lock()
	h := o.holds[token]
	delete(o.holds, token)
	o.mu.Unlock()
	if h == nil {
		return nil
	}
	s.table.remove(h)
	s.uncharge(o.uid, h.tier, h.slot)
	if h.kind == reservation {
		h.space.reservations--
	} else {
		h.space.pins--
	}
	return h
}

// release ends a hold: a pin, or a reservation that is given up. The namespace's lock is held.
func (s *Store) release(o *owner, token uint64) {
	h := s.forget(o, token)
	switch {
	case h == nil:
	case h.kind == reservation:
		h.tier.unreserve(h.slot)
	default:
		h.tier.letGo(h.slot)
	}
}

// lookup answers KV_LOOKUP.
func (c *Session) lookup(sp *Space, keys [][]byte, pins bool) []control.KVSlot {
	sp.intact()
	out := make([]control.KVSlot, len(keys))
	var again []wish
	sp.mu.Lock()
	sp.used = time.Now()
	for i, key := range keys {
		t, n, ok := sp.find(key)
		if !ok {
			sp.misses++
			out[i].Errno = unix.ENOENT
			continue
		}
		sl := t.at(n)
		sp.hits++
		t.hits++
		if t != sp.tiers[0] && sl.bits&visited != 0 {
			again = append(again, wish{sp, bytes.Clone(key)})
		}
		sl.bits |= visited
		if out[i] = t.answer(n); !pins {
			continue
		}
		token, errno := c.grant(t, n, pin)
		if d := sp.disk(); errno == unix.EDQUOT && t != d { // the user may have pinned the block before it was copied to memory
			if at, ok := d.find(d.hash(key), key); ok && d.at(at).state == ready && d.charged[charge{c.owner.uid, at}] > 0 {
				out[i] = d.answer(at)
				token, errno = c.grant(d, at, pin)
			}
		}
		if out[i].Token = token; errno != 0 {
			out[i] = control.KVSlot{Errno: errno}
		}
	}
	sp.mu.Unlock()
	for _, w := range again {
		select {
		case c.store.wanted <- w:
		default: // it will be found again
		}
	}
	return out
}

// answer says where the block of a slot is. The lock is held.
func (t *tier) answer(n uint32) control.KVSlot {
	s := t.at(n)
	a := control.KVSlot{Tier: t.space.placeOf(t), Slot: uint64(n), Length: s.length, CRC: s.crc}
	if s.bits&hasCRC != 0 {
		a.Flags = control.KVHasCRC
	}
	return a
}

// find gives the block of a key: in memory, or else on the disk. The lock is held.
func (sp *Space) find(key []byte) (t *tier, n uint32, ok bool) {
	for _, t := range sp.tiers {
		if n, ok := t.find(t.hash(key), key); ok && t.at(n).state == ready {
			return t, n, true
		}
	}
	return nil, 0, false
}

// placeOf gives the place of a tier.
func (sp *Space) placeOf(t *tier) uint32 {
	if t == sp.tiers[0] {
		return 0
	}
	return 1
}

// booking is a slot that is about to be given to a client.
type booking struct {
	tier *tier
	slot uint32
	old  bool // its record has to be zeroed
}

// reserve answers KV_RESERVE.
func (c *Session) reserve(sp *Space, blocks []control.KVBlock) []control.KVSlot {
	sp.intact()
	out := make([]control.KVSlot, len(blocks))
	got := make([]booking, len(blocks))
	sp.lockWithRoom(int64(len(blocks)))
	sp.used = time.Now()
	for i := range blocks {
		out[i], got[i] = c.reserveOne(sp, &blocks[i])
	}
	low, short := sp.low(), sp.memory().short()
	sp.mu.Unlock()
	if low {
		c.store.wake()
	}
	if short {
		c.store.later(sp.memory())
	}
	failed := make([]error, len(blocks))
	for i, b := range got {
		if b.tier != nil && b.old {
			failed[i] = b.tier.zero(b.slot)
		}
	}
	sp.evicting.RUnlock()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for i, b := range got {
		if b.tier == nil {
			continue
		}
		out[i] = c.give(sp, b, failed[i])
	}
	return out
}

// lockWithRoom takes the lock, and evicting, with n slots of a tier free where the limits have room for that.
func (sp *Space) lockWithRoom(n int64) {
	for tries := 0; ; tries++ {
		may := sp.store.roomFor(sp, n)
		sp.evicting.RLock()
		sp.mu.Lock()
		if !may || tries == 8 || sp.tiers[0].free.n >= n || sp.disk().free.n >= n {
			return
		}
		sp.mu.Unlock() // others were faster
		sp.evicting.RUnlock()
	}
}

// reserveOne finds a slot for a block. The lock is held.
func (c *Session) reserveOne(sp *Space, b *control.KVBlock) (a control.KVSlot, got booking) {
	if int64(b.Length) > sp.meta.Block {
		return control.KVSlot{Errno: unix.EINVAL}, got
	}
	for _, t := range sp.tiers {
		n, ok := t.find(t.hash(b.Key), b.Key)
		if !ok {
			continue
		}
		sp.exists++
		if t.at(n).state == ready {
			t.at(n).bits |= visited
			return control.KVSlot{Errno: unix.EEXIST}, got
		}
		return control.KVSlot{Errno: unix.EBUSY}, got
	}
	t, n, old, ok := sp.takeSlot()
	if !ok {
		sp.refused++
		return control.KVSlot{Errno: unix.ENOSPC}, got
	}
	t.reserve(n, t.hash(b.Key), b.Key, b.Length)
	return a, booking{t, n, old}
}

// takeSlot finds room: in memory, where nothing is lost by it, or else on the disk; where that cannot be written, in memory again. The lock is held.
func (sp *Space) takeSlot() (t *tier, n uint32, old, ok bool) {
	memory, disk := sp.memory(), sp.disk()
	if memory != nil {
		if n, old, ok = memory.take(cleanSteps, sp.saved); ok {
			return memory, n, old, true
		}
	}
	if !disk.down() {
		if n, old, ok = disk.take(mostSteps, nil); ok {
			return disk, n, old, true
		}
	}
	if memory != nil {
		if n, old, ok = memory.take(mostSteps, nil); ok {
			return memory, n, old, true
		}
	}
	return nil, 0, false, false
}

// cleanSteps bounds the search for a block that the disk has, too.
const cleanSteps = 128

// saved tells whether the disk has the block of a slot of the memory tier. The lock is held.
func (sp *Space) saved(n uint32) bool {
	m, d := sp.memory(), sp.disk()
	key := m.key(n)
	at, ok := d.find(d.hash(key), key)
	if ok = ok && d.at(at).state == ready; ok {
		d.at(at).bits |= m.at(n).bits & visited
	}
	return ok
}

// give makes a reservation of a slot whose record is zeroed. The lock is held.
func (c *Session) give(sp *Space, b booking, failed error) control.KVSlot {
	t, n := b.tier, b.slot
	if failed != nil {
		t.failed(failed)
		t.strand(n)
		return control.KVSlot{Errno: unix.EIO}
	}
	token, errno := c.grant(t, n, reservation)
	if errno != 0 {
		t.unreserve(n)
		return control.KVSlot{Errno: errno}
	}
	return control.KVSlot{Tier: sp.placeOf(t), Slot: uint64(n), Length: t.at(n).length, Token: token}
}

// commit answers KV_COMMIT: the records are written, and then the blocks are found.
func (c *Session) commit(sp *Space, stored []control.KVStored) []control.KVDone {
	out := make([]control.KVDone, len(stored))
	holds := make([]*hold, len(stored))
	records := make([][recordSize]byte, len(stored))
	sp.mu.Lock()
	for i, m := range stored {
		holds[i], out[i].Errno = c.begin(sp, &m)
		h := holds[i]
		if h == nil || h.kind == committed {
			continue
		}
		s := h.tier.at(h.slot)
		s.crc, s.bits = m.CRC, 0
		if m.Flags&control.KVHasCRC != 0 {
			s.bits = hasCRC
		}
		h.tier.compose(&records[i], h.slot)
	}
	sp.mu.Unlock()
	failed := make([]error, len(stored))
	for i, h := range holds {
		if h != nil && h.kind == reservation {
			_, failed[i] = h.tier.index.WriteAt(records[i][:], h.tier.recordAt(h.slot))
		}
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for i, h := range holds {
		if h == nil {
			continue
		}
		out[i] = c.finish(sp, stored[i].Token, h, failed[i])
	}
	return out
}

// begin finds the reservation that a COMMIT is of, and keeps others from it. The lock is held. A block on the disk needs the checksum that its client
// has made from memory. Bytes that are read back prove nothing, since the page cache may have lost them by then.
func (c *Session) begin(sp *Space, m *control.KVStored) (*hold, unix.Errno) {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	h := c.owner.holds[m.Token]
	switch {
	case h == nil || h.space != sp || h.kind == pin || c.owner.over:
		return nil, unix.ENOENT
	case h.busy:
		return nil, unix.EBUSY
	case h.kind == reservation && h.tier.kind == control.KVDisk && m.Flags&control.KVHasCRC == 0:
		return nil, unix.EINVAL
	}
	h.busy = true
	return h, 0
}

// finish ends a COMMIT. The lock is held.
func (c *Session) finish(sp *Space, token uint64, h *hold, failed error) control.KVDone {
	t, n := h.tier, h.slot
	if h.kind == committed {
		c.store.release(c.owner, token)
		return control.KVDone{Survives: t.survives()}
	}
	c.store.forget(c.owner, token)
	if failed != nil {
		t.failed(failed)
		t.strand(n)
		return control.KVDone{Errno: unix.EIO}
	}
	t.show(n)
	sp.stored++
	return control.KVDone{Survives: t.survives()}
}

// compose makes the record of a slot. The lock is held.
func (t *tier) compose(p *[recordSize]byte, n uint32) {
	s := t.at(n)
	r := record{key: t.key(n), length: s.length, crc: s.crc, hasCRC: s.bits&hasCRC != 0, serial: t.space.store.serial.Add(1)}
	r.encode(p[:], t.space.meta.ID, n)
}

// survives tells which events a block of a tier survives.
func (t *tier) survives() control.KVSurvival {
	switch {
	case t.kind == control.KVDisk:
		return control.KVOnDisk
	case t.space.store.Kept() && !t.unkept:
		return control.KVHeld
	}
	return control.KVNothing
}

// drop answers KV_RELEASE. suspect: the client found that a block, or a slot, is not as it should be.
func (c *Session) drop(sp *Space, tokens []uint64, suspect bool) []control.KVDone {
	out := make([]control.KVDone, len(tokens))
	var look []booking
	sp.mu.Lock()
	for i, token := range tokens {
		h, busy := c.owner.find(token)
		if h == nil || h.space != sp || busy {
			out[i].Errno = unix.ENOENT
			continue
		}
		if suspect && h.kind != reservation {
			h.tier.at(h.slot).holds++ // until it was looked at
			look = append(look, booking{tier: h.tier, slot: h.slot})
		} else if suspect {
			h.tier.failed(errors.New("a client could not write into a slot"))
		}
		c.store.release(c.owner, token)
	}
	sp.mu.Unlock()
	for _, b := range look {
		sp.inspect(b.tier, b.slot)
	}
	return out
}

// remove answers KV_REMOVE.
func (c *Session) remove(sp *Space, keys [][]byte) []control.KVDone {
	out := make([]control.KVDone, len(keys))
	var hidden []booking
	var of []int // which key each is of
	sp.settling.Lock()
	sp.mu.Lock()
	for i, key := range keys {
		out[i].Errno = unix.ENOENT
		for _, t := range sp.tiers {
			if n, ok := t.find(t.hash(key), key); ok && t.at(n).state == ready {
				t.hide(n)
				t.at(n).holds++ // until its record is zeroed
				hidden, of = append(hidden, booking{tier: t, slot: n}), append(of, i)
				out[i].Errno = 0
			}
		}
	}
	sp.mu.Unlock()
	sp.settling.Unlock()
	for _, i := range sp.erase(hidden) {
		out[of[i]].Errno = unix.EIO // it is found no more, and may be again after a kill
	}
	sp.evicted()
	return out
}

// evicted waits until the records of all blocks are zeroed that were hidden before.
func (sp *Space) evicted() {
	sp.evicting.Lock()
	defer sp.evicting.Unlock() // nothing is to be done
}

// erase zeroes the records of slots that are hidden and held for that, and lets them go. It gives the places of those that it could not.
func (sp *Space) erase(hidden []booking) (left []int) {
	for at := 0; at < len(hidden); at += 1024 {
		part := hidden[at:min(at+1024, len(hidden))]
		failed := make([]error, len(part))
		for i, b := range part {
			failed[i] = b.tier.zero(b.slot)
		}
		sp.mu.Lock()
		for i, b := range part {
			if failed[i] == nil {
				b.tier.letGo(b.slot)
				continue
			}
			b.tier.failed(failed[i])
			b.tier.stranded = append(b.tier.stranded, b.slot) // with its hold
			left = append(left, at+i)
		}
		sp.mu.Unlock()
	}
	return left
}

// clear removes all blocks. Regions of the disk go at once.
func (sp *Space) clear() {
	for {
		var hidden []booking
		sp.settling.Lock()
		sp.mu.Lock()
		for _, t := range sp.tiers {
			for len(hidden) < 4096 && t.queue.tail != 0 {
				n := t.queue.tail - 1
				t.hide(n)
				t.at(n).holds++
				hidden = append(hidden, booking{tier: t, slot: n})
			}
		}
		sp.mu.Unlock()
		sp.settling.Unlock()
		if len(hidden) == 0 {
			break
		}
		sp.erase(hidden)
	}
	sp.evicted()
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for sp.disk().shrink() { // space that it does not need is others'. Memory may be registered with CUDA: see [Space.rest]
		continue
	}
}
