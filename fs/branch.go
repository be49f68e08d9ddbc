package fs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/layout"
)

// Top is the root of a mount where directories appear and go as a whole, and never change between: branches. Its filesystem stands
// around the mount's, and answers for everything that is no branch.
type Top interface {
	// Origin is the directory that the branches lie in.
	Origin() *cache.Dir
	// Published tells of a branch which directory it is: one of the same name that comes later has another id. 0: there is none.
	Published(name string) (id uint64, err error)
	// Around makes the filesystem that the kernel talks to.
	Around(inner *Mount) fuse.RawFileSystem
	// Status is its part of the status.
	Status() *status.Checkpoints
}

// ShortTimeout is how long the kernel keeps an answer about files that may change or go behind the mount.
const ShortTimeout = time.Second

// branches are the directories in the root that were looked up.
type branches struct {
	mount *Mount

	mu     sync.Mutex // guards byName
	byName map[string]*branch
}

// branch is a directory in the root, and that of its views.
type branch struct {
	name   string
	id     uint64 // see Top
	number int    // of its node; the next number is that of its views

	made    once
	listed  once
	listing *cache.Listing
	rights  *access
}

// child finds a name in a directory, nil where there is none.
func (m *Mount) child(ctx context.Context, dir int, parent *node, name string) (*node, int, error) {
	if m.opt.Top != nil && (dir == m.tree.viewsNumber() || dir == rootNumber && name != mountpoint.ControlName) {
		b, err := m.branches.find(ctx, name)
		if err != nil || b == nil {
			return nil, 0, err
		}
		number := b.number
		if dir != rootNumber {
			number++
		}
		return m.tree.get(number), number, nil
	}
	if err := m.expand(ctx, parent); err != nil {
		return nil, 0, err
	}
	n, i := m.tree.find(parent.dir, name)
	return n, i, nil
}

// asNow gives a directory with its permissions as they are now: those of a root that changes are not pinned.
func (m *Mount) asNow(number int, dir *node) *node {
	if m.opt.Top == nil || number != rootNumber {
		return dir
	}
	now, err := m.opt.Top.Origin().Root()
	if err != nil {
		return &node{} // which lets nobody in
	}
	return &node{perm: now.Perm, uid: now.UID, gid: now.GID}
}

// entryTimeout is how long the kernel may keep a name in a directory.
func (m *Mount) entryTimeout(dir int) time.Duration {
	if m.opt.Top != nil && (dir == rootNumber || dir == m.tree.viewsNumber()) {
		return ShortTimeout
	}
	return timeout
}

// viewsNumber is the node of .hbmfs/views.
func (t *tree) viewsNumber() int {
	top, _ := t.find(t.get(rootNumber).dir, mountpoint.ControlName)
	_, i := t.find(top.dir, "views")
	return i
}

