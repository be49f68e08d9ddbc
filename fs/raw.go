package fs

import (
	"context"
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// number is the tree's name for a FUSE node id.
func number(nodeID uint64) int { return int(nodeID) - 1 }

func nodeID(number int) uint64 { return uint64(number) + 1 }

// String names the filesystem in go-fuse's messages.
func (m *Mount) String() string { return "hbmfs" }

// Lookup finds a name in a directory. The kernel keeps a miss, too, so that asking for absent files costs nothing.
func (m *Mount) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	m.counters.lookups.Add(1)
	ctx := newRequest(cancel, header)
	defer ctx.end()
	parent, status := m.node(ctx, header.NodeId)
	switch {
	case parent == nil:
		return status
	case parent.dir == nil:
		return fuse.Status(syscall.ENOTDIR)
	}
	child, i, err := m.child(ctx, number(header.NodeId), parent, name)
	if err != nil {
		return m.fail(parent, "look up", err)
	}
	kept := m.entryTimeout(number(header.NodeId))
	out.SetEntryTimeout(kept)
	if child == nil {
		return fuse.OK
	}
	if child.kind == kindText && m.opt.Frozen {
		var ok bool
		if child, i, ok = m.texts.show(child, header.Uid, m.handles.head.lives.Load()); !ok { // nobody needs so many at a time
			return fuse.Status(syscall.EMFILE)
		}
		kept = 0
	}
	if child.kind == kindSocket && !m.control.Bound() {
		return fuse.ENOENT // and not a miss to keep: it will be there
	}
	present, err := child.attr(ctx, &out.Attr)
	if err != nil {
		return m.fail(child, "look up", err)
	}
	if present {
		child.entry(i, out)
		out.SetEntryTimeout(kept)
	}
	return fuse.OK
}

// entry fills in the rest of a lookup's answer once the attributes are there.
func (n *node) entry(i int, out *fuse.EntryOut) {
	out.NodeId = nodeID(i)
	out.Generation = 1
	out.SetEntryTimeout(timeout)
	out.SetAttrTimeout(attrTimeout(n))
}

func attrTimeout(n *node) time.Duration {
	if n.kind == kindText {
		return 0
	}
	return timeout
}

// expand makes the children of a directory that is lazy.
func (m *Mount) expand(ctx context.Context, n *node) error {
	d := n.dir
	if d == nil || d.expand == nil {
		return nil
	}
	return d.expanded.do(ctx, func(ctx context.Context) error {
		entries, err := d.expand(ctx)
		if err != nil {
			return err
		}
		g, known, err := m.tree.grow(n, entries)
		d.grown = g
		if err != nil || known {
			return err
		}
		return appendGrown(m.journal, g)
	})
}

// node returns the node of a request. One that an earlier daemon knew is in a directory that is filled again first.
func (m *Mount) node(ctx context.Context, id uint64) (*node, fuse.Status) {
	n, err := m.nodeNumber(ctx, number(id))
	if err != nil {
		return nil, m.fail(&node{name: "a view"}, "find", err)
	}
	return n, fuse.Status(syscall.ESTALE) // where there is none
}

func (m *Mount) nodeNumber(ctx context.Context, i int) (*node, error) {
	if i >= firstSnapshot {
		return m.texts.snapshot(i), nil
	}
	n, of := m.tree.at(i)
	if n != nil || of < 0 {
		return n, nil
	}
	dir, err := m.nodeNumber(ctx, of)
	if err == nil && dir != nil {
		err = m.expand(ctx, dir)
	}
	return m.tree.get(i), err
}

// attr fills in a node's attributes. It reports false for a view that cannot be exact and therefore is not there.
func (n *node) attr(ctx context.Context, out *fuse.Attr) (present bool, err error) {
	mode, size, modTime := uint32(syscall.S_IFREG), int64(0), n.modTime
	switch n.kind {
	case kindDir:
		mode, size = syscall.S_IFDIR, 4096
	case kindLink:
		mode, size = syscall.S_IFLNK, int64(len(n.target))
	case kindSocket:
		mode = syscall.S_IFSOCK
	case kindObject:
		size = n.object.Size
	case kindText:
		size = int64(len(n.text()))
	case kindView:
		file, err := n.view.get(ctx)
		if err != nil || file == nil {
			return false, err
		}
		size, modTime = file.Size(), file.ModTime
	}
	*out = fuse.Attr{
		Ino: n.ino, Size: uint64(size), Blocks: uint64(size+511) / 512, Mode: mode | uint32(n.perm), Nlink: 1,
		Owner: fuse.Owner{Uid: n.uid, Gid: n.gid},
	}
	out.SetTimes(&modTime, &modTime, &modTime)
	return true, nil
}

