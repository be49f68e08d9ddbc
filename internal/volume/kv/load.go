package kv

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/hbmfs/hbmfs/control"
)

// load reads the indexes of a namespace.
func (sp *Space) load() error {
	for _, t := range sp.tiers {
		regions, err := t.regions()
		if err != nil {
			return err
		}
		if err := t.load(regions); err != nil {
			return fmt.Errorf("read its index: %w", err)
		}
		if err := errors.Join(t.index.Truncate(regions*t.indexBytes()), t.slab.Truncate(regions*t.regionBytes())); err != nil && !sp.store.readOnly(err) {
			return err
		}
	}
	for _, t := range sp.tiers {
		t.budget.used += t.slots() / t.perRegion * t.cost()
	}
	return nil
}

// regions tells how many regions both files of a tier have: a kill may leave one more in either.
func (t *tier) regions() (int64, error) {
	slab, err := t.slab.Stat()
	if err != nil {
		return 0, err
	}
	index, err := t.index.Stat()
	if err != nil {
		return 0, err
	}
	return min(slab.Size()/t.regionBytes(), index.Size()/t.indexBytes()), nil
}

// loaded are the entries that were read from the index of a region.
type loaded struct {
	bad    []uint32 // places of slots whose records are not whole
	serial uint64   // the highest
	err    error
}

// load reads the index of a tier. It reads regions at once on all CPUs, since most of it is checksums and memory, and then fills the
// table by itself.
func (t *tier) load(regions int64) error {
	if err := t.table.fit(int(regions * t.perRegion)); err != nil {
		return err
	}
	for range regions {
		s, err := newShelf(int(t.perRegion))
		if err != nil {
			return err
		}
		t.shelves = append(t.shelves, s)
	}
	read := make([]loaded, regions)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(int64(runtime.GOMAXPROCS(0)), regions) {
		workers.Go(func() {
			buffer := make([]byte, loadAtOnce*recordSize)
			for r := next.Add(1) - 1; r < regions; r = next.Add(1) - 1 {
				read[r] = t.readRegion(r, buffer)
			}
		})
	}
	workers.Wait()
	var bad []uint32
	for r := range read {
		if read[r].err != nil {
			return read[r].err
		}
		bad = append(bad, t.enter(int64(r), &read[r])...)
	}
	return t.dropRecords(bad)
}

// loadAtOnce is how many records are read by one call.
const loadAtOnce = 4096

// readRegion reads the index of a region into its shelf.
func (t *tier) readRegion(r int64, buffer []byte) (l loaded) {
	s := t.shelves[r]
	first := r * t.perRegion
	for at := int64(0); at < t.perRegion; at += loadAtOnce {
		part := buffer[:min(loadAtOnce, t.perRegion-at)*recordSize]
		if _, err := t.index.ReadAt(part, t.recordAt(uint32(first+at))); err != nil && !errors.Is(err, io.EOF) {
			return loaded{err: err}
		}
		for i := at; len(part) > 0; i, part = i+1, part[recordSize:] {
			if isEmpty(part) {
				continue
			}
			rec, ok := parseRecord(part, t.space.meta.ID, uint32(first+i), t.space.meta.Block)
			if !ok || t.kind == control.KVDisk && !rec.hasCRC {
				l.bad = append(l.bad, uint32(i))
				continue
			}
			sl := &s.slots[i]
			*sl = slot{state: ready, length: rec.length, crc: rec.crc}
			if rec.hasCRC {
				sl.bits = hasCRC
			}
			t.setKey(uint32(first+i), rec.key)
			sl.next = t.hash(rec.key) // until it is in the queue
			l.serial = max(l.serial, rec.serial)
		}
	}
	return l
}

// enter puts the blocks of a region into the table, and gives the slots whose records are of no use. These are damaged ones, and those of a key that another
// slot has.
func (t *tier) enter(r int64, l *loaded) (bad []uint32) {
	first := uint32(r * t.perRegion)
	if serial := &t.space.store.serial; l.serial >= serial.Load() {
		serial.Store(l.serial + 1)
	}
	for _, i := range l.bad {
		bad = append(bad, first+i)
	}
	for i := t.perRegion - 1; i >= 0; i-- {
		n := first + uint32(i)
		if t.at(n).state != ready {
			t.setFree(n)
			continue
		}
		hash := t.at(n).next
		if _, twice := t.find(hash, t.key(n)); twice {
			t.setFree(n)
			bad = append(bad, n)
			continue
		}
		t.table.insert(hash, n)
		t.show(n)
	}
	return bad
}

// dropRecords zeroes records that are of no use.
func (t *tier) dropRecords(bad []uint32) error {
	t.dropped += uint64(len(bad))
	for _, n := range bad {
		if err := t.zero(n); err != nil && !t.space.store.readOnly(err) {
			return err
		}
	}
	if len(bad) > 0 {
		t.space.store.note("%d records of namespace %q are damaged, or speak of a block twice: these blocks are dropped", len(bad), t.space.name)
	}
	return nil
}
