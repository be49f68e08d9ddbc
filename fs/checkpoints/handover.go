package checkpoints

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/sys/container"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// Names of descriptors that a holder keeps.
const (
	keptSource = "source"
	keptDrafts = "drafts"
	keptPins   = "pins"
)

// State is the volume's state for the next daemon: a [handover.State].
func (v *Volume) State() handover.State { return &volumeState{path: v.home.Path()} }

// volumeState is the path of the directory. Its drafts change, so they are kept apart.
type volumeState struct{ path string }

// Section implements [handover.State].
func (*volumeState) Section() (string, uint32) { return "checkpoints", 1 }

// Save implements [handover.State].
func (s *volumeState) Save() ([]byte, error) { return []byte(s.path), nil }

// Adopt implements [handover.State].
func (s *volumeState) Adopt(section []byte) error {
	s.path = string(section)
	return nil
}

// keptDraft is a draft as the holder has it.
type keptDraft struct {
	Name, Was, Shown string // Was: while it is renamed
	UID, GID         uint32
	Mode             uint32
	Since            time.Time
	Lock             string          // name of its lock among the files that are kept
	Home             container.ID    `json:",omitempty"`
	Lost             map[uint64]loss `json:",omitempty"`
	Word             word
	Writers          []writer `json:",omitempty"`
}

