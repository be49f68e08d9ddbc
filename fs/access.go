package fs

import (
	"iter"
	"strings"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// access computes the permissions of a file that shows bytes of several objects. They are for users who may read every
// object at the source, through every directory above it. Where permission bits cannot say that, access grants less.
type access struct{ dirs map[string]cache.Rights }

func newAccess(l *cache.Listing) *access {
	a := &access{map[string]cache.Rights{}}
	for _, d := range l.Dirs {
		a.dirs[d.Name] = cache.Rights{Perm: d.Perm, UID: d.UID, GID: d.GID}
	}
	return a
}

// of returns the read bits for all objects together, with the owner and group that these bits are for.
func (a *access) of(objects iter.Seq[*layout.Object]) (perm uint16, uid, gid uint32) {
	perm, uid, gid = 0o444, a.dirs[""].UID, a.dirs[""].GID
	first, dir := true, ""
	for o := range objects {
		if o.Synthesized() {
			continue
		}
		if first {
			uid, gid = o.UID, o.GID
		}
		perm &= cache.Rights{Perm: o.Perm, UID: o.UID, GID: o.GID}.Certain(uid, gid, cache.ToRead)
		if d := parent(o.Name); first || d != dir { // a set's shards are mostly neighbours
			perm &= a.through(d, uid, gid)
			dir = d
		}
		first = false
	}
	return perm, uid, gid
}

// through returns the classes of a file owned by uid and gid that may pass dir and every directory above it.
func (a *access) through(dir string, uid, gid uint32) uint16 {
	pass := uint16(0o444)
	for ; ; dir = parent(dir) {
		pass &= a.dirs[dir].Certain(uid, gid, cache.ToPass) // a directory that was not listed grants nothing
		if dir == "" {
			return pass
		}
	}
}

// listedByAll reports whether every user who may list the root may list a directory.
func (a *access) listedByAll(dir string) bool {
	root := a.dirs[""]
	for ; ; dir = parent(dir) {
		may := a.dirs[dir].Certain(root.UID, root.GID, cache.ToRead) & a.dirs[dir].Certain(root.UID, root.GID, cache.ToPass)
		switch {
		case root.Perm&0o444&^may != 0:
			return false
		case dir == "":
			return true
		}
	}
}

// toldOf reports whether the status, which everybody reads, may speak of an object.
func (a *access) toldOf(object string) bool { return a.listedByAll(parent(object)) }

// parent returns the directory of a slash-separated path, "" for the root.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }
