package kv

import (
	"cmp"
	"slices"
	"time"

	"github.com/hbmfs/hbmfs/control"
)

// addCounts adds the counts of a namespace.
func (sp *Space) addCounts(c *control.KVCounts) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	c.Hits += sp.hits
	c.Misses += sp.misses
	c.Stored += sp.stored
	c.Exists += sp.exists
	c.Refused += sp.refused
	c.Pins += uint64(sp.pins)
	c.Reservations += uint64(sp.reservations)
	for _, t := range sp.tiers {
		c.Dropped += t.dropped
		to := &c.Disk
		if t.kind == control.KVMemory {
			to = &c.Memory
		}
		to.Limit = uint64(t.budget.limit)
		to.Allocated += uint64(int64(len(t.shelves)) * t.cost())
		to.Blocks += uint64(t.queue.n)
		to.Bytes += uint64(t.bytes)
		to.Hits += t.hits
		to.Evictions += t.evictions
		to.Copied += t.copied
		to.Faults += t.faults
	}
}

// Info is a namespace as the status shows it.
type Info struct {
	Name        string
	Mode        uint32
	UID, GID    uint32
	Block, Slot int64
	Open        int // connections
	Used        time.Time
	Counts      control.KVCounts
	Broken      uint64 // how often a slab was cut or grown
	Stuck       int64  // slots that are not used now, since their records could not be written
	MemoryFault string // the last one
	DiskFault   string
	DiskDown    bool   // it is not written, since that has failed a moment ago
	Buffered    string // why this daemon reads and writes the disk tier through the page cache; empty where it does not
	Huge        bool   // the memory tier gets huge pages where the kernel has some
}

// Namespaces lists all namespaces, by name.
func (s *Store) Namespaces() []Info {
	var list []Info
	for _, sp := range s.all() {
		list = append(list, sp.info())
	}
	slices.SortFunc(list, func(a, b Info) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func (sp *Space) info() Info {
	i := Info{Name: sp.name, Block: sp.meta.Block, Slot: sp.meta.Slot}
	i.Mode, i.UID, i.GID = sp.attributes()
	sp.addCounts(&i.Counts)
	sp.mu.Lock()
	defer sp.mu.Unlock()
	i.Open, i.Used, i.Broken = sp.opened, sp.used, sp.broken
	for _, t := range sp.tiers {
		i.Stuck += int64(len(t.stranded))
		i.Huge = i.Huge || t.huge
		if t.io != nil {
			i.Buffered = t.io.Buffered()
		}
		switch {
		case t.fault == nil:
		case t.kind == control.KVMemory:
			i.MemoryFault = t.fault.Error()
		default:
			i.DiskFault, i.DiskDown = t.fault.Error(), t.down()
		}
	}
	return i
}

// Holder is a process that holds slots, as the status shows it.
type Holder struct {
	UID   uint32
	PID   int // 0 where it is not known
	Holds int
	Bytes int64
}

// Holders lists the processes that hold the most, and how many hold something.
func (s *Store) Holders(most int) (list []Holder, all int) {
	s.mu.Lock()
	owners := make([]*owner, 0, len(s.owners))
	for _, o := range s.owners {
		owners = append(owners, o)
	}
	s.mu.Unlock()
	for _, o := range owners {
		h := Holder{UID: o.uid, PID: o.pid}
		o.mu.Lock()
		for _, held := range o.holds {
			h.Holds++
			h.Bytes += held.tier.slotBytes
		}
		o.mu.Unlock()
		if h.Holds > 0 {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return list[:min(len(list), most)], len(list)
}

// Notes are surprises for the user, one line each.
func (s *Store) Notes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notes)
}

// Directory is the path of the disk tier's directory.
func (s *Store) Directory() string { return s.opt.Directory }

// Limits are those of the tiers, bytes. Memory is 0 where there is none.
func (s *Store) Limits() (memory, disk int64) { return s.opt.Memory, s.opt.Size }

// Entry is a namespace as a directory lists it.
type Entry struct {
	ID        uint64 // the same as long as the namespace lives
	Name      string
	Mode      uint32 // permission bits
	UID, GID  uint32
	Allocated int64 // bytes of the disk
	Used      time.Time
}

// Entries lists all namespaces, those that were made last at the end.
func (s *Store) Entries() []Entry {
	all := s.all()
	entries := make([]Entry, len(all))
	for i, sp := range all {
		e := &entries[i]
		e.ID, e.Name = sp.meta.ID, sp.name
		e.Mode, e.UID, e.GID = sp.attributes()
		sp.mu.Lock()
		d := sp.disk()
		e.Allocated, e.Used = int64(len(d.shelves))*d.cost(), sp.used
		sp.mu.Unlock()
	}
	return entries
}
