package status

import (
	"time"

	"github.com/hbmfs/hbmfs/internal/observe/promtext"
)

// KV are the namespaces of a KV volume.
type KV struct {
	Directory   string      `json:"directory"`
	MemoryLimit int64       `json:"memory_limit_bytes"` // 0: there is no memory tier
	DiskLimit   int64       `json:"disk_limit_bytes"`
	MemoryHeld  bool        `json:"memory_held"` // blocks in memory survive a kill of the daemon
	Namespaces  []Namespace `json:"namespaces"`
	Holders     []KVHolder  `json:"holders"` // processes that have pins or reservations, those with the most bytes
	Holding     int         `json:"holding"` // how many there are
	Notes       []string    `json:"notes"`   // the last findings, one line each
}

// Namespace is one of a KV volume. Counts are totals since the daemon began, where nothing else is said.
type Namespace struct {
	Name         string    `json:"name"`
	Mode         string    `json:"mode"` // octal
	UID          uint32    `json:"uid"`
	GID          uint32    `json:"gid"`
	BlockBytes   int64     `json:"block_bytes"`
	SlotBytes    int64     `json:"slot_bytes"`
	Connections  int       `json:"connections"`
	Used         time.Time `json:"used"`
	Hits         uint64    `json:"hits"`
	Misses       uint64    `json:"misses"`
	Stored       uint64    `json:"stored"`
	Exists       uint64    `json:"exists"`  // reservations of blocks that were there, or on their way
	Refused      uint64    `json:"refused"` // reservations without room
	Pins         uint64    `json:"pins"`    // now
	Reservations uint64    `json:"reservations"`
	Dropped      uint64    `json:"dropped"` // blocks that were damaged, or lost with a slab that was cut
	Broken       uint64    `json:"broken"`  // how often a slab was found cut or grown
	Unusable     int64     `json:"unusable_slots"`
	Memory       KVTier    `json:"memory"`
	Disk         KVTier    `json:"disk"`
}

// KVTier is a tier of a namespace.
type KVTier struct {
	Allocated uint64 `json:"allocated_bytes"`
	Blocks    uint64 `json:"blocks"`
	Bytes     uint64 `json:"bytes"`
	Hits      uint64 `json:"hits"`
	Evictions uint64 `json:"evictions"`
	Copied    uint64 `json:"copied_bytes"` // from the other tier
	Faults    uint64 `json:"faults"`
	Fault     string `json:"fault,omitempty"`     // the last one
	Pages     string `json:"pages,omitempty"`     // of memory: "huge" where the kernel gives huge pages as long as it has some, or "small"
	IO        string `json:"io,omitempty"`        // of the disk: "direct", past the page cache, or "buffered"
	IOReason  string `json:"io_reason,omitempty"` // why it is buffered
	Down      bool   `json:"down"`                // it is left alone for a moment after a fault: the other tier goes on
}

// KVHolder is a process that has pins or reservations.
type KVHolder struct {
	UID   uint32 `json:"uid"`
	PID   int    `json:"pid,omitempty"`
	Holds int    `json:"holds"`
	Bytes int64  `json:"bytes"`
}

// addTo adds the metrics of a KV volume.
func (k *KV) addTo(p *promtext.Page) {
	p.Gauge("hbmfs_kv_limit_bytes", "Bytes that a tier may take.").Add(k.MemoryLimit, "tier", "memory").Add(k.DiskLimit, "tier", "disk")
	p.Gauge("hbmfs_kv_memory_held", "1 while blocks in memory survive a kill of the daemon.").Add(k.MemoryHeld)
	hits := p.Counter("hbmfs_kv_hits_total", "Keys that were found, by the tier that has the block.")
	misses := p.Counter("hbmfs_kv_misses_total", "Keys that were not found.")
	stored := p.Counter("hbmfs_kv_stored_total", "Blocks that clients stored.")
	exists := p.Counter("hbmfs_kv_exists_total", "Blocks that clients would have stored, and that were there or on their way.")
	refused := p.Counter("hbmfs_kv_refused_total", "Blocks for which no room could be made.")
	pins := p.Gauge("hbmfs_kv_pins", "Pins of blocks that processes hold.")
	reservations := p.Gauge("hbmfs_kv_reservations", "Slots that processes write.")
	dropped := p.Counter("hbmfs_kv_dropped_total", "Blocks that were damaged, or lost with a slab that was cut.")
	allocated := p.Gauge("hbmfs_kv_allocated_bytes", "Bytes of slabs and indexes.")
	blocks := p.Gauge("hbmfs_kv_blocks", "Blocks that can be found.")
	bytes := p.Gauge("hbmfs_kv_bytes", "Bytes of these blocks.")
	evictions := p.Counter("hbmfs_kv_evictions_total", "Blocks that were evicted.")
	copied := p.Counter("hbmfs_kv_copied_bytes_total", "Bytes that were copied to a tier from the other one.")
	faults := p.Counter("hbmfs_kv_faults_total", "Failures of a tier's files.")
	down := p.Gauge("hbmfs_kv_down", "1 while a tier is left alone after a failure.")
	for i := range k.Namespaces {
		n := &k.Namespaces[i]
		misses.Add(n.Misses, "namespace", n.Name)
		stored.Add(n.Stored, "namespace", n.Name)
		exists.Add(n.Exists, "namespace", n.Name)
		refused.Add(n.Refused, "namespace", n.Name)
		pins.Add(n.Pins, "namespace", n.Name)
		reservations.Add(n.Reservations, "namespace", n.Name)
		dropped.Add(n.Dropped, "namespace", n.Name)
		for _, t := range []struct {
			word string
			KVTier
		}{{"memory", n.Memory}, {"disk", n.Disk}} {
			if t.word == "memory" && k.MemoryLimit == 0 {
				continue
			}
			labels := []string{"namespace", n.Name, "tier", t.word}
			hits.Add(t.Hits, labels...)
			allocated.Add(t.Allocated, labels...)
			blocks.Add(t.Blocks, labels...)
			bytes.Add(t.Bytes, labels...)
			evictions.Add(t.Evictions, labels...)
			copied.Add(t.Copied, labels...)
			faults.Add(t.Faults, labels...)
			down.Add(t.Down, labels...)
		}
	}
}
