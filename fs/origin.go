package fs

import (
	"context"

	"github.com/hbmfs/hbmfs/layout"
)

// storage says where the bytes of an object lie. Fields are nil where they do not apply; all are for bytes that hbmfs makes.
type storage struct {
	local     local     // the object is a file of this machine: of the source, or a segment of a cache
	segmented segmented // a cache keeps the object in segments
	segment   pinner    // the object is such a segment
}

// storageOf asks the origin of an object, which nothing else does.
func storageOf(o *layout.Object) (s storage) {
	if o.Synthesized() {
		return storage{}
	}
	s.local, _ = o.Origin.(local)
	s.segmented, _ = o.Origin.(segmented)
	s.segment, _ = o.Origin.(pinner)
	return s
}

// local is an origin whose objects are files of this machine, which the kernel can read without this process.
type local interface {
	// OpenObject opens o with a file description of its own, checked to be the listed version.
	OpenObject(ctx context.Context, o *layout.Object) (fd int, err error)
	// OpenForOthers is OpenObject for another process.
	OpenForOthers(o *layout.Object) (fd int, err error)
	// Borrow returns a descriptor of o, checked to be the listed version, until done is called.
	Borrow(ctx context.Context, o *layout.Object) (fd int, done func(), err error)
	// StillGrants returns an error if an open file of o no longer grants what was listed.
	StillGrants(o *layout.Object, fd int) error
}

// segmented is an origin whose objects lie in segments: local files that a cache fetches, evicts and fetches again.
type segmented interface {
	// Lies returns the segment that has the byte at off of o, the byte's place in it, and how many bytes lie there from it
	// on. Where the byte is not local, file is nil, and n counts the bytes that are not local either.
	Lies(o *layout.Object, off int64) (file *layout.Object, at, n int64)
	// WasRead tells the origin of bytes that were read from a segment directly.
	WasRead(o *layout.Object, off, n int64)
	// OpenWhole opens the one segment that has all of o, and pins it until release. fd is -1 where there is none. It may
	// wait until there is one.
	OpenWhole(ctx context.Context, o *layout.Object) (fd int, release func(), err error)
	// Touched notes that a reader reads [off, off+n) of o.
	Touched(o *layout.Object, off, n int64)
	// Here gives how many bytes of [off, off+n) are on this machine, and of these those that a crash would take still.
	Here(o *layout.Object, off, n int64) (here, settling int64)
}

// pinner is the origin of segments.
type pinner interface {
	// Hold keeps a segment from eviction until release.
	Hold(file *layout.Object) (release func())
}
