package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"github.com/hbmfs/hbmfs/internal/sys/uncached"
)

// wish is a block of the disk that is found again and again, and would be in memory.
type wish struct {
	space *Space
	key   []byte
}

// moverPause is how long the mover waits where nobody has work for it.
const moverPause = 200 * time.Millisecond

// Run copies blocks between the tiers, and makes slabs longer, until ctx ends. One copy is under way at a time: readers and writers come first.
func (s *Store) Run(ctx context.Context) {
	var beside sync.WaitGroup
	beside.Go(func() { s.extend(ctx) })
	defer beside.Wait()
	tick := time.NewTicker(moverPause)
	defer tick.Stop()
	buffer := uncached.NewBuffer().Bytes
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-tick.C:
		case w := <-s.wanted:
			w.space.promote(w.key, buffer)
			continue
		}
		for _, sp := range s.all() {
			sp.intact()
			sp.mend()
			sp.rest()
			if s.memory != nil {
				sp.writeBack(ctx, buffer)
			}
		}
	}
}

// mendAtOnce is how many slots are tried again at a time.
const mendAtOnce = 256

// mend tries again to zero records, so that a disk that was ill for a while costs no slots.
func (sp *Space) mend() {
	for _, t := range sp.tiers {
		sp.mu.Lock()
		n := min(len(t.stranded), mendAtOnce)
		if t.down() {
			n = 0
		}
		tried := t.stranded[:n:n]
		t.stranded = t.stranded[n:]
		sp.mu.Unlock()
		for i, n := range tried {
			err := t.zero(n)
			sp.mu.Lock()
			switch {
			case err != nil:
				t.failed(err)
				t.stranded = append(t.stranded, tried[i:]...)
			case t.at(n).state == stuck:
				t.setFree(n)
			default: // it was removed, and has a hold
				t.letGo(n)
			}
			sp.mu.Unlock()
			if err != nil {
				break
			}
		}
	}
}

// wake has the mover look.
func (s *Store) wake() {
	select {
	case s.kick <- struct{}{}:
	default: // it is about to
	}
}

// low tells whether few slots of the memory tier are free, and it cannot be made longer. The lock is held.
func (sp *Space) low() bool {
	m := sp.memory()
	return m != nil && m.free.n < m.reserveOf() && !m.budget.has(m.cost())
}

// reserveOf is how many slots of the memory tier shall be free, or have their blocks on the disk, too.
func (t *tier) reserveOf() int64 { return max(t.slots()/8, min(t.slots(), 16)) }

// copying is a block on its way between tiers.
type copying struct {
	from, to *tier
	src, dst uint32
	failed   error // why the record of dst could not be zeroed
	length   uint32
	crc      uint32
	known    bool
}

// writeBack copies to the disk the blocks that the memory tier evicts next, so that nobody who needs a slot
// waits for that.
func (sp *Space) writeBack(ctx context.Context, buffer []byte) {
	for ctx.Err() == nil {
		sp.mu.Lock()
		low := sp.low() && !sp.disk().down() && sp.waits == 0
		sp.mu.Unlock()
		if !low {
			return
		}
		sp.store.roomFor1(sp.disk(), atOnce) // or else it evicts
		batch := sp.dirty()
		if len(batch) == 0 {
			return
		}
		for i := range batch {
			if sp.yields() {
				sp.giveUp(&batch[i])
			} else {
				sp.move(&batch[i], buffer)
			}
		}
	}
}

// giveUp ends a copy that has not begun.
func (sp *Space) giveUp(c *copying) { _ = sp.settle(c, false, c.failed == nil, c.failed, nil) } // a block that was not shown need not be hidden

// yields tells whether others wait for the memory of the namespace, which nobody uses.
func (sp *Space) yields() bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return sp.waits > 0 && sp.opened == 0
}

// atOnce is how many blocks are chosen at a time for the disk.
const atOnce = 16

// dirty finds blocks that the memory tier evicts next, and that the disk has not, and takes slots there.
func (sp *Space) dirty() []copying {
	sp.evicting.RLock()
	defer sp.evicting.RUnlock()
	batch, old := sp.chooseDirty()
	for i := range batch {
		if old[i] {
			batch[i].failed = batch[i].to.zero(batch[i].dst)
		}
	}
	return batch
}

