package control

import "syscall"

// Limits of KV volumes.
const (
	MaxKVKeys    = 1024    // of one message
	MaxKVKey     = 64      // bytes of a key; the least is 1
	MaxKVName    = 128     // bytes of a namespace's name
	MaxKVBlock   = 1 << 30 // bytes of a block
	MaxKVTiers   = 2       // of a namespace
	kvTierSize   = 40
	kvSlotSize   = 40
	kvCommitSize = 16
	kvDoneSize   = 8
)

// KVOpenFlags are the flags of KV_OPEN.
type KVOpenFlags uint32

// The flags of KV_OPEN.
const (
	KVCreate KVOpenFlags = 1 // make the namespace where there is none
	KVWrite  KVOpenFlags = 2 // to reserve, commit and remove; descriptors can write
)

// KVOpen is KV_OPEN: it opens a namespace for this connection.
type KVOpen struct {
	BlockBytes int64  // the most that a block has, at most [MaxKVBlock]; 0: as the namespace has it
	Mode       uint32 // of a namespace that this makes: permission bits
	Flags      KVOpenFlags
	Name       string
}

// AppendTo appends the payload.
func (m *KVOpen) AppendTo(b []byte) []byte {
	b = put32(put64(b, uint64(m.BlockBytes)), m.Mode, uint32(m.Flags), uint32(len(m.Name)), 0)
	return append(b, m.Name...)
}

// ParseKVOpen reads the payload.
func ParseKVOpen(p []byte) (KVOpen, error) {
	r := reader{rest: p}
	m := KVOpen{BlockBytes: r.i64(), Mode: r.u32(), Flags: KVOpenFlags(r.u32())}
	n := r.u32()
	r.zero(4)
	r.bad = r.bad || n > MaxKVName || m.BlockBytes > MaxKVBlock || m.Mode > 0o777 || m.Flags&^(KVCreate|KVWrite) != 0
	m.Name = string(r.bytes(int(min(n, MaxKVName+1))))
	return m, r.end()
}

// KVTierKind is the memory of a tier.
type KVTierKind uint32

// The kinds of tiers.
const (
	KVMemory KVTierKind = 1
	KVDisk   KVTierKind = 2
)

// KVTier is a tier of a namespace.
type KVTier struct {
	Kind   KVTierKind
	FD     int32  // place among the message's descriptors
	Bytes  int64  // that its file may grow to
	Region int64  // bytes by which it grows; a multiple of the slot's
	Cuts   uint64 // how often regions of the file went, of memory: who registered it before does so anew where this is another number
	Flags  KVTierFlags
}

// KVTierFlags say how a tier is used.
type KVTierFlags uint32

// KVDirect is a flag of the disk tier. The volume wants its slots read and written past the page cache (O_DIRECT), where its filesystem allows that.
const KVDirect KVTierFlags = 1

// KVSpace is KV_SPACE: it answers KV_OPEN, and a descriptor of each tier comes with it.
type KVSpace struct {
	Space      uint32 // its number on this connection's daemon
	Mode       uint32 // permission bits
	Client     uint64 // the number of this process's pins and reservations, for KV_ATTACH
	BlockBytes int64
	SlotBytes  int64 // slot n of a tier begins at n times this in its file
	Tiers      []KVTier
}

// AppendTo appends the payload.
func (m *KVSpace) AppendTo(b []byte) []byte {
	b = put64(put32(b, m.Space, m.Mode), m.Client, uint64(m.BlockBytes), uint64(m.SlotBytes))
	b = put32(b, uint32(len(m.Tiers)), 0)
	for _, t := range m.Tiers {
		b = put64(put32(b, uint32(t.Kind), uint32(t.FD)), uint64(t.Bytes), uint64(t.Region), t.Cuts)
		b = put32(b, uint32(t.Flags), 0)
	}
	return b
}

// ParseKVSpace reads the payload.
func ParseKVSpace(p []byte) (KVSpace, error) {
	r := reader{rest: p}
	m := KVSpace{Space: r.u32(), Mode: r.u32(), Client: r.u64(), BlockBytes: r.i64(), SlotBytes: r.i64()}
	n := r.count(kvTierSize, MaxKVTiers)
	r.zero(4)
	m.Tiers = make([]KVTier, n)
	for i := range m.Tiers {
		t := KVTier{Kind: KVTierKind(r.u32()), FD: int32(r.u32()), Bytes: r.i64(), Region: r.i64(), Cuts: r.u64(), Flags: KVTierFlags(r.u32())}
		r.zero(4)
		r.bad = r.bad || t.FD < 0 || int(t.FD) >= n || (t.Kind != KVMemory && t.Kind != KVDisk) || t.Flags&^KVDirect != 0
		m.Tiers[i] = t
	}
	r.bad = r.bad || m.BlockBytes > m.SlotBytes
	return m, r.end()
}

