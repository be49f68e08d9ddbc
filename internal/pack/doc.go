// Package pack writes datasets. It reads text, JSONL or tokenized datasets, and writes shards in a format that loaders
// expect, with a manifest of sizes, counts and checksums beside them.
//
// The use is one call:
//
//	result, err := pack.Run(ctx, pack.Options{Sources: []string{"corpus"}, Out: "out", Format: pack.Megatron})
//
// Files may be compressed by gzip or zstd, which their magic says; they are decompressed as they are read. A [Source]
// yields documents. A worker pool tokenizes them in batches whose borders depend on the input alone. One goroutine
// writes the batches in order, so the number of workers does not change the bytes. Memory is bounded by workers times
// the batch size; no writer holds a shard.
//
// Every file is written under a temporary name in the output directory, checksummed and fsynced. The files get their
// names when all are complete, the manifest last. An error or a cancelled context therefore leaves nothing behind. A
// dataset that is replaced is moved aside before and removed after that, so one of the two can always be made whole.
// The run does so itself when a rename fails, and the next one when it was killed.
//
// Pitfalls: the checksum pass reads every shard once more after it was written. Invalid UTF-8 becomes U+FFFD, as in
// tiktoken, and is counted in [Result]. A text like <|endoftext|> inside a document is ordinary text, never the token.
package pack
