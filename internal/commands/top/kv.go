package top

import (
	"fmt"
	"io"
	"time"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/text/cli"
	"github.com/hbmfs/hbmfs/internal/text/size"
)

// namespacesMost is how many namespaces, and how many processes that hold something, a status lists.
const namespacesMost = 20

// HitRate says how many keys of a hundred were found.
func HitRate(hits, misses uint64) string {
	if hits+misses == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(hits)/float64(hits+misses))
}

// WriteKV writes the state of a KV volume. nil: it is another mount. all: nothing is left out.
func WriteKV(t io.Writer, k *status.KV, all bool) {
	if k == nil {
		return
	}
	var memory, disk uint64
	for i := range k.Namespaces {
		memory += k.Namespaces[i].Memory.Allocated
		disk += k.Namespaces[i].Disk.Allocated
	}
	fmt.Fprintf(t, "  kv\t%d namespaces; disk %s of %s", len(k.Namespaces), size.Binary(int64(disk)), size.Binary(k.DiskLimit))
	if k.MemoryLimit > 0 {
		fmt.Fprintf(t, ", memory %s of %s", size.Binary(int64(memory)), size.Binary(k.MemoryLimit))
		if !k.MemoryHeld {
			fmt.Fprint(t, ", which ends with the daemon")
		}
	}
	fmt.Fprintln(t)
	for i := range k.Namespaces {
		if i == namespacesMost && !all {
			fmt.Fprintf(t, "  \t... and %d more (--json has all)\n", len(k.Namespaces)-i)
			break
		}
		writeNamespace(t, &k.Namespaces[i], k.MemoryLimit > 0)
	}
	for _, h := range k.Holders {
		fmt.Fprintf(t, "  holds\tprocess %d of user %d: %d pins and reservations, %s\n", h.PID, h.UID, h.Holds, size.Binary(h.Bytes))
	}
	if more := k.Holding - len(k.Holders); more > 0 {
		fmt.Fprintf(t, "  \t... and %d processes more\n", more)
	}
	for _, note := range k.Notes {
		fmt.Fprintf(t, "  note\t%s\n", cli.Printable(note))
	}
}

// how names the memory of a tier.
func how(t *status.KVTier) string {
	switch {
	case t.Pages != "":
		return " in " + t.Pages + " pages"
	case t.IOReason != "":
		return ", through the page cache, since " + cli.Printable(t.IOReason)
	case t.IO != "":
		return ", past the page cache"
	}
	return ""
}

// writeNamespace writes a namespace.
func writeNamespace(t io.Writer, n *status.Namespace, memory bool) {
	fmt.Fprintf(t, "  namespace\t%s: blocks of %s, %s found (%s in memory, %s on the disk, %s not), %s stored, %s there before, %s without room; %d pins, %d reservations; used %s\n",
		cli.Printable(n.Name), size.Binary(n.BlockBytes), HitRate(n.Hits, n.Misses), size.Grouped(int64(n.Memory.Hits)), size.Grouped(int64(n.Disk.Hits)), size.Grouped(int64(n.Misses)),
		size.Grouped(int64(n.Stored)), size.Grouped(int64(n.Exists)), size.Grouped(int64(n.Refused)), n.Pins, n.Reservations, n.Used.Local().Format(time.DateTime))
	for _, tier := range []struct {
		word string
		*status.KVTier
	}{{"memory", &n.Memory}, {"disk", &n.Disk}} {
		if tier.word == "memory" && !memory {
			continue
		}
		fmt.Fprintf(t, "  \t%s: %s blocks, %s; %s allocated%s; %s evicted; %s copied to it\n", tier.word, size.Grouped(int64(tier.Blocks)), size.Binary(int64(tier.Bytes)),
			size.Binary(int64(tier.Allocated)), how(tier.KVTier), size.Grouped(int64(tier.Evictions)), size.Binary(int64(tier.Copied)))
		if tier.Fault != "" {
			state := "the last failure"
			if tier.Down {
				state = "left alone for a moment, while the rest goes on"
			}
			fmt.Fprintf(t, "  \t%s FAILED %d times, %s: %s\n", tier.word, tier.Faults, state, cli.Printable(tier.Fault))
		}
	}
	if n.Dropped+n.Broken > 0 || n.Unusable > 0 {
		fmt.Fprintf(t, "  \tDAMAGE: %d blocks dropped, slabs cut or grown %d times, %d slots are not used now, since the index could not be written\n", n.Dropped, n.Broken, n.Unusable)
	}
}
