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
// belong to the user of this process. empty are directories without objects, where something tells of them.
func RemoteListing(objects []*layout.Object, empty ...string) *Listing {
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
	for _, name := range empty {
		l.addEmpty(dirs, name)
	}
	for name, newest := range dirs {
		l.Dirs = append(l.Dirs, DirEntry{Name: name, ModTime: newest, Perm: 0o555, UID: uid, GID: gid})
	}
	slices.SortFunc(l.Dirs, func(a, b DirEntry) int { return layout.ComparePaths(a.Name, b.Name) })
	return l
}

// addEmpty adds a directory and those that it lies in, unless one of them is a file. They are as new as the directory around them.
func (l *Listing) addEmpty(dirs map[string]time.Time, name string) {
	var missing []string
	newest, known := dirs[name]
	for dir := name; !known; newest, known = dirs[dir] {
		if l.Find(dir) != nil {
			return
		}
		missing = append(missing, dir)
		dir = dir[:max(0, strings.LastIndexByte(dir, '/'))]
	}
	for _, dir := range missing {
		dirs[dir] = newest
	}
}
