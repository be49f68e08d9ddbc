package checkpoints

import (
	"slices"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// OpenDir opens a directory. The kernel keeps the listing of one that never changes.
func (r *router) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if !r.lists(in.NodeId) {
		out.OpenFlags = fuse.FOPEN_CACHE_DIR | fuse.FOPEN_KEEP_CACHE
		return fuse.OK
	}
	r.v.mu.Lock()
	defer r.v.mu.Unlock()
	r.v.lastList++
	out.Fh = r.v.lastList
	return fuse.OK
}

// lists tells whether a directory is listed here: the root, that of all views, and those of drafts.
func (r *router) lists(id uint64) bool { return isOuter(id) || id == rootID || id == r.ViewsID() }

func (r *router) ReleaseDir(in *fuse.ReleaseIn) {
	r.v.mu.Lock()
	defer r.v.mu.Unlock()
	r.v.entries -= len(r.v.listings[in.Fh])
	delete(r.v.listings, in.Fh)
}

func (r *router) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if !r.lists(in.NodeId) {
		return r.Mount.ReadDir(cancel, in, out)
	}
	return r.list(in, out.AddDirEntry)
}

// ReadDirPlus gives no attributes of drafts, which change.
func (r *router) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if !r.lists(in.NodeId) {
		return r.Mount.ReadDirPlus(cancel, in, out)
	}
	return r.list(in, func(e fuse.DirEntry) bool { return out.AddDirLookupEntry(e) != nil })
}

// list gives a listing that was made when the reader began.
func (r *router) list(in *fuse.ReadIn, add func(fuse.DirEntry) bool) fuse.Status {
	r.v.mu.Lock()
	entries, ok := r.v.listings[in.Fh]
	r.v.mu.Unlock()
	if !ok || in.Offset == 0 {
		var err error
		if entries, err = r.names(in.NodeId); err != nil {
			return r.fail("list", err)
		}
		r.v.keepListing(in.Fh, entries)
	}
	for i := int(in.Offset); i < len(entries); i++ {
		e := entries[i]
		e.Off = uint64(i) + 1
		if !add(e) {
			break
		}
	}
	return fuse.OK
}

// keepListing keeps a listing until its reader closes the directory.
func (v *Volume) keepListing(handle uint64, entries []fuse.DirEntry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.entries -= len(v.listings[handle])
	delete(v.listings, handle)
	if v.entries+len(entries) <= mostEntries {
		v.listings[handle] = entries
		v.entries += len(entries)
	}
}

// names lists a directory in the order of its names.
func (r *router) names(id uint64) (entries []fuse.DirEntry, err error) {
	switch {
	case isOuter(id):
		n, nodeErr := r.v.node(id)
		if nodeErr != nil {
			return nil, nodeErr
		}
		entries, err = n.children()
	case id == rootID:
		entries, err = r.v.rootNames()
	default:
		names, _, namesErr := r.v.home.Names()
		err = namesErr
		for _, name := range names {
			entries = append(entries, fuse.DirEntry{Name: name, Mode: unix.S_IFDIR})
		}
	}
	slices.SortFunc(entries, func(a, b fuse.DirEntry) int { return strings.Compare(a.Name, b.Name) })
	self := []fuse.DirEntry{{Name: ".", Mode: unix.S_IFDIR}, {Name: "..", Mode: unix.S_IFDIR}}
	return append(self, entries...), err
}

// StatFs tells of the directory's filesystem: here something can run full.
func (r *router) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(r.v.self.Fd()), &st); err != nil {
		return r.fail("look at the disk of", err)
	}
	*out = fuse.StatfsOut{
		Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail, Files: st.Files, Ffree: st.Ffree, Bsize: uint32(st.Bsize), NameLen: uint32(st.Namelen), Frsize: uint32(st.Frsize),
	}
	return fuse.OK
}
