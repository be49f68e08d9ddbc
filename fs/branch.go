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
	"golang.org/x/sys/unix"

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
	if m.opt.Top != nil && (dir == m.viewsNumber() || dir == rootNumber && name != mountpoint.ControlName) {
		b, err := m.branch(ctx, name)
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
	if m.opt.Top != nil && (dir == rootNumber || dir == m.viewsNumber()) {
		return ShortTimeout
	}
	return timeout
}

// viewsNumber is the node of .hbmfs/views.
func (m *Mount) viewsNumber() int {
	top, _ := m.tree.find(m.tree.get(rootNumber).dir, mountpoint.ControlName)
	_, i := m.tree.find(top.dir, "views")
	return i
}

// ViewsID is the node id of .hbmfs/views, which the filesystem around lists.
func (m *Mount) ViewsID() uint64 { return nodeID(m.viewsNumber()) }

// branch finds a published directory, nil where there is none.
func (m *Mount) branch(ctx context.Context, name string) (*branch, error) {
	id, err := m.opt.Top.Published(name)
	if err != nil {
		return nil, err
	}
	bs := &m.branches
	bs.mu.Lock()
	b := bs.byName[name]
	if b != nil && b.id != id {
		delete(bs.byName, name)
		defer m.forget(b)
	}
	if id == 0 {
		bs.mu.Unlock()
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	if b == nil || b.id != id {
		b = &branch{name: name, id: id}
		if bs.byName == nil {
			bs.byName = map[string]*branch{}
		}
		bs.byName[name] = b
	}
	bs.mu.Unlock()
	return b, b.made.do(ctx, func(ctx context.Context) error {
		if err := m.listBranch(ctx, b); err != nil {
			return err
		}
		top := b.listing.Dirs[1]
		return m.plant(b, node{perm: top.Perm, uid: top.UID, gid: top.GID, modTime: top.ModTime})
	})
}

// listBranch lists a branch.
func (m *Mount) listBranch(ctx context.Context, b *branch) error {
	return b.listed.do(ctx, func(ctx context.Context) error {
		l, err := m.opt.Top.Origin().ListBelow(ctx, b.name)
		if err != nil {
			return err
		}
		if id, err := m.opt.Top.Published(b.name); err != nil || id != b.id {
			return errors.Join(fmt.Errorf("%q was removed: %w", b.name, cache.ErrChanged), err)
		}
		m.logProblems(l.Problems)
		b.listing, b.rights = l, newAccess(l)
		return nil
	})
}

// nodesOf makes the nodes of a branch.
func (m *Mount) nodesOf(b *branch, like node) (contents, views *node) {
	like.kind, like.name = kindDir, b.name
	m.adopt(&like)
	c, v := like, like
	c.ino, v.ino = inoOf(b.name, fmt.Sprint("branch ", b.id)), inoOf(b.name, fmt.Sprint("views ", b.id))
	c.dir = &directory{number: b.number, expand: func(ctx context.Context) ([]entry, error) {
		if err := m.listBranch(ctx, b); err != nil {
			return nil, err
		}
		return inside(b.name, sourceEntries(b.listing, mountpoint.ControlName, m.adopt)), nil
	}}
	v.dir = &directory{number: b.number + 1, expand: func(ctx context.Context) ([]entry, error) {
		if err := m.listBranch(ctx, b); err != nil {
			return nil, err
		}
		volume, err := layout.Index(ctx, b.listing.Objects, m.opt.Layout)
		if err != nil {
			return nil, err
		}
		m.logProblems(volume.Problems())
		return inside(b.name, m.viewEntries(volume, b.listing, b.rights)), nil
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
func (m *Mount) plant(b *branch, like node) error {
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
	contents, views := m.nodesOf(b, like)
	t.nodes = append(t.nodes, contents, views)
	return nil
}

// replay takes a branch that an earlier daemon has made. It is listed when somebody looks into it.
func (bs *branches) replay(m *Mount, record []byte) error {
	const fixed = 6
	if len(record) < 8*fixed || m.opt.Top == nil {
		return fmt.Errorf("%w: its journal has a branch that cannot be", handover.ErrRefused)
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(record[8*i:]) }
	b := &branch{number: int(at(0)), id: at(1), name: string(record[8*fixed:])}
	b.made.done.Store(true)
	m.tree.reserve(grown{dir: -1, first: b.number, count: 2})
	contents, views := m.nodesOf(b, node{perm: uint16(at(2)), uid: uint32(at(3)), gid: uint32(at(4)), modTime: time.Unix(0, int64(at(5)))})
	m.tree.set(b.number, contents)
	m.tree.set(b.number+1, views)
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.byName == nil {
		bs.byName = map[string]*branch{}
	}
	bs.byName[b.name] = b
	return nil
}

// forget takes the nodes of a branch away that is gone. Files that are open go on.
func (m *Mount) forget(b *branch) {
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

// clear takes nodes away, and all below them.
func (t *tree) clear(g grown) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for more := []grown{g}; len(more) > 0; {
		g, more = more[0], more[1:]
		for i := g.first; i < g.first+g.count && i < len(t.nodes); i++ {
			n := t.nodes[i]
			if n != nil && n.dir != nil && n.dir.expanded.done.Load() {
				more = append(more, n.dir.grown)
			}
			t.nodes[i] = nil
		}
	}
}

// DropBranch forgets a branch that was removed.
func (m *Mount) DropBranch(name string) {
	m.branches.mu.Lock()
	b := m.branches.byName[name]
	delete(m.branches.byName, name)
	m.branches.mu.Unlock()
	if b != nil {
		m.forget(b)
	}
}

// What the filesystem around the mount's needs of it.

// Request is the context of a request of the kernel, which ends when its caller no longer wants the answer. The caller calls end.
func Request(cancel <-chan struct{}, header *fuse.InHeader) (ctx context.Context, end func()) {
	r := newRequest(cancel, header)
	return r, r.end
}

// Log logs an error of the filesystem around once for each file and errno.
func (m *Mount) Log(file, verb string, errno unix.Errno, err error) {
	m.failed.count(fuse.Status(errno))
	type report struct {
		file, verb string
		errno      unix.Errno
	}
	if _, seen := m.failed.nodes.LoadOrStore(report{file, verb, errno}, true); !seen {
		m.log.Error("cannot "+verb, "file", file, "errno", errno.Error(), "error", err)
	}
}

// Register gives the kernel a file for passthrough. book is called under the lock that orders all such files, with the new id.
func (m *Mount) Register(fd int, book func(id int32)) (ok bool) {
	b := &m.backing
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.off != "" {
		return false
	}
	id, errno := b.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
	if errno != 0 {
		b.failures++
		b.lastErr = errno.Error()
		if errno == unix.EPERM {
			b.off = noCapability
		}
		return false
	}
	book(id)
	b.booked(id)
	return true
}

// Unregister takes a file back that Register gave.
func (m *Mount) Unregister(id int32) {
	_ = m.server.UnregisterBackingFd(id) // it fails only when the mount is gone, and all its ids with it
}

// Opened is an open file of the filesystem around, as the daemons of the mount have it in common.
type Opened struct {
	Inode   uint64
	Backing int32 // 0 where the kernel has none
}

// Book books a file that a request opens, and returns its handle. ok is false where its user has no room left.
func (m *Mount) Book(of *fuse.InHeader, o Opened) (handle uint64, ok bool) {
	return m.handles.openAs(of, uint32(o.Inode), handleOuter, o.Backing, int(o.Inode>>32))
}

// Closing says that the file of the last open of a node is about to be unregistered. The next daemon does it again.
func (m *Mount) Closing(handle uint64) {
	if h := m.handles.get(handle); h != nil {
		h.state.Store(handleClosing)
	}
}

func (h *handle) outer() Opened {
	return Opened{Inode: uint64(h.size)<<32 | uint64(h.node), Backing: h.backing}
}

// Answered returns the handle that a daemon before gave to a request that the kernel sends again.
func (m *Mount) Answered(of *fuse.InHeader) (handle uint64, o Opened, ok bool) {
	again, request := handover.Resent(of.Unique)
	if !again {
		return 0, o, false
	}
	t := m.handles
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.answers[request]
	if !ok || t.slot[i].state.Load() != handleOuter {
		return 0, o, false
	}
	return t.number(i), t.slot[i].outer(), true
}

// Unbook ends an open file.
func (m *Mount) Unbook(handle uint64) { m.handles.close(handle) }

// EachBooked goes through the open files that the daemon before has left.
func (m *Mount) EachBooked(each func(handle uint64, o Opened)) {
	t := m.handles
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.used {
		if h := &t.slot[i]; h.state.Load() == handleOuter {
			each(t.number(i), h.outer())
		}
	}
}

// Passthrough tells whether the kernel reads and writes files itself, and if not, why.
func (m *Mount) Passthrough() (why string) { return m.backing.why() }

// Inherited tells whether an earlier daemon made the mount.
func (m *Mount) Inherited() bool { return m.opt.Life.Adopts() }