// keep gives the holder the drafts. The caller may have mu.
func (v *Volume) keep() {
	if v.opt.Life == nil {
		return
	}
	all := []keptDraft{}
	for _, d := range v.drafts {
		all = append(all, d.kept())
	}
	text, err := json.Marshal(all)
	var f *os.File
	if err == nil {
		f, err = handover.NewMemory(keptDrafts)
	}
	if err == nil {
		_, err = f.Write(text)
		if err == nil {
			err = v.opt.Life.Keep(keptDrafts, f)
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		v.unkept(err)
	}
}

// reopen takes the volume over from an earlier daemon.
func (v *Volume) reopen() (err error) {
	life, s := v.opt.Life, &volumeState{}
	if err := life.Load(s); err != nil {
		return err
	}
	source := life.Took(keptSource)
	if source == nil || !life.Has(keptDrafts) {
		return fmt.Errorf("%w: the holder has not its directory", handover.ErrRefused)
	}
	v.self, v.pins = source, life.Took(keptPins)
	if v.home, err = checkpoint.OpenHomeAt(source, s.path); err != nil {
		return err
	}
	if v.origin, err = cache.OpenDirAt(source, s.path, v.opt.MaxOpen); err != nil {
		return err
	}
	if err = v.look(); err != nil {
		return err
	}
	if err = v.serveFast(); err != nil {
		return err
	}
	return nil
}

// adoptDrafts takes the drafts of the daemon before, once that is gone: it may have begun and ended some while this one started.
func (v *Volume) adoptDrafts() error {
	kept := v.opt.Life.Took(keptDrafts)
	if kept == nil {
		return fmt.Errorf("%w: the holder has not its drafts", handover.ErrRefused)
	}
	defer func() { _ = kept.Close() }() // opened for reading
	if _, err := kept.Seek(0, 0); err != nil {
		return err
	}
	var all []keptDraft
	if err := json.NewDecoder(kept).Decode(&all); err != nil {
		return fmt.Errorf("%w: the drafts: %w", handover.ErrRefused, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.adoptSide()
	v.unlock(all)
	for _, k := range all {
		v.adopt(k)
	}
	return nil
}

// unlock lets go of locks that the daemon before had kept, and whose drafts it had not told of yet: it was killed between.
func (v *Volume) unlock(told []keptDraft) {
	for _, name := range v.opt.Life.Names() {
		if !isLock(name) || slices.ContainsFunc(told, func(k keptDraft) bool { return k.Lock == name }) {
			continue
		}
		if f := v.opt.Life.Took(name); f != nil {
			_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // the holder's descriptor is the same
			_ = f.Close()                             // nothing was written
		}
		v.opt.Life.Drop(name)
	}
}

// Begin takes the drafts and the open files of the daemon before. It is called before anybody serves the mount.
func (v *Volume) Begin() error {
	if !v.inner.Inherited() {
		return nil
	}
	if err := v.adoptDrafts(); err != nil {
		return err
	}
	v.fast.Adopt()
	v.adoptOpens()
	v.mu.Lock()
	v.keep()
	v.mu.Unlock()
	v.tidying.Go(v.tidy)
	return nil
}

// adoptOpens takes the open files of the daemon before.
func (v *Volume) adoptOpens() {
	removed := map[uint64]*node{} // whose readers and writers go on
	v.inner.EachBooked(func(handle uint64, o fs.Opened) {
		n := v.adoptFile(o.Inode)
		if n == nil && removed[o.Inode] == nil {
			removed[o.Inode] = &node{ino: o.Inode, file: -1, gone: true}
		}
		if n == nil {
			n = removed[o.Inode]
		}
		if o.Writes && o.Backing == 0 && !n.gone {
			_, _ = v.plainFile(handle, n, unix.O_RDWR) // its next write tries again
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.has(handle, n, o.Writes)
		n.backing = o.Backing
	})
}

// adoptFile opens a file again that the daemon before had open, nil where it has no name any more.
func (v *Volume) adoptFile(ino uint64) *node {
	v.mu.Lock()
	n := v.nodes[ino]
	v.mu.Unlock()
	if n == nil || n.isDir {
		return nil
	}
	if n.file >= 0 {
		if n.waits { // for the programs that have it open
			n.waits = false
			v.room.waiting.Book(n.opener, -1)
			v.room.files.Book(n.opener, 1)
		}
		return n
	}
	at, err := n.at()
	if err != nil {
		return n
	}
	defer at.end()
	if fd, err := readOnly(at.fd); err == nil {
		v.mu.Lock()
		n.file, n.opener, n.written = fd, n.draft.owner.UID, true
		v.mu.Unlock()
		v.pin(n)
		v.room.files.Book(n.opener, 1)
	}
	return n
}

// tidy finishes removals that the daemon before had begun.
func (v *Volume) tidy() {
	removed, err := v.home.Clean(context.Background())
	for _, path := range removed {
		v.opt.Log.Info("removed what the daemon before left", "path", path)
	}
	if err != nil {
		v.opt.Log.Error("leftovers stay until the next mount", "error", err)
	}
}

// lockPrefix begins the names of locks among the kept files.
const lockPrefix = "lock-of-draft-"

// isLock tells a lock's name.
func isLock(name string) bool { return strings.HasPrefix(name, lockPrefix) }

// keepLock has the holder keep a draft's lock.
func (v *Volume) keepLock(d *mountedDraft) {
	if v.opt.Life == nil {
		return
	}
	f, err := d.book.Lock()
	if err != nil {
		v.unkept(err)
		return
	}
	defer func() { _ = f.Close() }() // the life has its own
	if d.lock != "" {
		v.opt.Life.Drop(d.lock)
	}
	v.lastKept++
	d.lock = fmt.Sprintf("%s%d-%d", lockPrefix, os.Getpid(), v.lastKept)
	if err := v.opt.Life.Keep(d.lock, f); err != nil {
		v.unkept(err)
	}
}

// unkept says that the holder has not heard of a change. Where it is gone, the next one is given all there is.
func (v *Volume) unkept(err error) {
	v.opt.Log.Warn("the holder of the mount does not keep the drafts as they are now", "error", err)
}

func (d *mountedDraft) kept() keptDraft {
	return keptDraft{
		Name: d.name, Was: d.was, Shown: d.shown, UID: d.owner.UID, GID: d.owner.GID, Mode: uint32(d.owner.Mode), Since: d.since, Lock: d.lock, Home: d.home,
		Lost: d.lost, Word: d.word, Writers: slices.Collect(maps.Keys(d.writers)),
	}
}

// adopt takes a draft of an earlier daemon. One that is not there any more was published or dropped just before that ended.
func (v *Volume) adopt(k keptDraft) {
	owner := checkpoint.Owner{UID: k.UID, GID: k.GID, Mode: iofs.FileMode(k.Mode)}
	for _, name := range []string{k.Name, k.Was} {
		if name == "" {
			continue
		}
		book, err := v.home.Adopt(name, checkpoint.Part{Of: 1}, owner, v.opt.Life.Took(k.Lock))
		if err != nil {
			v.opt.Log.Info("a draft is over", "name", name, "reason", err)
			continue
		}
		d := &mountedDraft{v: v, name: name, shown: k.Shown, owner: owner, home: k.Home, watch: container.NewWatch(k.Home), since: k.Since, book: book, lock: k.Lock, lost: k.Lost, word: k.Word}
		d.changed.Store(time.Now().UnixNano())
		d.told.Store(time.Now().UnixNano()) // perhaps, by the daemon before
		if err = d.attach(); err == nil {
			v.drafts[name] = d
			v.room.drafts.Book(owner.UID, 1)
			v.put(d.root)
			err = d.find(d.root, d.dir.fd, "")
		}
		if err != nil {
			v.opt.Log.Error("a draft is not wholly found again", "draft", d.shown, "error", err)
		}
		d.await()
		d.writers = map[writer]bool{}
		for _, w := range k.Writers {
			d.writers[w] = true
		}
		for _, w := range k.Writers {
			d.follow(w)
		}
		return
	}
	v.opt.Life.Drop(k.Lock)
}

// known is the count of lookups of a node that an earlier daemon may have told the kernel of. It is kept as long as its draft.
const known = 1 << 40

// find makes nodes of all that is in a draft.
func (d *mountedDraft) find(in *node, dir int, at string) error {
	in.lookups = known
	fd, err := beneath(dir, path.Join(".", at), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), at)
	names, err := f.Readdirnames(-1)
	defer func() { _ = f.Close() }() // opened for reading
	for _, name := range names {
		st, err := statx(fd, name)
		if err != nil || !ordinary(st) {
			continue
		}
		n := &node{ino: st.Ino, draft: d, parent: in, name: name, isDir: st.Mode&unix.S_IFMT == unix.S_IFDIR, file: -1, generation: generation(st), lookups: known, mapped: true}
		d.v.put(n)
		if !n.isDir {
			n.watchAgain(fd, d.owner.UID)
		} else if err := d.find(n, dir, path.Join(at, name)); err != nil {
			return err
		}
	}
	return err
}