// GetAttr answers stat.
func (m *Mount) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	n, status := m.node(ctx, in.NodeId)
	if n == nil {
		return status
	}
	present, err := n.attr(ctx, &out.Attr)
	if err != nil {
		return m.fail(n, "stat", err)
	}
	if !present {
		return fuse.ENOENT
	}
	out.SetTimeout(attrTimeout(n))
	return fuse.OK
}

// Readlink returns where a link leads.
func (m *Mount) Readlink(_ <-chan struct{}, header *fuse.InHeader) ([]byte, fuse.Status) {
	n := m.tree.get(number(header.NodeId)) // links are in no directory that is filled later
	if n == nil || n.kind != kindLink {
		return nil, fuse.EINVAL
	}
	return []byte(n.target), fuse.OK
}

// ReadDir lists names only. The kernel asks for it where it does not want attributes.
func (m *Mount) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	return m.list(ctx, in, func(_ *node, _ int, e fuse.DirEntry) (bool, error) { return out.AddDirEntry(e), nil })
}

// ReadDirPlus lists names with attributes, so that find and glob need no further round trip.
func (m *Mount) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	ctx := newRequest(cancel, &in.InHeader)
	defer ctx.end()
	return m.list(ctx, in, func(n *node, i int, e fuse.DirEntry) (bool, error) {
		var attr fuse.Attr
		if n != nil {
			if present, err := n.attr(ctx, &attr); err != nil || !present {
				return true, err
			}
		}
		slot := out.AddDirLookupEntry(e)
		if slot != nil && n != nil && (n.kind != kindText || !m.opt.Frozen) {
			slot.Attr = attr
			n.entry(i, slot)
		}
		return slot != nil, nil
	})
}

// list gives the entries from in.Offset on to add, until it says that the reply is full. The offset of an entry is its
// place in the directory, which never changes: 1 is ".", 2 is "..", then the children. add gets no node for those two.
func (m *Mount) list(ctx context.Context, in *fuse.ReadIn, add func(n *node, i int, e fuse.DirEntry) (bool, error)) fuse.Status {
	dir, status := m.node(ctx, in.NodeId)
	switch {
	case dir == nil:
		return status
	case dir.dir == nil:
		return fuse.Status(syscall.ENOTDIR)
	}
	if err := m.expand(ctx, dir); err != nil {
		return m.fail(dir, "list", err)
	}
	for i := in.Offset; i < 2; i++ {
		e := fuse.DirEntry{Name: "..."[:i+1], Mode: syscall.S_IFDIR, Ino: dir.ino, Off: i + 1}
		if ok, _ := add(nil, 0, e); !ok {
			return fuse.OK
		}
	}
	for i := int(max(in.Offset, 2)) - 2; i >= 0 && i < dir.dir.count; i++ {
		n := m.tree.get(dir.dir.first + i)
		if n == nil || n.hidden || (n.kind == kindSocket && !m.control.Bound()) { // nil: it was removed meanwhile
			continue
		}
		e := fuse.DirEntry{Name: n.name, Mode: n.fileType(), Ino: n.ino, Off: uint64(i) + 3}
		ok, err := add(n, dir.dir.first+i, e)
		if err != nil {
			return m.fail(n, "list", err)
		}
		if !ok {
			break
		}
	}
	return fuse.OK
}

func (n *node) fileType() uint32 {
	switch n.kind {
	case kindDir:
		return syscall.S_IFDIR
	case kindLink:
		return syscall.S_IFLNK
	case kindSocket:
		return syscall.S_IFSOCK
	}
	return syscall.S_IFREG
}

// Forget ends the nodes of texts that were looked up in a frozen mount. Other nodes stay as long as the mount.
func (m *Mount) Forget(id, _ uint64) {
	if i := number(id); i >= firstSnapshot {
		m.texts.forget(i)
	}
}

// StatFs says how large the dataset is, in bytes and files. None of it counts as used: nothing here can run full, and monitors
// of disks alert on used space.
func (m *Mount) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const block = 4096
	total := uint64(0)
	for _, o := range m.listing.Objects {
		total += uint64(o.Size+block-1) / block
	}
	files := uint64(len(m.listing.Objects))
	*out = fuse.StatfsOut{Blocks: total, Bfree: total, Bavail: total, Bsize: block, Frsize: block, Files: files, Ffree: files, NameLen: math.MaxUint8}
	return fuse.OK
}
