package cache

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// RemoteListing makes the listing of a store that knows names and no directories. Objects that cannot be files of a tree
// are left out and become problems: see [Listing.Check]. Everybody whom the mount lets in may read the others. They
// belong to the user of this process.
func RemoteListing(objects []*layout.Object) *Listing {
	l := &Listing{Objects: objects}
	l.Check()
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	dirs := map[string]time.Time{"": {}}
	for _, o := range l.Objects {
		o.Perm, o.UID, o.GID = 0o444, uid, gid
		for dir := o.Name; dir != ""; {
			dir = dir[:max(0, strings.LastIndexByte(dir, '/'))]
			newest, known := dirs[dir]
			if known && !o.ModTime.After(newest) {
				break // nor is it newer than those above
			}
			dirs[dir] = o.ModTime
		}
	}
	for name, newest := range dirs {
		l.Dirs = append(l.Dirs, DirEntry{Name: name, ModTime: newest, Perm: 0o555, UID: uid, GID: gid})
	}
	slices.SortFunc(l.Dirs, func(a, b DirEntry) int { return layout.ComparePaths(a.Name, b.Name) })
	return l
}
