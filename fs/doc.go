// Package fs owns the filesystem that the kernel sees: a read-only FUSE mount of a dataset and its views.
//
//	m, err := fs.New(ctx, "/mnt/pile", listing, fs.Options{...}) // listing is of package cache
//	go ...                                                       // m.Unmount, when told to
//	m.Serve(ctx)                                                 // until it is unmounted
//
// It speaks go-fuse's raw protocol and not its node API, because a mounted dataset never changes. A node is a number for as
// long as the mount lives. So no file needs reference counts or locks, and 100,000 files cost a few tens of megabytes.
// Everything that the kernel may keep it keeps: entries and attributes for good, misses too, page cache across opens.
//
// A file that is one whole local file is opened with FUSE passthrough where the mount may (root, Linux 6.9). The kernel
// reads the source itself, and readers survive this process. Other reads go through this process, by splice where the bytes
// lie in one place.
//
// Pitfalls. The kernel allows one backing file for an inode at a time, and refuses to mix passthrough and cached opens
// of one inode (EIO). A node that fell back to cached reading stays there. A short reply before the end of a file would
// be taken for its end, and a mapped page there kills the reader with SIGBUS. So bytes that cannot be had are always
// EIO.
package fs