// KVPin is a flag of KV_LOOKUP: blocks that are found stay where they are until the client releases them.
const KVPin = 1

// KVAll is a flag of KV_REMOVE without keys: all blocks of the namespace are meant.
const KVAll = 1

// KVKeys is KV_LOOKUP and KV_REMOVE: keys of a namespace.
type KVKeys struct {
	Space uint32
	Flags uint32 // [KVPin] of LOOKUP, [KVAll] of REMOVE
	Keys  [][]byte
}

// AppendTo appends the payload.
func (m *KVKeys) AppendTo(b []byte) []byte {
	b = put32(b, m.Space, m.Flags, uint32(len(m.Keys)), 0)
	for _, k := range m.Keys {
		b = put32(b, uint32(len(k)))
	}
	for _, k := range m.Keys {
		b = append(b, k...)
	}
	return b
}

// ParseKVKeys reads the payload. The keys are parts of p.
func ParseKVKeys(p []byte) (KVKeys, error) {
	r := reader{rest: p}
	m := KVKeys{Space: r.u32(), Flags: r.u32()}
	n := r.count(4, MaxKVKeys)
	r.zero(4)
	r.bad = r.bad || m.Flags&^1 != 0
	lengths := reader{rest: r.bytes(n * 4)}
	m.Keys = make([][]byte, n)
	for i := range m.Keys {
		m.Keys[i] = r.key(lengths.u32())
	}
	return m, r.end()
}

// key reads a key.
func (r *reader) key(length uint32) []byte {
	if length == 0 || length > MaxKVKey {
		r.bad = true
		return nil
	}
	return r.bytes(int(length))
}

// KVBlock is a block that a client is going to store.
type KVBlock struct {
	Key    []byte
	Length uint32 // bytes, at most the namespace's block
}

// KVReserve is KV_RESERVE: a slot for each of some blocks.
type KVReserve struct {
	Space  uint32
	Blocks []KVBlock
}

// AppendTo appends the payload.
func (m *KVReserve) AppendTo(b []byte) []byte {
	b = put32(b, m.Space, 0, uint32(len(m.Blocks)), 0)
	for _, k := range m.Blocks {
		b = put32(b, uint32(len(k.Key)), k.Length)
	}
	for _, k := range m.Blocks {
		b = append(b, k.Key...)
	}
	return b
}

// ParseKVReserve reads the payload. The keys are parts of p.
func ParseKVReserve(p []byte) (KVReserve, error) {
	r := reader{rest: p}
	m := KVReserve{Space: r.u32()}
	r.zero(4)
	n := r.count(8, MaxKVKeys)
	r.zero(4)
	lengths := reader{rest: r.bytes(n * 8)}
	m.Blocks = make([]KVBlock, n)
	for i := range m.Blocks {
		length := lengths.u32()
		m.Blocks[i] = KVBlock{r.key(length), lengths.u32()}
		r.bad = r.bad || m.Blocks[i].Length > MaxKVBlock
	}
	return m, r.end()
}

// KVHasCRC is a flag of KV_COMMIT and KV_SLOTS: the CRC-32C of the block's bytes is known. Blocks on the disk have it always, and readers compare it.
const KVHasCRC = 1

// KVSlot is the answer for one key: where its block lies, or shall lie.
type KVSlot struct {
	Errno  syscall.Errno // of LOOKUP: ENOENT. Of RESERVE: EEXIST, EBUSY, ENOSPC, EDQUOT. The rest is zero then
	Tier   uint32        // place among the tiers of KV_SPACE
	Slot   uint64
	Length uint32 // bytes of the block
	CRC    uint32 // CRC-32C of them, where the client that stored it told it
	Flags  uint32 // [KVHasCRC]
	Token  uint64 // of the pin or the reservation; 0 where there is none
}

// AppendKVSlots appends the payload of KV_SLOTS.
func AppendKVSlots(b []byte, slots []KVSlot) []byte {
	b = put32(b, uint32(len(slots)), 0)
	for _, s := range slots {
		b = put64(put32(b, uint32(s.Errno), s.Tier), s.Slot)
		b = put64(put32(b, s.Length, s.CRC, s.Flags, 0), s.Token)
	}
	return b
}

