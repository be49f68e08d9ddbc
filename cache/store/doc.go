// Package store keeps remote objects on a local disk, in segments, and serves them while they arrive.
//
// A byte in a segment is written once and never changes; a segment disappears only by unlink. So whoever holds its file
// open may read it for as long as he likes.
//
//	s, err := store.Open("/nvme/hbmfs", store.Options{Size: 2 << 40})
//	s.Add("s3://bucket/pile", origin, listing) // the listing's objects are now read through s
//	n, err := listing.Objects[0].ReadAt(ctx, p, off)
//
// An object is cut into segments. One that is being filled is a file without a name (O_TMPFILE), so that a crash leaves
// nothing of it. Filled, it gets its checksums as an extended attribute, is synced, and is linked to its name: data,
// checksums and name appear together or not at all. What has a name is trusted at the next start, also by another
// process: several mounts may share a directory.
//
// Blocks of 32 KiB are fetched once, however many wait for them. Readers in sequence are fetched ahead, by growing
// windows; readers at random get the blocks that they touch. A read of 2 MiB at random comes as several in sequence, since
// the kernel cuts it: so only who begins at the beginning of an object, or has gone on for a while, is one in sequence.
//
// Objects that come as a whole ([layout.Object.Whole]) cannot be read before all of them is here. So what follows one in
// its directory begins to come when somebody reads it in order, or goes from one to the next: as far as the window of a
// reader in sequence reaches, up to a quarter of the budget, and by one pass for a processor. Who waits for an object
// waits for no other; [Origin.OpenWhole] waits for one that comes ahead, so that the kernel reads it itself.
//
// A reader may say what it will read: [Store.Plan]. That is fetched in order, and what plans need stays longest: other
// segments go first, by SIEVE, and then those that are needed last (Belady). A quarter of the budget, which the plans
// share, holds what comes first; what comes later, and is here, keeps the rest. Fetching for a plan waits where it could
// only evict what is needed sooner; reads never wait for plans. A read takes itself off the plan; what is said again
// before that is the same read. Plans end with their reader, and when nobody keeps to them for two minutes. What they
// remember is bounded, and so is what is fetched for them at a time.
//
// The disk may fail in any way. The bytes then come from the origin, uncached, and [Store.Stats] says why.
//
// Locks: fill.mu, then ledger.mu. Neither is held while bytes are read or written.
package store
