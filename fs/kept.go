package fs

import (
	"context"
	"iter"

	"github.com/hbmfs/hbmfs/layout"
)

// kept is an origin whose objects come to lie in local files, part by part, and may be fetched again later into others.
type kept interface {
	// Lies gives the local file that holds the byte at off of o, where it is there, and how many bytes follow it there.
	// Where the byte is not local, the file is nil, and n how many bytes share its fate.
	Lies(o *layout.Object, off int64) (file *layout.Object, at, n int64)
	// WasRead is told of what was read where it lies.
	WasRead(o *layout.Object, off, n int64)
	// OpenWhole opens the one local file that has all of o, which stays until release. fd is -1 where there is none. It
	// may wait until there is.
	OpenWhole(ctx context.Context, o *layout.Object) (fd int, release func(), err error)
}

// holder is the origin of the local files of kept objects.
type holder interface {
	// Hold keeps a file from being taken away until release.
	Hold(file *layout.Object) (release func())
}

// hold keeps a local file, if it is one that may go.
func hold(o *layout.Object) (release func()) {
	if h, ok := o.Origin.(holder); ok {
		return h.Hold(o)
	}
	return func() {}
}

// here yields runs as they lie on this machine at this moment: those of a kept object are cut where its local files
// end. What is not local keeps its object.
func here(runs iter.Seq[layout.Run]) iter.Seq[layout.Run] {
	return func(yield func(layout.Run) bool) {
		for r := range runs {
			k, ok := r.Object.Origin.(kept)
			switch {
			case !ok:
				if !yield(r) {
					return
				}
			case !keptRun(k, r, yield):
				return
			}
		}
	}
}

// keptRun yields a run of a kept object: whole pieces together as far as they lie in one local file, and a piece that
// crosses from one to the next in parts.
func keptRun(k kept, r layout.Run, yield func(layout.Run) bool) bool {
	for r.Count > 0 {
		file, at, n := lies(k, r.Object, r.Offset)
		if n < r.Length {
			for length := r.Length; length > 0; length -= n {
				file, at, n = lies(k, r.Object, r.Offset+r.Length-length)
				n = min(n, length)
				if !yield(layout.Run{Logical: r.Logical + r.Length - length, Object: file, Offset: at, Length: n, Stride: n, Count: 1}) {
					return false
				}
			}
			n = r.Length
		} else {
			piece := layout.Run{Logical: r.Logical, Object: file, Offset: at, Length: r.Length, Stride: r.Stride, Count: min(r.Count, 1+(n-r.Length)/r.Stride)}
			n = piece.Count * r.Length
			if !yield(piece) {
				return false
			}
		}
		whole := n / r.Length
		r.Logical, r.Offset, r.Count = r.Logical+n, r.Offset+whole*r.Stride, r.Count-whole
	}
	return true
}

// lies is Lies, with the object itself for what is not local.
func lies(k kept, o *layout.Object, off int64) (file *layout.Object, at, n int64) {
	file, at, n = k.Lies(o, off)
	if file == nil {
		return o, off, n
	}
	return file, at, n
}
