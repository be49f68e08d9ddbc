// Package checkpoints owns the checkpoint volume: a mount of a directory of checkpoints where plain programs write.
//
//	v, err := checkpoints.Open(ctx, "/nvme/ckpt", checkpoints.Options{...})
//	m, err := fs.New(ctx, "/mnt/ckpt", v.Listing(), fs.Options{Top: v, ...})
//	err = v.Begin() // before m.Serve
//
// Published checkpoints never change: package fs serves them, as a branch of the mount. Every other directory in the root is a draft, which this
// package serves. On disk it is the hidden draft of package checkpoint, so that nobody else takes it for a checkpoint. A draft is published by a
// rename to a name without [Suffix], by the ioctl that hbmfs publish makes, or when its framework has finished (finished.go).
//
// Some files that training frameworks keep in the root are written through the daemon, and may be replaced: see side.go.
//
// A file of a draft is opened with FUSE passthrough: the kernel reads and writes the backing file itself. The daemon gives the kernel
// read-only descriptors alone, so that nothing but an open of a program counts as a writer. Publishing closes the draft for changes first, and
// then takes a read lease of each file, which the kernel refuses while anybody can write it.
//
// The number of a node is the inode number of its file, with [outer] set: the next daemon finds all nodes again by a walk. The kernel asks
// default_permissions before it asks us, and files are made and changed with the caller's own fsuid, fsgid and groups.
//
// With [Options.Containers] a draft ends with the container in which it was begun (package container), as when a pod dies that shares the volume
// with others. Such a volume takes no drafts from a process that has it mounted read-only: control socket and ioctls pass by that option.
//
// Pitfalls. ENOSYS to FSYNC, FALLOCATE or OPENDIR switches them off for the whole mount. The kernel closes the backing file of a
// passthrough open a moment after close(2), so a lease is asked for with patience.
package checkpoints
