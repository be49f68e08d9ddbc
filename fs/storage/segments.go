package storage

import (
	"iter"

	"github.com/hbmfs/hbmfs/layout"
)

// Pin keeps the file of an object from eviction until unpin, where the object is a segment.
func Pin(o *layout.Object) (unpin func()) {
	if origin := Of(o).Segment; origin != nil {
		return origin.Hold(o)
	}
	return func() {}
}

// LocalRuns yields runs as they lie on this machine at this moment: those of a remote object are cut where segments end.
// Bytes that are not local keep their object.
func LocalRuns(runs iter.Seq[layout.Run]) iter.Seq[layout.Run] {
	return func(yield func(layout.Run) bool) {
		for r := range runs {
			k := Of(r.Object).Segmented
			switch {
			case k == nil:
				if !yield(r) {
					return
				}
			case !segmentRuns(k, r, yield):
				return
			}
		}
	}
}

// segmentRuns yields a run of a remote object: whole pieces together as far as they lie in one segment, and a piece that
// crosses segments in parts.
func segmentRuns(k Segmented, r layout.Run, yield func(layout.Run) bool) bool {
	for r.Count > 0 {
		file, at, n := segmentAt(k, r.Object, r.Offset)
		if n < r.Length {
			for length := r.Length; length > 0; length -= n {
				file, at, n = segmentAt(k, r.Object, r.Offset+r.Length-length)
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

// segmentAt is Lies, with the object itself where the byte is not local.
func segmentAt(k Segmented, o *layout.Object, off int64) (file *layout.Object, at, n int64) {
	file, at, n = k.Lies(o, off)
	if file == nil {
		return o, off, n
	}
	return file, at, n
}

// WorthFetching is the largest gap between pieces, bytes, that is fetched with them: a request of its own costs as much.
const WorthFetching = 1 << 20

// Touched has the cache note a reader's ranges of a file.
func Touched(body *layout.Body, off, n int64) {
	var last layout.Extent
	note := func() {
		if last.Object == nil {
			return
		}
		if origin := Of(last.Object).Segmented; origin != nil {
			origin.Touched(last.Object, last.Offset, last.Length)
		}
	}
	for e := range body.Extents(off, n) {
		end := last.Offset + last.Length
		if e.Object == last.Object && e.Offset >= end && e.Offset-end <= WorthFetching { // small pieces of a view: one look for all
			last.Length = e.Offset + e.Length - last.Offset
			continue
		}
		note()
		last = e
	}
	note()
}