// ParseKVSlots reads the payload of KV_SLOTS.
func ParseKVSlots(p []byte) ([]KVSlot, error) {
	r := reader{rest: p}
	n := r.count(kvSlotSize, MaxKVKeys)
	r.zero(4)
	slots := make([]KVSlot, n)
	for i := range slots {
		slots[i] = KVSlot{Errno: syscall.Errno(r.u32()), Tier: r.u32(), Slot: r.u64(), Length: r.u32(), CRC: r.u32(), Flags: r.u32()}
		r.zero(4)
		slots[i].Token = r.u64()
		r.bad = r.bad || slots[i].Tier >= MaxKVTiers || slots[i].Flags&^KVHasCRC != 0 || slots[i].Length > MaxKVBlock
	}
	return slots, r.end()
}

// KVStored is a block whose bytes are in its slot.
type KVStored struct {
	Token uint64 // of the reservation
	CRC   uint32 // CRC-32C of the bytes
	Flags uint32 // [KVHasCRC]
}

// KVCommit is KV_COMMIT: blocks can be found from now on, and their reservations are over.
type KVCommit struct {
	Space  uint32
	Stored []KVStored
}

// AppendTo appends the payload.
func (m *KVCommit) AppendTo(b []byte) []byte {
	b = put32(b, m.Space, 0, uint32(len(m.Stored)), 0)
	for _, s := range m.Stored {
		b = put32(put64(b, s.Token), s.CRC, s.Flags)
	}
	return b
}

// ParseKVCommit reads the payload.
func ParseKVCommit(p []byte) (KVCommit, error) {
	r := reader{rest: p}
	m := KVCommit{Space: r.u32()}
	r.zero(4)
	n := r.count(kvCommitSize, MaxKVKeys)
	r.zero(4)
	m.Stored = make([]KVStored, n)
	for i := range m.Stored {
		m.Stored[i] = KVStored{r.u64(), r.u32(), r.u32()}
		r.bad = r.bad || m.Stored[i].Flags&^KVHasCRC != 0
	}
	return m, r.end()
}

// KVSuspect is a flag of KV_RELEASE: the bytes of pinned blocks do not match their checksums, or a slot could not be written. The daemon looks
// for itself.
const KVSuspect = 1

// KVRelease is KV_RELEASE: pins end, and reservations are given up.
type KVRelease struct {
	Space  uint32
	Flags  uint32
	Tokens []uint64
}

// AppendTo appends the payload.
func (m *KVRelease) AppendTo(b []byte) []byte {
	return put64(put32(b, m.Space, m.Flags, uint32(len(m.Tokens)), 0), m.Tokens...)
}

// ParseKVRelease reads the payload.
func ParseKVRelease(p []byte) (KVRelease, error) {
	r := reader{rest: p}
	m := KVRelease{Space: r.u32(), Flags: r.u32()}
	n := r.count(8, MaxKVKeys)
	r.zero(4)
	r.bad = r.bad || m.Flags&^KVSuspect != 0
	m.Tokens = make([]uint64, n)
	for i := range m.Tokens {
		m.Tokens[i] = r.u64()
	}
	return m, r.end()
}

// KVSurvival is the kind of end that a committed block survives.
type KVSurvival uint32

// How far blocks survive. None of them means a loss of power, after which only blocks of an orderly unmount are
// there.
const (
	KVOnDisk  KVSurvival = 1 // a kill of the daemon, and another mount
	KVHeld    KVSurvival = 2 // a kill of the daemon: another process keeps the memory
	KVNothing KVSurvival = 3 // it ends with the daemon
)

// KVDone is the answer for one token or key of KV_COMMIT, KV_RELEASE and KV_REMOVE.
type KVDone struct {
	Errno    syscall.Errno // ENOENT: no such token, or key
	Survives KVSurvival    // of COMMIT, else 0
}

// AppendKVDone appends the payload of KV_DONE.
func AppendKVDone(b []byte, done []KVDone) []byte {
	b = put32(b, uint32(len(done)), 0)
	for _, d := range done {
		b = put32(b, uint32(d.Errno), uint32(d.Survives))
	}
	return b
}

// ParseKVDone reads the payload of KV_DONE.
func ParseKVDone(p []byte) ([]KVDone, error) {
	r := reader{rest: p}
	n := r.count(kvDoneSize, MaxKVKeys)
	r.zero(4)
	done := make([]KVDone, n)
	for i := range done {
		done[i] = KVDone{syscall.Errno(r.u32()), KVSurvival(r.u32())}
		r.bad = r.bad || done[i].Survives > KVNothing
	}
	return done, r.end()
}
