// Package kv is the store of a KV volume, and the daemon's side of it: KV_OPEN, KV_LOOKUP, KV_RESERVE, KV_COMMIT and the others of the control
// channel (docs/reference/control-protocol.md).
//
//	s, err := kv.New(kv.Options{Directory: dir, Size: 200 << 30, Memory: 32 << 30, Log: log, Life: life})
//	err = s.Load()                                  // once the daemon before is gone, if there was one
//	go s.Run(ctx)                                   // copies blocks between the tiers
//	session := s.Session(user, pidfd)               // one of each connection
//	a, err := session.Handle(ctx, h.Type, payload)  // of each frame that IsKV
//	session.End()
//	err = s.Close()                                 // after the mount
//
// A [Space] is a namespace: blocks of at most one size, found by keys. It has one or two tiers, memory before disk. A tier is a *slab*, a file of
// equal slots, and an *index*, a file of one record for each slot. Clients write and read slots by descriptors; the daemon never touches their
// bytes, but to copy blocks between the tiers and to verify them.
//
// # The files
//
// A record (record.go) says which key's block is in a slot, and has a checksum that covers the slot's number and the namespace's. It is written
// after the client has said COMMIT, and zeroed before the slot is given to another client. So at every kill a record that is whole speaks of bytes
// that were complete. A record is as long as a key needs at most, lies at a place that its slot determines, and is written by one call. So the
// index never grows, is never compacted, and is read in one pass. Slabs and indexes are preallocated, and count together for the limit of their
// tier.
//
// In memory a tier has 24 bytes and the key for each slot, and a table of cells (table.go), all outside of Go's heap. Nothing of it is scanned, and
// no garbage is kept beside it.
//
// # Holds
//
// A *hold* is a pin or a reservation: a slot with a hold is not evicted, moved or given to anybody else. A hold belongs to an *owner*, the process that
// connected, and ends with it. Tokens name holds, and are never used twice. Where somebody keeps the mount over the daemon's end, holds lie in
// memory that all lives share, and the holder keeps the processes' descriptors. A copy by DMA goes on while the daemon is replaced. Of a process that
// the holder's copy is too old for, the memory says enough to find it.
//
// A slab that processes of an earlier mount can still write (by F_SETLEASE, the kernel's own answer) is not used again: their writes could land
// in slots that others have been given.
//
// # Locks
//
// Each Space has a lock, which is never held while a file is read or written, but for memory's. Order: Space, owner, the store, budgets.
package kv
