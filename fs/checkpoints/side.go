package checkpoints

import (
	"fmt"
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Side files lie in the root, beside the checkpoints. Training frameworks keep them there: they name the checkpoint to go on with, or read it. They
// may be replaced, are written through the daemon, and belong to no checkpoint.

// sideFiles are the names of side files: DeepSpeed's, and Megatron's trackers.
func sideFiles() []string {
	return []string{"latest", "latest_universal", "zero_to_fp32.py", "zero_to_torch.py", "latest_checkpointed_iteration.txt", "latest_wandb_artifact_path.txt"}
}

func isSide(name string) bool { return slices.Contains(sideFiles(), name) }

// sideMost is how large a side file may be. DeepSpeed's script has 33 kB.
const sideMost = 256 << 10

// openSide makes the draft that has the side files. It is open as long as the mount, and has the volume's own directory.
func (v *Volume) openSide() error {
	st, err := v.statRoot()
	if err != nil {
		return err
	}
	d := &mountedDraft{v: v, name: ".", shown: "the root", nodes: 1} // which keeps the directory
	d.dir = &opened{v: v, fd: int(v.self.Fd()), users: 1}
	d.root = &node{ino: st.Ino, draft: d, isDir: true, file: -1, generation: generation(st)}
	v.side = d
	return nil
}

// sideFile looks at a side file, nil where there is none.
func (v *Volume) sideFile(name string) *unix.Statx_t {
	if !isSide(name) {
		return nil
	}
	st, err := statx(int(v.self.Fd()), name)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || !ordinary(st) {
		return nil
	}
	return st
}

// sideNames lists the side files that are there.
func (v *Volume) sideNames() (entries []fuse.DirEntry) {
	for _, name := range sideFiles() {
		if v.sideFile(name) != nil {
			entries = append(entries, fuse.DirEntry{Name: name, Mode: unix.S_IFREG})
		}
	}
	return entries
}

// adoptSide makes the nodes of side files that the kernel may know from the daemon before. The caller has mu.
func (v *Volume) adoptSide() {
	for _, name := range sideFiles() {
		if st := v.sideFile(name); st != nil {
			v.put(&node{ino: st.Ino, draft: v.side, parent: v.side.root, name: name, file: -1, generation: generation(st), lookups: known})
		}
	}
}

// lookupSide answers for a side file.
func (r *router) lookupSide(name string, out *fuse.EntryOut) fuse.Status {
	if r.v.sideFile(name) == nil {
		return fuse.ENOENT
	}
	n, st, err := r.v.find(r.v.side.root, name)
	if err != nil {
		return r.fail("look up", err)
	}
	told(n, st, out)
	return fuse.OK
}

// inRoot gives the directory that a file is made in: side files alone are made in the root.
func (r *router) inRoot(id uint64, name string) (*node, error) {
	switch {
	case id != rootID:
		return r.v.node(id)
	case isSide(name):
		return r.v.side.root, nil
	}
	r.v.refuse("%s in the root: a checkpoint volume has directories there, each a checkpoint: make one, and write into it", name)
	return nil, unix.EPERM
}

// removeSide removes a side file, for its owner and root, as it is with checkpoints.
func (v *Volume) removeSide(h *fuse.InHeader, name string) error {
	if st := v.sideFile(name); st != nil && h.Uid != 0 && h.Uid != st.Uid {
		v.refuse("rm %s: it belongs to user %d", name, st.Uid)
		return unix.EPERM
	}
	return v.unlink(v.side.root, h, name, 0)
}

// fits refuses a write that would make a side file too large.
func (n *node) fits(size uint64) error {
	if n.draft == nil || n.draft != n.draft.v.side || size <= sideMost {
		return nil
	}
	n.draft.v.refuse("write %s: a file beside the checkpoints has %d bytes at most: make a directory, and write into that", n.called(), sideMost)
	return fmt.Errorf("a file beside the checkpoints: %w", unix.EFBIG)
}

// renameSide refuses a rename from or to a side file's name, as far as a side file is there. A draft may have the name otherwise.
func (v *Volume) renameSide(old, name string) error {
	if v.draftShown(old) == nil && v.sideFile(old) != nil {
		v.refuse("rename %s to %s: a file beside the checkpoints keeps its name: write it anew, or remove it", old, name)
		return unix.EPERM
	}
	if v.sideFile(name) != nil {
		v.refuse("rename %s to %s: there is a file of that name: remove it first, or choose another name", old, name)
		return unix.EEXIST
	}
	return nil
}
