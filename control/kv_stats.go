package control

import "math"

// KVStat is KV_STAT: counts of a namespace, or of all with space 0.
type KVStat struct{ Space uint32 }

// AppendTo appends the payload.
func (m *KVStat) AppendTo(b []byte) []byte { return put32(b, m.Space, 0) }

// ParseKVStat reads the payload.
func ParseKVStat(p []byte) (KVStat, error) {
	r := reader{rest: p}
	m := KVStat{r.u32()}
	r.zero(4)
	return m, r.end()
}

// KVTierCounts are counts of one tier, of bytes where nothing else is said.
type KVTierCounts struct {
	Limit     uint64 // of all namespaces
	Allocated uint64 // for slots
	Blocks    uint64 // that can be found: their number
	Bytes     uint64 // of these
	Hits      uint64 // lookups that found a block here
	Evictions uint64 // blocks
	Copied    uint64 // to it from the other tier
	Faults    uint64 // calls that failed
}

// KVCounts is KV_COUNTS: it answers KV_STAT.
type KVCounts struct {
	Hits, Misses uint64 // keys that LOOKUP found, and did not find
	Stored       uint64 // blocks that were committed
	Exists       uint64 // reservations of blocks that were there, or on their way
	Refused      uint64 // reservations for which there was no room
	Pins         uint64 // now
	Reservations uint64 // now
	Dropped      uint64 // blocks that were damaged, or lost with a slab that was cut
	Memory, Disk KVTierCounts
}

func (c *KVTierCounts) appendTo(b []byte) []byte {
	return put64(b, c.Limit, c.Allocated, c.Blocks, c.Bytes, c.Hits, c.Evictions, c.Copied, c.Faults)
}

func (r *reader) kvTier() KVTierCounts {
	return KVTierCounts{r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.u64()}
}

// AppendTo appends the payload.
func (m *KVCounts) AppendTo(b []byte) []byte {
	b = put64(b, m.Hits, m.Misses, m.Stored, m.Exists, m.Refused, m.Pins, m.Reservations, m.Dropped)
	return m.Disk.appendTo(m.Memory.appendTo(b))
}

// ParseKVCounts reads the payload.
func ParseKVCounts(p []byte) (KVCounts, error) {
	r := reader{rest: p}
	m := KVCounts{r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.kvTier(), r.kvTier()}
	return m, r.end()
}

// KVAttach is KV_ATTACH: this connection goes on with the pins and reservations of an earlier one of the same process, which is given
// nothing more.
type KVAttach struct {
	Client uint64
	Seen   uint64 // the highest token that the process was given: higher ones are given back. [KVKeep]: nothing is
}

// KVKeep is a KVAttach.Seen: nothing is given back.
const KVKeep = math.MaxUint64

// AppendTo appends the payload.
func (m *KVAttach) AppendTo(b []byte) []byte { return put64(b, m.Client, m.Seen) }

// ParseKVAttach reads the payload.
func ParseKVAttach(p []byte) (KVAttach, error) {
	r := reader{rest: p}
	m := KVAttach{r.u64(), r.u64()}
	return m, r.end()
}

// KVVerify is KV_VERIFY: the daemon compares blocks of a namespace with their checksums, and drops those that do not match. It compares some at
// a time: 0 begins, and the answer's cursor goes on.
type KVVerify struct {
	Space  uint32
	Cursor uint64
}

// AppendTo appends the payload.
func (m *KVVerify) AppendTo(b []byte) []byte { return put64(put32(b, m.Space, 0), m.Cursor) }

// ParseKVVerify reads the payload.
func ParseKVVerify(p []byte) (KVVerify, error) {
	r := reader{rest: p}
	m := KVVerify{Space: r.u32()}
	r.zero(4)
	m.Cursor = r.u64()
	return m, r.end()
}

// KVVerified is KV_VERIFIED: it answers KV_VERIFY.
type KVVerified struct {
	Cursor  uint64 // of the next request; 0: that was all
	Slots   uint64 // all that there are to look at
	At      uint64 // how many of these were looked at, from the first request on
	Blocks  uint64 // that this request compared
	Bytes   uint64 // of these
	Unknown uint64 // blocks without a checksum
	Damaged uint64 // blocks that did not match, and are gone
}

// AppendTo appends the payload.
func (m *KVVerified) AppendTo(b []byte) []byte {
	return put64(b, m.Cursor, m.Slots, m.At, m.Blocks, m.Bytes, m.Unknown, m.Damaged)
}

// ParseKVVerified reads the payload.
func ParseKVVerified(p []byte) (KVVerified, error) {
	r := reader{rest: p}
	m := KVVerified{r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.u64(), r.u64()}
	return m, r.end()
}
