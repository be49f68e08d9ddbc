// Package drain copies published checkpoints of a directory to S3, where other machines can read them, and keeps a journal of the objects
// there.
//
//	d, err := drain.New("/nvme/ckpt", "s3://bucket/run-1", drain.Options{Keep: 2})
//	defer d.Close()
//	go d.Run(ctx)          // until ctx ends; or d.Once(ctx): what is there now
//	d.Published("step-100") // look at once, and not at the next poll
//	s := d.Status()
//
// In the bucket the checkpoint NAME is the objects NAME/..., one for each of its files. The manifest is the last of them, and is made
// only if none is there, so a checkpoint without one is no checkpoint. [MarkName] says at the top of the run whose place it is; a
// mount that finds it shows no directory without a manifest.
//
// Every chunk is compared with its sum in the manifest before its bytes go out. The server compares each part with a CRC-32C that follows
// from these sums. A server that does not know CRC-32C has to answer the MD5 as the ETag. At the end it compares one listing with the
// stored objects.
//
// After a kill the journal says which uploads were begun; which parts they have, the server tells. Without the journal both are asked
// of the server. An existing object with the checksum of a file counts as that file, also if another program stored it.
//
// Parts of one checkpoint, which nodes keep on disks of their own, meet below [StateName] in the bucket; see parts.go.
//
// Nothing here asks a wall clock for a decision.
package drain
