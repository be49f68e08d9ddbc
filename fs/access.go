package fs

import (
	"iter"
	"strings"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// access works out who may read a file that shows bytes of several objects: those who could read every one of them
// at the source, through every directory above it. Where that cannot be said with permission bits, less is granted.
type access struct{ dirs map[string]cache.DirEntry }

func newAccess(l *cache.Listing) *access {
	a := &access{map[string]cache.DirEntry{}}
	for _, d := range l.Dirs {
		a.dirs[d.Name] = d
	}
	return a
}

// of returns the read bits for all objects together, and the owner and group that they speak of.
func (a *access) of(objects iter.Seq[*layout.Object]) (perm uint16, uid, gid uint32) {
	perm, uid, gid = 0o444, a.dirs[""].UID, a.dirs[""].GID
	first, dir := true, ""
	for o := range objects {
		if o.Synthesized() {
			continue
		}
		perm &= o.Perm
		if first {
			uid, gid = o.UID, o.GID
		}
		perm &= sameOwner(uid, gid, o.UID, o.GID)
		if d := parent(o.Name); first || d != dir { // a set's shards are mostly neighbours
			perm &= a.through(d, uid, gid)
			dir = d
		}
		first = false
	}
	return perm, uid, gid
}

// sameOwner returns the classes that mean the same people for two owners. For others it is always so.
func sameOwner(uid, gid, uid2, gid2 uint32) uint16 {
	same := uint16(0o444)
	if uid != uid2 {
		same &^= 0o400
	}
	if gid != gid2 {
		same &^= 0o040
	}
	return same
}

// through returns the classes of a file owned by uid and gid that may pass dir and every directory above it. Someone
// who is the owner of the file, but not of the directory, passes it as one of the others.
func (a *access) through(dir string, uid, gid uint32) uint16 {
	pass := uint16(0o444)
	for ; ; dir = parent(dir) {
		if d, ok := a.dirs[dir]; ok {
			enter := d.Perm & 0o111 << 2 // the right to enter, in the place of the right to read
			everybody := enter & 0o004
			if uid != d.UID {
				enter = enter&^0o400 | everybody<<6
			}
			if gid != d.GID {
				enter = enter&^0o040 | everybody<<3
			}
			pass &= enter
		}
		if dir == "" {
			return pass
		}
	}
}

// parent returns the directory of a slash-separated path, "" for the root.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }
