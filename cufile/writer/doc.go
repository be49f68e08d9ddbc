// Package writer writes memory of a GPU and of the host to files, by the fastest path that is proven to work, and sums it on
// the way.
//
// A [Writer] belongs to one device: threads with pinned slots and, if asked for, an arena of pinned memory. [Writer.Write] makes
// files of parts, each of which is memory. A [Snapshot] is a copy of memory in the arena. Its owner may change the memory as soon
// as the copy is there, while the copy is written.
//
//	w, err := writer.New(writer.Options{Device: 0, Arena: 16 << 30})
//	s, err := w.Snapshot(ctx, tensors, &stream)   // ordered behind the caller's stream
//	err = s.Wait(ctx)                             // from now on the tensors may change
//	q, err := w.Write("/ckpt/.step-7", files, nil) // files made of s.Copies
//	result, err := q.Result()                     // on disk; a CRC-32C of every 4 MiB
//	s.Release()
//
// There are four paths: [Direct], [Mapped], [Staged] and [Buffered]. [Auto] chooses one for each write and says why; one that is
// required and is not there is an error. Bytes are counted by path.
//
// Pitfalls. Memory that is written must stay as it is until the write has ended, and a Snapshot's until it is released. A write
// that failed or was cancelled leaves its files to the caller. Directories are not synced: the publisher of the files does that.
package writer
