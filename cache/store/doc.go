// Package store keeps remote objects on a local disk, in segments, and serves them while they arrive.
//
// A byte in a segment is written once and never changes; a segment disappears only by unlink. So a process that has its
// file open may read it for as long as it likes.
//
//	s, err := store.Open("/nvme/hbmfs", store.Options{Size: 2 << 40})
//	s.Add("s3://bucket/pile", origin, listing) // the listing's objects are now read through s
//	n, err := listing.Objects[0].ReadAt(ctx, p, off)
//
// An object is cut into segments. One that is being filled is a file without a name (O_TMPFILE), so that a crash leaves
// nothing of it. Once it is full, it gets its checksums as an extended attribute, is synced, and is linked to its name.
// Data, checksums and name appear together or not at all. Every process trusts a segment that has a name: several mounts
// may share a directory.
//
// Blocks of 32 KiB are fetched once, however many wait for them. Readers in sequence are fetched ahead, each time
// further; readers at random get the blocks that they touch. The kernel cuts a read of 2 MiB at random into several in
// sequence. So only a reader that began at an object's beginning, or has gone on for a while, counts as one in sequence.
//
// Objects that come as a whole ([layout.Object.Whole]) cannot be read before all of them is here. So the next objects of
// the directory begin to come when a reader reads one in order, or goes from one to the next. They come as far ahead
// as for a reader in sequence, up to a quarter of the budget, and by one pass for a processor. A reader that
// waits for an object waits for no other; [Cached.OpenWhole] waits for one that comes ahead, so that the kernel reads it
// itself.
//
// A reader may plan its reads: [Store.Plan]. They are fetched in order, and segments of plans stay longest: others go
// first, by SIEVE, and then those that are needed last (Belady). The next reads of all plans share a quarter of the
// budget; later ones that are here already keep the rest. Fetching for a plan waits where it could only evict segments
// that are needed sooner; reads never wait for plans. A read takes itself off the plan; a read that is planned again
// before that is the same one. Plans end with their reader, and when nobody keeps to them for two minutes. Their memory
// is bounded, and so are the bytes that are fetched for them at a time.
//
// Once all of an object is here, its bytes are compared with the hash that its version is, if that is one. An attribute of
// its segments remembers that it was done. An object with another hash is dropped and fetched again, and refused the second time.
//
// The disk may fail in any way, also after it took the bytes. They then come from the origin, uncached, and [Store.Stats] says why.
//
// Locks: fill.mu, then ledger.mu. Neither is held while bytes are read or written.
package store
