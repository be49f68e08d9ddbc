// Package decode shows compressed shards as if they were plain. They have the decoded names and sizes, and an index that
// does not mention compression. A reader that was made for plain shards just reads.
//
//	x, err := decode.Wrap(ctx, listing)                        // compressed shards are replaced in the listing
//	kept.Add(source, x, &cache.Listing{Objects: x.Objects()})  // and what they decode to is kept
//
// That is MosaicML Streaming: shards that an index.json names under zip_data, in zstd, gz, bz2 and snappy. Brotli is not
// decoded: no Go decoder of it is both kept well and fast. [Decoded.AddFiles] adds zstd files that no index names, where
// their size can be learned without reading too much.
//
// An index is replaced as a whole or not at all. Where one of its shards cannot be decoded, all of them stay as they are
// stored, and the listing gets a problem that says why.
//
// Decoded objects come as a whole ([layout.Object.Whole]): a fetch decodes from the first byte to the last. It fails with
// [cache.ErrDamaged] at its end if the size or a hash contradicts the index. So no byte of a fetch may be given out
// before the fetch has succeeded; package store keeps to that. Of the hashes in the index the fastest is compared, for
// each of the compressed and the decoded bytes. Only files of AddFiles that have a seek table are decoded frame by frame,
// where they are read. Each frame is checked before any of it is given out.
//
// Pitfall: [Decoded.ReadAt] decodes a whole object for any byte of it, and holds only the last one. It is for when the
// cache's disk fails.
package decode
