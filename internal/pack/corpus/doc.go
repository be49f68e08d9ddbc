// Package corpus reads the documents of files: text, JSON Lines, JSON arrays, Parquet and Arrow, compressed or not, on
// this machine or in a bucket. It knows a file by its content, and names the files that it leaves out.
//
// The use is in two steps. [Find] lists the files of some sources, and opens none. [Corpus.Read] reads one [Span] of
// one file, and yields a [Block] for each 256 KiB or so. A block is cheap to yield and dear to use. [Block.Documents]
// parses JSON and decodes the parts that can wait, so that many workers share the work. Several spans may be read at
// once.
//
// A span is a range of a file's bytes. A document belongs to the span in which it begins, so that spans without gaps
// give every document once. Files that cannot be cut, as they are compressed or one document, belong to the span that
// holds their first byte. [Corpus.Part] gives the spans of one part of several. It looks at sizes alone.
//
// A [Position] says where a block ends. To begin at it again gives the documents that follow, even in another
// program.
//
// Pitfalls: memory is bounded by 64 MiB for a line or a text, and by 128 MiB for a page of Parquet or the window of a
// compressor. Larger ones are errors that say so. A file that changes while it is read is an error, too.
package corpus
