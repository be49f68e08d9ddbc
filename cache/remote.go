package cache

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// RemoteListing makes the listing of a store that knows names and no directories. Objects whose names cannot be files
// of a tree are left out and become problems: those with empty components, dots or NUL, and those that are directories
// for others. What remains is readable by everybody whom the mount lets in, and belongs to who runs this process.
func RemoteListing(objects []*layout.Object) *Listing {
	l := &Listing{}
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	dirs := map[string]time.Time{"": {}}
	for _, o := range objects {
		if !plainName(o.Name) {
			l.leaveOut(o.Name, "the name is no path of a file: left out")
			continue
		}
		o.Perm, o.UID, o.GID = 0o444, uid, gid
		l.Objects = append(l.Objects, o)
		for dir := o.Name; dir != ""; {
			dir = strings.TrimSuffix(path.Dir(dir), ".")
			if newest, known := dirs[dir]; !known || o.ModTime.After(newest) {
				dirs[dir] = o.ModTime
			}
		}
	}
	slices.SortFunc(l.Objects, func(a, b *layout.Object) int { return layout.ComparePaths(a.Name, b.Name) })
	l.Objects = slices.DeleteFunc(l.Objects, func(o *layout.Object) bool {
		_, is := dirs[o.Name]
		if is {
			l.leaveOut(o.Name, "is an object, and a directory of others: left out")
		}
		return is
	})
	l.Objects = slices.CompactFunc(l.Objects, func(a, b *layout.Object) bool { return a.Name == b.Name })
	for name, newest := range dirs {
		l.Dirs = append(l.Dirs, DirEntry{Name: name, ModTime: newest, Perm: 0o555, UID: uid, GID: gid})
	}
	slices.SortFunc(l.Dirs, func(a, b DirEntry) int { return layout.ComparePaths(a.Name, b.Name) })
	return l
}

func plainName(name string) bool {
	if !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, 0) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > 255 { // NAME_MAX
			return false
		}
	}
	return true
}
