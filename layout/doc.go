// Package layout describes datasets: objects, their format, and the files that can be made of them without copying
// a byte.
//
// The use is: list the objects of an origin (package cache does), then
//
//	vol, err := layout.Index(ctx, objects, layout.Options{})
//	for _, set := range vol.Sets { ... set.Format, set.DType, set.Tokens() ... }
//	for _, view := range vol.Views { file, err := view.File(ctx) ... file.ReadAt(ctx, p, off) }
//
// An [Object] is a thing at the origin. A [Body] is the byte ranges of objects that make a file. A [File] is a body
// with a name and an element type. A [Set] is a group of shards that a loader reads as one stream of tokens or samples:
// one directory, one format, one split. A [View] is a file that exists nowhere at the origin.
//
// Index reads the first 4 KiB of every object, and the indexes that name shards. So its cost grows with the number of
// objects, never with their bytes. Offset tables, record batches and compressed document lists are read when a view or
// an inspection asks for them: see [Set.Resolve].
//
// Every number that comes out of a file is hostile until it has been compared with the object's size. A parser that
// finds a mistake adds a [Problem] that names object, offset and expectation. It never panics, and never allocates by a
// count that the object could not hold. All integers are little-endian unless a format says otherwise.
package layout
