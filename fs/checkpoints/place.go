package checkpoints

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// mostPlaces is how many directories of drafts stay open after they were used. A program that writes many files makes most of them in one.
const mostPlaces = 64

// opened is a file or directory of a draft that is open, to name it or its files. It closes when its last user has ended.
type opened struct {
	v     *Volume
	fd    int
	users int // guarded by the volume's mu; the node or draft that keeps it is one
}

// end ends a use.
func (p *opened) end() {
	p.v.mu.Lock()
	defer p.v.mu.Unlock()
	p.leave()
}

// leave ends a use. The caller has the volume's mu.
func (p *opened) leave() {
	if p.users--; p.users == 0 {
		_ = unix.Close(p.fd) // opened to name it
	}
}

// at opens a node to name it. It is the file that the kernel means, or an error. The caller calls end.
func (n *node) at() (*opened, error) {
	if n.draft == nil {
		return nil, unix.ESTALE
	}
	n.draft.names.RLock()
	defer n.draft.names.RUnlock()
	return n.follow()
}

// follow is at for a caller that has the draft's names.
func (n *node) follow() (*opened, error) {
	v := n.draft.v
	p, err := n.placed()
	if p != nil || err != nil {
		return p, err
	}
	top, err := n.draft.top()
	if err != nil {
		return nil, err
	}
	defer top.end()
	fd, err := beneath(top.fd, n.path(), unix.O_PATH, 0)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			err = unix.ESTALE
		}
		return nil, err
	}
	st, err := statx(fd, "")
	if err == nil && st.Ino != n.ino {
		err = unix.ESTALE
	}
	if err != nil {
		_ = unix.Close(fd) // opened to name it
		return nil, err
	}
	p = &opened{v: v, fd: fd, users: 1}
	if n.isDir {
		v.keepPlace(n, p)
	}
	return p, nil
}

// placed gives a node's place where it is open already.
func (n *node) placed() (*opened, error) {
	v := n.draft.v
	v.mu.Lock()
	defer v.mu.Unlock()
	p := n.place
	if n == n.draft.root {
		p = n.draft.dir
	}
	switch {
	case n.file >= 0:
		fd, err := unix.FcntlInt(uintptr(n.file), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		return &opened{v: v, fd: fd, users: 1}, nil
	case p != nil:
		p.users++
	case n.gone:
		return nil, unix.ESTALE
	}
	return p, nil
}

// about opens a directory that is about to lose its name, so that who has it open goes on with it as on the disk. It is nil where nobody
// knows the directory, or the user has as many files open as it may. The caller has the draft's names.
func (v *Volume) about(in *node, name string, st *unix.Statx_t, uid uint32) *opened {
	v.mu.Lock()
	n := v.nodes[st.Ino]
	v.mu.Unlock()
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || n == nil || n.parent != in || n.name != name || !v.room.files.Reserve(uid, 1) {
		return nil
	}
	p, err := n.follow()
	if err != nil {
		v.room.files.Book(uid, -1)
		return nil
	}
	return p
}

// without keeps a directory open that has lost its name, until the kernel forgets it.
func (v *Volume) without(ino uint64, p *opened, uid uint32) {
	if p == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.nodes[ino]
	if n == nil || !n.gone {
		v.room.files.Book(uid, -1)
		p.leave()
		return
	}
	v.unplace(n)
	n.place, n.held, n.opener = p, true, uid
}

// top is the place of a draft's own directory.
func (d *mountedDraft) top() (*opened, error) {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	if d.dir == nil {
		return nil, unix.ESTALE
	}
	d.dir.users++
	return d.dir, nil
}

// keepPlace keeps a directory open for the next one who names a file in it.
func (v *Volume) keepPlace(n *node, p *opened) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n.place != nil || v.nodes[n.ino] != n {
		return
	}
	if len(v.placed) == mostPlaces {
		v.unplace(v.placed[0])
	}
	p.users++
	n.place = p
	v.placed = append(v.placed, n)
}

// unplace no longer keeps a directory open. The caller has mu.
func (v *Volume) unplace(n *node) {
	if n.place == nil {
		return
	}
	n.place.leave()
	n.place = nil
	if n.held {
		n.held = false
		v.room.files.Book(n.opener, -1)
		return
	}
	v.placed = slices.DeleteFunc(v.placed, func(other *node) bool { return other == n })
}