// find finds a published directory, nil where there is none.
func (bs *branches) find(ctx context.Context, name string) (*branch, error) {
	id, err := bs.mount.opt.Top.Published(name)
	if err != nil {
		return nil, err
	}
	bs.mu.Lock()
	b := bs.byName[name]
	if b != nil && b.id != id {
		delete(bs.byName, name)
		defer bs.forget(b)
	}
	if id == 0 {
		bs.mu.Unlock()
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	if b == nil || b.id != id {
		b = &branch{name: name, id: id}
		bs.byName[name] = b
	}
	bs.mu.Unlock()
	return b, b.made.do(ctx, func(ctx context.Context) error {
		if err := bs.list(ctx, b); err != nil {
			return err
		}
		top := b.listing.Dirs[1]
		return bs.plant(b, node{perm: top.Perm, uid: top.UID, gid: top.GID, modTime: top.ModTime})
	})
}

// list lists a branch.
func (bs *branches) list(ctx context.Context, b *branch) error {
	m := bs.mount
	return b.listed.do(ctx, func(ctx context.Context) error {
		l, err := m.opt.Top.Origin().ListBelow(ctx, b.name)
		if err != nil {
			return err
		}
		if id, err := m.opt.Top.Published(b.name); err != nil || id != b.id {
			return errors.Join(fmt.Errorf("%q was removed: %w", b.name, cache.ErrChanged), err)
		}
		logProblems(m.log, l.Problems)
		b.listing, b.rights = l, newAccess(l)
		return nil
	})
}

// nodesOf makes the nodes of a branch.
func (bs *branches) nodesOf(b *branch, like node) (contents, views *node) {
	m := bs.mount
	like.kind, like.name = kindDir, b.name
	m.opt.adopt(&like)
	c, v := like, like
	c.ino, v.ino = inoOf(b.name, fmt.Sprint("branch ", b.id)), inoOf(b.name, fmt.Sprint("views ", b.id))
	c.dir = &directory{number: b.number, expand: func(ctx context.Context) ([]entry, error) {
		if err := bs.list(ctx, b); err != nil {
			return nil, err
		}
		return inside(b.name, sourceEntries(b.listing, mountpoint.ControlName, m.opt.adopt)), nil
	}}
	v.dir = &directory{number: b.number + 1, expand: func(ctx context.Context) ([]entry, error) {
		if err := bs.list(ctx, b); err != nil {
			return nil, err
		}
		volume, err := layout.Index(ctx, b.listing.Objects, m.opt.Layout)
		if err != nil {
			return nil, err
		}
		logProblems(m.log, volume.Problems())
		return inside(b.name, m.views(b.listing, b.rights).entries(volume)), nil
	}}
	return &c, &v
}

// inside gives the entries in a directory paths relative to it.
func inside(name string, entries []entry) []entry {
	in := entries[:0]
	for _, e := range entries {
		if path, ok := strings.CutPrefix(e.path, name+"/"); ok {
			in = append(in, entry{path, e.node})
		}
	}
	return in
}

// plant gives a branch its nodes, and records them before the kernel hears of them.
func (bs *branches) plant(b *branch, like node) error {
	m := bs.mount
	t := m.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	b.number = len(t.nodes)
	if m.journal != nil {
		r := binary.LittleEndian.AppendUint64(nil, uint64(b.number))
		for _, v := range []uint64{b.id, uint64(like.perm), uint64(like.uid), uint64(like.gid), uint64(like.modTime.UnixNano())} {
			r = binary.LittleEndian.AppendUint64(r, v)
		}
		if err := m.journal.Append(recordBranch, append(r, b.name...)); err != nil {
			return err
		}
	}
	contents, views := bs.nodesOf(b, like)
	t.nodes = append(t.nodes, contents, views)
	return nil
}

// replay takes a branch that an earlier daemon has made. It is listed when somebody looks into it.
func (bs *branches) replay(record []byte) error {
	m := bs.mount
	const fixed = 6
	if len(record) < 8*fixed || m.opt.Top == nil {
		return fmt.Errorf("%w: its journal has a branch that cannot be", handover.ErrRefused)
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(record[8*i:]) }
	b := &branch{number: int(at(0)), id: at(1), name: string(record[8*fixed:])}
	b.made.done.Store(true)
	m.tree.reserve(grown{dir: -1, first: b.number, count: 2})
	contents, views := bs.nodesOf(b, node{perm: uint16(at(2)), uid: uint32(at(3)), gid: uint32(at(4)), modTime: time.Unix(0, int64(at(5)))})
	m.tree.set(b.number, contents)
	m.tree.set(b.number+1, views)
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.byName[b.name] = b
	return nil
}

// forget takes the nodes of a branch away that is gone. Files that are open go on.
func (bs *branches) forget(b *branch) {
	m := bs.mount
	if !b.made.done.Load() {
		return
	}
	m.tree.clear(grown{first: b.number, count: 2})
	if b.listed.done.Load() {
		m.control.ForgetObjects(b.listing.Objects)
		for _, o := range b.listing.Objects {
			m.opt.Top.Origin().Forget(o)
		}
	}
}

// drop forgets a branch that was removed.
func (bs *branches) drop(name string) {
	bs.mu.Lock()
	b := bs.byName[name]
	delete(bs.byName, name)
	bs.mu.Unlock()
	if b != nil {
		bs.forget(b)
	}
}
