// Package pack owns the writing of datasets: it reads text, JSONL or datasets that are tokenized already, and writes
// shards in one of the formats that loaders expect, with a manifest of sizes, counts and checksums beside them.
//
// The use is one call:
//
//	result, err := pack.Run(ctx, pack.Options{Sources: []string{"corpus"}, Out: "out", Format: pack.Megatron})
//
// Files may be compressed by gzip or zstd, which their magic says; they are decompressed as they are read. A [Source]
// yields documents. A worker pool tokenizes them in batches whose borders depend on the input alone, and
// one goroutine writes the batches in order, so the same input gives the same bytes whatever the number of workers.
// Memory is bounded by workers times the batch size; no writer holds a shard.
//
// Every file is written under a temporary name in the output directory, checksummed, fsynced, and renamed only when
// all of them are complete; the manifest comes last. An error or a cancelled context therefore leaves nothing behind.
// A dataset that is replaced is moved aside before and removed after that, so one of the two can always be made whole:
// by the run itself when a rename fails, by the next one when it was killed.
//
// Pitfalls: the checksum pass reads every shard once more after it was written. Invalid UTF-8 becomes U+FFFD, as in
// tiktoken, and is counted in [Result]. A text like <|endoftext|> inside a document is ordinary text, never the token.
package pack
