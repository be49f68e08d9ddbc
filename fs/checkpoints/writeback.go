package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Linux reports a write-back error once to each descriptor that was open before it. The lost pages count as clean afterwards, so neither a later
// sync nor a later read finds the loss. Therefore a file of a draft has a descriptor from before its first byte was written ([node.file]). It stays
// open until a sync by it has succeeded, also after the program's close. A sync that fails is remembered until the file is written anew, since the
// descriptor tells of it once.
//
// Programs may hear of an error without the daemon, by msync or O_SYNC. So the descriptor is asked when the last program closes the file: the
// next daemon's descriptors tell only of errors that nobody has heard of.

// loss is a failed sync.
type loss struct {
	Generation uint64 // of the file: its inode number may be another's later
	Errno      uint32
}

// lostError says that bytes of a file are lost.
type lostError struct {
	name  string
	errno unix.Errno
}

func (e *lostError) Error() string {
	return fmt.Sprintf("the disk has lost bytes of file %q: write it again, from its beginning: %v", e.name, e.errno)
}
func (e *lostError) Unwrap() error { return e.errno }

// lose remembers a file's sync error, and returns it.
func (n *node) lose(err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) || n.draft == n.draft.v.side {
		return err
	}
	v := n.draft.v
	defer v.opt.Life.Settle(context.Background())
	v.mu.Lock()
	defer v.mu.Unlock()
	if n.draft.lost == nil {
		n.draft.lost = map[uint64]loss{}
	}
	n.draft.lost[n.ino] = loss{n.generation, uint32(errno)}
	v.keep()
	v.opt.Log.Error("a disk has lost bytes of a draft", "draft", n.draft.shown, "file", n.name, "error", err)
	return &lostError{n.name, errno}
}

// isLost returns the error of an earlier sync of the file.
func (d *mountedDraft) isLost(ino, generation uint64, name string) error {
	d.v.mu.Lock()
	defer d.v.mu.Unlock()
	if l, ok := d.lost[ino]; ok && l.Generation == generation {
		return &lostError{name, unix.Errno(l.Errno)}
	}
	return nil
}

// emptied says that a file has lost all that was written before. Write-back of that is over.
func (n *node) emptied() {
	n.use.Lock()
	defer n.use.Unlock()
	if n.file >= 0 {
		_ = untold(n.file) // of bytes that are wanted no more
	}
	v := n.draft.v
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := n.draft.lost[n.ino]; ok {
		delete(n.draft.lost, n.ino)
		v.keep()
	}
}

// untold returns the write-back error that a descriptor has not told of yet. It waits for nothing: no page lies that far behind.
func untold(fd int) error {
	return unix.SyncFileRange(fd, math.MaxInt64-1, 1, unix.SYNC_FILE_RANGE_WAIT_BEFORE)
}

// sync has a file or directory written to the disk.
func (n *node) sync(data bool) error {
	at, err := n.at()
	if err != nil {
		return err
	}
	defer at.end()
	if n.draft != nil {
		if err := n.draft.isLost(n.ino, n.generation, n.called()); err != nil {
			return err
		}
	}
	fd, _, err := n.witness(at.fd)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // it is synced
	if data {
		err = unix.Fdatasync(fd)
	} else {
		err = unix.Fsync(fd)
	}
	if err != nil && !n.isDir {
		err = n.lose(err)
	}
	return err
}

// witness copies the descriptor that tells of errors since the file was written. Where none is held, all is on the disk, and another one does.
func (n *node) witness(at int) (fd int, held bool, err error) {
	n.draft.v.mu.Lock()
	defer n.draft.v.mu.Unlock()
	if n.file >= 0 {
		fd, err = unix.FcntlInt(uintptr(n.file), unix.F_DUPFD_CLOEXEC, 0)
		return fd, true, err
	}
	fd, err = readOnly(at)
	return fd, false, err
}

// syncFile syncs a file of the draft that is published: see [checkpoint.SealOptions].
func (d *mountedDraft) syncFile(name string, f *os.File) error {
	st, err := statx(int(f.Fd()), "")
	if err != nil {
		return err
	}
	if err := d.isLost(st.Ino, generation(st), name); err != nil {
		return err
	}
	d.v.mu.Lock()
	n := d.v.nodes[st.Ino]
	d.v.mu.Unlock()
	if n == nil || n.draft != d || n.generation != generation(st) { // made past the mount
		return f.Sync()
	}
	fd, _, err := n.witness(int(f.Fd()))
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // it is synced
	if err := unix.Fsync(fd); err != nil {
		err = n.lose(err)
		if lost, ok := errors.AsType[*lostError](err); ok {
			lost.name = name
		}
		return err
	}
	return nil
}

// settle makes sure that a write-back error of a file that nobody has open any more is heard of. The descriptor stays, or the file is
// synced. The caller has use.
func (v *Volume) settle(n *node) {
	v.mu.Lock()
	written := n.written && !n.gone && n.file >= 0 && n.draft != v.side && v.drafts[n.draft.name] == n.draft
	v.mu.Unlock()
	if !written {
		return
	}
	if err := untold(n.file); err != nil {
		_ = n.lose(err) // publishing says so
	}
	if n.waits = v.room.waiting.Reserve(n.opener, 1); n.waits {
		return
	}
	if err := unix.Fsync(n.file); err != nil {
		_ = n.lose(err) // the same
	}
	n.written = false
}

// unwatch closes the descriptor of a file that nobody has open, where its draft is over, or it has lost its name.
func (v *Volume) unwatch(n *node) {
	n.use.Lock()
	defer n.use.Unlock()
	if n.waits {
		n.waits = false
		v.room.waiting.Book(n.opener, -1)
		v.room.files.Book(n.opener, 1) // which idle gives back
		v.idle(n)
	}
}

// unwatchAll closes the descriptors of all files of a draft that is over.
func (v *Volume) unwatchAll(d *mountedDraft) {
	var all []*node
	v.mu.Lock()
	for _, n := range v.nodes {
		if n.draft == d && n.file >= 0 {
			all = append(all, n)
		}
	}
	v.mu.Unlock()
	for _, n := range all {
		v.unwatch(n)
	}
}

// watchAgain opens a file that the daemon before has left, and that may have bytes that are not on the disk.
func (n *node) watchAgain(dir int, uid uint32) {
	n.written = true
	if !n.draft.v.room.waiting.Reserve(uid, 1) {
		return
	}
	fd, err := beneath(dir, n.name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		n.draft.v.room.waiting.Book(uid, -1)
		return
	}
	n.file, n.opener, n.waits = fd, uid, true
	n.draft.v.pin(n)
}