// chooseDirty tells as well whose records of dst are to be zeroed.
func (sp *Space) chooseDirty() (batch []copying, old []bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	m, d := sp.memory(), sp.disk()
	have := m.free.n
	at := m.hand
	for steps := min(m.queue.n, mostSteps); steps > 0 && have < m.reserveOf() && len(batch) < atOnce; steps-- {
		if at == 0 {
			if at = m.queue.tail; at == 0 {
				break
			}
		}
		n := at - 1
		s := m.at(n)
		at = s.prev
		if s.bits&visited != 0 { // the hand spares it
			continue
		}
		key := m.key(n)
		h := d.hash(key)
		if dn, ok := d.find(h, key); ok {
			if d.at(dn).state == ready {
				have++
			}
			continue
		}
		dn, was, ok := d.take(mostSteps, nil)
		if !ok {
			return batch, old
		}
		d.reserve(dn, h, key, s.length)
		s.holds++
		old = append(old, was)
		batch = append(batch, copying{from: m, to: d, src: n, dst: dn, length: s.length, crc: s.crc, known: s.bits&hasCRC != 0})
		have++
	}
	return batch, old
}

// promote copies a block of the disk to memory, where it is found sooner.
func (sp *Space) promote(key, buffer []byte) {
	if sp.memory() == nil {
		return
	}
	sp.evicting.RLock()
	c, old, ok := sp.choose(key)
	if ok && old {
		c.failed = c.to.zero(c.dst)
	}
	sp.evicting.RUnlock()
	if ok {
		sp.move(&c, buffer)
	}
}

// choose takes a slot of memory for a block of the disk, and tells whether its record is to be zeroed.
func (sp *Space) choose(key []byte) (c copying, old, ok bool) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	m, d := sp.memory(), sp.disk()
	n, ok := d.find(d.hash(key), key)
	h := m.hash(key)
	if _, there := m.find(h, key); there || !ok || d.at(n).state != ready {
		return c, false, false
	}
	to, old, ok := m.take(cleanSteps, sp.saved)
	if !ok {
		return c, false, false
	}
	s := d.at(n)
	m.reserve(to, h, key, s.length)
	s.holds++
	return copying{from: d, to: m, src: n, dst: to, length: s.length, crc: s.crc, known: s.bits&hasCRC != 0}, old, true
}

// move copies a block, and then has it found in its other tier, too.
func (sp *Space) move(c *copying, buffer []byte) {
	var readErr error
	writeErr := c.failed
	zeroed := writeErr == nil
	sum := uint32(0)
	if writeErr == nil {
		sum, readErr, writeErr = copyBlock(c, buffer)
	}
	damaged := readErr == nil && writeErr == nil && c.known && sum != c.crc
	if !c.known { // of memory, whose bytes need no proof
		c.crc, c.known = sum, true
	}
	good := readErr == nil && writeErr == nil && !damaged

	var p [recordSize]byte
	sp.settling.Lock()
	sp.mu.Lock()
	key := bytes.Clone(c.to.key(c.dst))
	if c.from.at(c.src).state != ready { // it was removed meanwhile
		good = false
	}
	if good {
		t := c.to.at(c.dst)
		t.crc, t.bits = c.crc, 0
		if c.known {
			t.bits = hasCRC
		}
		c.to.compose(&p, c.dst)
	}
	sp.mu.Unlock()
	if good {
		if _, writeErr = c.to.index.WriteAt(p[:], c.to.recordAt(c.dst)); writeErr != nil {
			good, zeroed = false, false
		}
	}
	hidden := sp.settle(c, good, zeroed, writeErr, readErr)
	sp.settling.Unlock()
	sp.erase(hidden)
	if damaged || readErr != nil {
		sp.dropBlock(c.from, c.src, key, damaged)
	}
}

// settle ends a copy. It gives the slot whose record is to be zeroed again.
func (sp *Space) settle(c *copying, good, zeroed bool, writeErr, readErr error) (hidden []booking) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if writeErr != nil {
		c.to.failed(writeErr)
	}
	if readErr != nil {
		c.from.failed(readErr)
	}
	switch {
	case good:
		c.to.show(c.dst)
		c.to.copied += uint64(c.length)
		if c.from.at(c.src).state != ready { // it was removed while the record was written
			c.to.hide(c.dst)
			c.to.at(c.dst).holds++
			hidden = append(hidden, booking{tier: c.to, slot: c.dst})
		}
	case zeroed:
		c.to.unreserve(c.dst)
	default:
		c.to.strand(c.dst)
	}
	c.from.letGo(c.src)
	return hidden
}

// copyBlock copies the bytes of a block, and gives their CRC-32C.
func copyBlock(c *copying, buffer []byte) (sum uint32, readErr, writeErr error) {
	from, to := int64(c.src)*c.from.slotBytes, int64(c.dst)*c.to.slotBytes
	for at := int64(0); at < int64(c.length); {
		part := buffer[:min(int64(len(buffer)), int64(c.length)-at)]
		if err := c.from.read(part, from+at); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, fmt.Errorf("read a block: %w", err), nil
		}
		sum = crc32.Update(sum, castagnoli(), part)
		if err := c.to.write(part, to+at); err != nil {
			return 0, nil, fmt.Errorf("write a block: %w", err)
		}
		at += int64(len(part))
	}
	return sum, nil, nil
}
