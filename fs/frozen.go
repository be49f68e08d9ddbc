package fs

import (
	"context"
	"slices"
	"strings"

	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
)

// A frozen mount keeps its files as they were when it was mounted. At the first open it tells the kernel, for good, to open files
// without asking. The kernel then keeps the bytes of files as it keeps names and attributes, and has no handle, no passthrough and
// no end of an open. Two things follow:
//
//   - The superblock is read-only. Otherwise a program could open a file for writing, and change pages that others read.
//   - A status file is a new node at each look-up, since the kernel would go on showing the bytes that it read first. It ends with its
//     daemon: the next one answers a read of it with ESTALE.

// judgeFrozen asks the kernel whether the superblock is read-only. This daemon has sealed it, or the one before.
func (m *Mount) judgeFrozen() {
	if !m.opt.Frozen {
		return
	}
	info, err := mountpoint.At(m.point)
	if err == nil && info != nil && slices.Contains(strings.Split(info.VFSOptions, ","), "ro") {
		return
	}
	why := "--frozen has no effect: the mount is not read-only, which only root can make it"
	m.unfrozen.Store(&why)
	m.log.Warn("the mount is not as it might be meant", "note", why, "error", err)
}

// opensItself reports whether the kernel is to open all files itself. It waits for judgeFrozen, in the mount's first moments. No file may
// be open in the other way by then: the kernel would not tell of its end.
func (m *Mount) opensItself(ctx context.Context) (bool, error) {
	if !m.opt.Frozen {
		return false, nil
	}
	select {
	case <-m.control.Ready():
		return m.unfrozen.Load() == nil, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// firstSnapshot is the first number of texts in a frozen mount, far above those of the tree.
const firstSnapshot = 1 << 62

// show makes a node that shows a text as it is now, until the kernel forgets it. lives is how many daemons the mount has had.
func (t *texts) show(n *node, uid uint32, lives int64) (shown *node, i int, ok bool) {
	content := n.text()
	if !t.bytes.Reserve(uid, int64(len(content))) {
		return nil, 0, false
	}
	copied := *n
	copied.text = func() []byte { return content }
	t.mu.Lock()
	defer t.mu.Unlock()
	// The daemons before have given out numbers, too.
	i = firstSnapshot | int(uint32(lives))&0x3fff_ffff<<32 | int(t.shown)
	t.shown++
	t.snapshots[i] = snapshot{&copied, uid}
	return &copied, i, true
}

type snapshot struct {
	*node
	uid uint32
}

// snapshot returns the node of a number that this daemon gave out, nil for others.
func (t *texts) snapshot(i int) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.snapshots[i].node
}

// forget ends a snapshot. The kernel has looked it up once.
func (t *texts) forget(i int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s, ok := t.snapshots[i]; ok {
		t.bytes.Book(s.uid, -int64(len(s.text())))
		delete(t.snapshots, i)
	}
}
