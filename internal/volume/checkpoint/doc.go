// Package checkpoint publishes directories of files as a whole: a checkpoint is complete or not there.
//
//	d, err := checkpoint.Begin(ctx, "/ckpt/step_100", checkpoint.Part{Of: 1})
//	defer d.Drop()              // removes what was not published
//	...                         // files are written and synced below d.Dir(), and summed on the way
//	err = d.Publish(ctx, files) // their names, sizes and sums
//
//	all, err := checkpoint.List("/ckpt")
//	c, err := checkpoint.Open("/ckpt/step_100") // its manifest
//	report, err := checkpoint.Verify(ctx, "/ckpt/step_100", checkpoint.VerifyOptions{})
//	err = checkpoint.Remove(ctx, "/ckpt/step_90")
//	gone, err := checkpoint.Clean(ctx, "/ckpt")
//
// Three hidden names stand beside the checkpoint NAME:
//
//	.NAME.hbmfs.tmp   the draft, mode 0700: a checkpoint that is being written
//	.NAME.hbmfs.old   a checkpoint that is being removed
//	.NAME.hbmfs.lock  the lock on all of these names, as long as somebody works on one of them
//
// Publishing syncs every file, writes the manifest [ManifestName], syncs it and the directory, renames the draft to NAME, and
// syncs the parent. A kill before the rename leaves a draft, and one after it a checkpoint. Removing renames first, too. The next
// Begin of the name takes leftovers away, and so does Clean. Nothing here compares times: a clock may go backwards.
//
// The lock is flock on a file, which the kernel takes from a process that ends. Children that it forked share the lock,
// and hold it until they end or run another program. On NFS the lock holds between hosts, and a server frees the lock of a dead
// host when its lease ends (90 seconds by default). Mounted with nolock or local_lock, NFS has locks within a host only.
//
// Everything goes by descriptors of directories. No link is followed below the parent, and only files of this user
// are removed. A path that is swapped meanwhile makes a call fail, and does no harm elsewhere.
package checkpoint
