package fs

import (
	"strconv"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/volume/kv"
)

// mostHolders is how many processes the status names that hold blocks.
const mostHolders = 20

// kvStatus is a KV volume in the status.
func kvStatus(s *kv.Store) *status.KV {
	k := &status.KV{Directory: s.Directory(), Namespaces: []status.Namespace{}, Holders: []status.KVHolder{}, Notes: s.Notes(), MemoryHeld: s.Kept()}
	k.MemoryLimit, k.DiskLimit = s.Limits()
	for _, i := range s.Namespaces() {
		c := &i.Counts
		n := status.Namespace{
			Name: i.Name, Mode: strconv.FormatUint(uint64(i.Mode), 8), UID: i.UID, GID: i.GID, BlockBytes: i.Block, SlotBytes: i.Slot, Connections: i.Open, Used: i.Used,
			Hits: c.Hits, Misses: c.Misses, Stored: c.Stored, Exists: c.Exists, Refused: c.Refused, Pins: c.Pins, Reservations: c.Reservations,
			Dropped: c.Dropped, Broken: i.Broken, Unusable: i.Stuck, Memory: kvTier(&c.Memory), Disk: kvTier(&c.Disk),
		}
		n.Memory.Fault, n.Disk.Fault, n.Disk.Down = i.MemoryFault, i.DiskFault, i.DiskDown
		if n.Memory.Pages = "small"; i.Huge {
			n.Memory.Pages = "huge"
		}
		if n.Disk.IO, n.Disk.IOReason = "direct", i.Buffered; i.Buffered != "" {
			n.Disk.IO = "buffered"
		}
		k.Namespaces = append(k.Namespaces, n)
	}
	holders, all := s.Holders(mostHolders)
	k.Holding = all
	for _, h := range holders {
		k.Holders = append(k.Holders, status.KVHolder(h))
	}
	return k
}

func kvTier(c *control.KVTierCounts) status.KVTier {
	return status.KVTier{Allocated: c.Allocated, Blocks: c.Blocks, Bytes: c.Bytes, Hits: c.Hits, Evictions: c.Evictions, Copied: c.Copied, Faults: c.Faults}
}
