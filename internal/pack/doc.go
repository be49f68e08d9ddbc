// Package pack writes datasets. It reads text, JSONL or tokenized datasets, and writes shards in a format that loaders
// expect. A manifest beside them has sizes, counts and checksums.
//
// The use is one call:
//
//	result, err := pack.Run(ctx, pack.Options{Sources: []string{"corpus"}, Out: "out", Format: pack.Megatron})
//
// Package corpus gives the documents of the sources in blocks. Readers read several lanes of the sources side by side,
// and workers parse and tokenize their batches; one goroutine writes them in order. So neither the number of workers nor
// the borders of batches change the bytes. Memory is bounded by the lanes, the workers and the longest document; no
// writer holds a shard.
//
// A run that takes long saves its state now and then. The state is a position between two documents, and the length of
// each synced file. The next run with the same options and sources cuts the files to that and goes on. [Options.Part]
// writes one share of the documents as a dataset of its own, and [Join] makes the output of a single run of all shares.
//
// Every file is written under a temporary name in the output directory, checksummed and fsynced. The files get their
// names when all are complete, the manifest last. An error or a cancelled context therefore leaves nothing behind, or the state. A
// dataset that is replaced is moved aside before and removed after that, so one of the two can always be made whole.
// The run does so itself when a rename fails, and the next one when it was killed.
//
// Pitfalls: the checksum pass reads every shard once more after it was written. Invalid UTF-8 becomes U+FFFD, as in
// tiktoken, and is counted in [Result]. A text like <|endoftext|> inside a document is ordinary text, and the token only with
// [Options.SpecialText].
package pack
