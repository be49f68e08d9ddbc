// Package storage asks an origin where the bytes of an object lie: in a file of this machine, in segments of a cache, or elsewhere.
package storage

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/layout"
)

// Storage says where the bytes of an object lie. Fields are nil where they do not apply; all are for bytes that hbmfs makes.
type Storage struct {
	Local     Local     // the object is a file of this machine: of the source, or a segment of a cache
	Segmented Segmented // a cache keeps the object in segments
	Segment   Segment   // the object is such a segment
}

// Of asks the origin of an object, which nothing else does.
func Of(o *layout.Object) (s Storage) {
	if o.Synthesized() {
		return Storage{}
	}
	s.Local, _ = o.Origin.(Local)
	s.Segmented, _ = o.Origin.(Segmented)
	s.Segment, _ = o.Origin.(Segment)
	return s
}

// Local is an origin whose objects are files of this machine, which the kernel can read without this process.
type Local interface {
	// OpenObject opens o with a file description of its own, checked to be the listed version.
	OpenObject(ctx context.Context, o *layout.Object) (fd int, err error)
	// OpenForOthers is OpenObject for another process.
	OpenForOthers(o *layout.Object) (fd int, err error)
	// Borrow returns a descriptor of o, checked to be the listed version, until done is called.
	Borrow(ctx context.Context, o *layout.Object) (fd int, done func(), err error)
	// StillGrants returns an error if an open file of o no longer has the listed permissions.
	StillGrants(o *layout.Object, fd int) error
}

// Segmented is an origin whose objects lie in segments: local files that a cache fetches, evicts and fetches again.
type Segmented interface {
	// Lies returns the segment that has the byte at off of o, the byte's place in it, and how many bytes lie there from it
	// on. Where the byte is not local, file is nil, and n counts the bytes that are not local either.
	Lies(o *layout.Object, off int64) (file *layout.Object, at, n int64)
	// WasRead tells the origin of bytes that were read from a segment directly.
	WasRead(o *layout.Object, off, n int64)
	// OpenWhole opens the one segment that has all of o, and pins it until release. fd is -1 where there is none. It may
	// wait until there is one.
	OpenWhole(ctx context.Context, o *layout.Object) (fd int, release func(), err error)
	// Stale tells, once, that the kernel may have pages of o with bytes that turned out to be wrong.
	Stale(o *layout.Object) bool
	// Touched notes that a reader reads [off, off+n) of o.
	Touched(o *layout.Object, off, n int64)
	// Here gives how many bytes of [off, off+n) are on this machine, and of these those that a crash would take still.
	Here(o *layout.Object, off, n int64) (here, settling int64)
}

// Segment is the origin of segments.
type Segment interface {
	// Hold keeps a segment from eviction until release.
	Hold(file *layout.Object) (release func())
}

// StillGrants checks that an open file still grants a user the rights that the mount shows, and closes it otherwise. For
// the daemon's own user the kernel has checked that at open.
func StillGrants(uid uint32, o *layout.Object, fd int) (int, error) {
	s := Of(o)
	if s.Local == nil || uid == uint32(os.Geteuid()) {
		return fd, nil
	}
	if err := s.Local.StillGrants(o, fd); err != nil {
		_ = unix.Close(fd) // opened for reading: nothing is lost
		return -1, err
	}
	return fd, nil
}
