package checkpoints

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/checkpoint"
	"github.com/hbmfs/hbmfs/internal/container"
	"github.com/hbmfs/hbmfs/internal/drafts"
	"github.com/hbmfs/hbmfs/internal/handover"
	"github.com/hbmfs/hbmfs/internal/shares"
	"github.com/hbmfs/hbmfs/internal/status"
)

// Suffix ends the name of a draft that is published by a rename to the name without it.
const Suffix = ".tmp"

// Metadata is the file that torch's DCP renames last.
const Metadata = ".metadata"

// Options are the options of a volume.
type Options struct {
	MaxOpen   int // files that reads of checkpoints keep open
	Log       *slog.Logger
	Life      *handover.Life
	Published func(name string) // called after each publishing; nil for nobody
	// State tells how a published checkpoint stands, in a word, and why; nil: each is "local".
	State      func(name string) (state, why string)
	Drain      func() *status.Drain // how far checkpoints are on their way to S3; nil: none are
	Containers bool                 // a draft ends with the container in which it was begun, and not with the mount alone
}

// Volume is the root of a mount of checkpoints, with its drafts. It is safe for concurrent use.
type Volume struct {
	opt        Options
	home       *checkpoint.Home
	self       *os.File // the directory
	device     uint64
	umask      uint32 // of this process
	room       room
	origin     *cache.Dir
	inner      *fs.Mount
	fast       *drafts.Server // has the drafts of writers that go past the kernel
	removed    []string       // leftovers, at the start
	foreign    []string
	tidying    sync.WaitGroup
	containers containers

	mu       sync.Mutex // guards the fields below
	drafts   map[string]*draft
	nodes    map[uint64]*node
	listings map[uint64][]fuse.DirEntry // of open directories
	entries  int                        // in all of them
	lastList uint64
	handles  map[uint64]*node // of open files
	plain    map[uint64]int   // descriptors of files that are open without passthrough
	refused  []string
	minute   int64 // of the refusals that were logged last, and how many
	logged   int
	lastKept int
	infos    map[string]info // of published checkpoints
}

type info struct {
	id uint64
	is status.Published
}

var _ fs.Top = (*Volume)(nil)

// room is what the drafts of all users may take. A user gets half of each, and less where others have some.
type room struct {
	drafts *shares.Shares
	files  *shares.Shares // that are open: the daemon has a descriptor of each
}

// Limits of what a volume keeps.
const (
	mostDrafts  = 512
	perDraft    = 8       // descriptors
	mostEntries = 1 << 20 // of listings: beyond that a directory is listed again for each part that is read
)

func newRoom() room {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024 // the default of Linux
	}
	files := int64(min(limit.Cur/2, 1<<20))
	drafts := min(mostDrafts, files/4/perDraft)
	return room{shares.New(drafts, drafts/2, 1), shares.New(files/2, files/4, 16)}
}

// Names of what a holder keeps.
const (
	keptSource = "source"
	keptDrafts = "drafts"
)

// Open opens a directory of checkpoints, or goes on with what an earlier daemon has left of its drafts. Otherwise drafts that nobody works on are
// removed: their writers are gone with the mount that they wrote through.
func Open(ctx context.Context, dir string, opt Options) (v *Volume, err error) {
	v = &Volume{
		opt: opt, drafts: map[string]*draft{}, nodes: map[uint64]*node{}, listings: map[uint64][]fuse.DirEntry{}, handles: map[uint64]*node{}, plain: map[uint64]int{}, infos: map[string]info{},
		lastList: uint64(time.Now().UnixNano()), room: newRoom(),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.Close())
		}
	}()
	if err = v.openContainers(); err != nil {
		return v, err
	}
	if opt.Life.Adopts() {
		return v, v.reopen()
	}
	if v.home, err = checkpoint.OpenHome(dir); err != nil {
		return v, err
	}
	if v.origin, err = cache.OpenDir(v.home.Path(), opt.MaxOpen); err != nil {
		return v, err
	}
	if v.self, err = v.origin.File(); err != nil {
		return v, err
	}
	if err = v.serveFast(); err != nil {
		return v, err
	}
	if v.removed, err = v.home.Clean(ctx); err != nil {
		return v, fmt.Errorf("remove what dead writers left in %s: %w", dir, err)
	}
	for _, path := range v.removed {
		opt.Log.Warn("removed what a dead writer left", "path", path)
	}
	if opt.Life != nil {
		if err = opt.Life.Keep(keptSource, v.self); err == nil {
			v.keep()
		}
	}
	if err == nil {
		err = v.look()
	}
	return v, err
}

// serveFast makes the server of drafts that are written past the kernel.
func (v *Volume) serveFast() (err error) {
	v.fast, err = drafts.New(drafts.Options{Home: v.home, Log: v.opt.Log, Life: v.opt.Life, Published: v.tell, MayWrite: v.mayWrite})
	return err
}

// Fast is the server of drafts that are written past the kernel, for the control channel.
func (v *Volume) Fast() *drafts.Server { return v.fast }

// tell says that a checkpoint is there.
func (v *Volume) tell(name string) {
	v.opt.Log.Info("published", "checkpoint", name)
	if v.opt.Published != nil {
		v.opt.Published(name)
	}
}

// look finds what is in the directory and no checkpoint.
func (v *Volume) look() (err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(v.self.Fd()), &st); err != nil {
		return err
	}
	v.device, v.umask = st.Dev, umask()
	_, v.foreign, err = v.home.Names()
	slices.Sort(v.foreign)
	return err
}

// umask reads the umask of this process, which no system call does without setting it.
func umask() uint32 {
	text, _ := os.ReadFile("/proc/self/status") // it is always there
	_, after, _ := strings.Cut(string(text), "\nUmask:")
	line, _, _ := strings.Cut(after, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 8, 32)
	if err != nil {
		return 0o777 // every mode is then set
	}
	return uint32(mask)
}

// Listing is the mount's root alone.
func (v *Volume) Listing() *cache.Listing {
	st, err := v.statRoot()
	if err != nil {
		st = &unix.Statx_t{Mode: 0o755}
	}
	return &cache.Listing{Dirs: []cache.DirEntry{{ModTime: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)), Perm: st.Mode & 0o777, UID: st.Uid, GID: st.Gid}}}
}

// Notes are surprises for the user, one line each.
func (v *Volume) Notes() (notes []string) {
	if n := len(v.removed); n > 0 {
		notes = append(notes, fmt.Sprintf("%d drafts and other leftovers of writers that are gone were removed, %s for one", n, v.removed[0]))
	}
	if n := len(v.foreign); n > 0 {
		notes = append(notes, fmt.Sprintf("%d names in %s are no checkpoints of hbmfs's, and are not shown: %s", n, v.home.Path(), strings.Join(v.foreign[:min(n, 5)], ", ")))
	}
	if v.inner != nil && v.inner.Passthrough() != "" {
		notes = append(notes, "drafts are written through the daemon, slower than the disk: "+v.inner.Passthrough())
	}
	return notes
}

// Path is the directory's path.
func (v *Volume) Path() string { return v.home.Path() }

// Home is the directory.
func (v *Volume) Home() *checkpoint.Home { return v.home }

// Close closes the volume, once nobody serves it any more.
func (v *Volume) Close() error {
	v.containers.end()
	v.tidying.Wait()
	var errs []error
	if v.origin != nil {
		errs = append(errs, v.origin.Close())
	}
	if v.home != nil {
		errs = append(errs, v.home.Close())
	}
	if v.self != nil {
		errs = append(errs, v.self.Close())
	}
	return errors.Join(errs...)
}

// End removes the drafts, when the mount is over. What cannot be removed goes at the next mount.
func (v *Volume) End() {
	v.containers.end()
	v.mu.Lock()
	all := make([]*draft, 0, len(v.drafts))
	for _, d := range v.drafts {
		all = append(all, d)
	}
	v.mu.Unlock()
	if err := v.fast.Close(); err != nil {
		v.opt.Log.Error("a draft stays until the next mount", "error", err)
	}
	for _, d := range all {
		v.opt.Log.Warn("a draft ends with the mount, unpublished", "draft", d.shown)
		if err := d.book.Drop(); err != nil {
			v.opt.Log.Error("a draft stays until the next mount", "draft", d.shown, "error", err)
		}
	}
}

// Origin implements [fs.Top].
func (v *Volume) Origin() *cache.Dir { return v.origin }

// Published implements [fs.Top].
func (v *Volume) Published(name string) (id uint64, err error) {
	f, err := v.home.Find(name)
	if errors.Is(err, iofs.ErrNotExist) || errors.Is(err, checkpoint.ErrNone) {
		return 0, nil
	}
	return f.ID, err
}

// Around implements [fs.Top].
func (v *Volume) Around(inner *fs.Mount) fuse.RawFileSystem {
	v.inner = inner
	return &router{Mount: inner, v: v}
}

// draftShown finds a draft by its name in the root.
func (v *Volume) draftShown(name string) *draft {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d := v.drafts[strings.TrimSuffix(name, Suffix)]; d != nil && d.shown == name {
		return d
	}
	return nil
}

// refusedMax is how many refusals the status tells.
const refusedMax = 10

// loggedMax is how many refusals of a minute are logged: users choose the names in them.
const loggedMax = 60

// refuse notes why something was refused, for the status and the log.
func (v *Volume) refuse(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := slices.Index(v.refused, text); i >= 0 {
		v.refused = slices.Delete(v.refused, i, i+1)
	} else if now := time.Now().Unix() / 60; v.minute != now || v.logged < loggedMax {
		if v.minute != now {
			v.minute, v.logged = now, 0
		}
		v.logged++
		v.opt.Log.Warn("refused", "reason", text)
	}
	v.refused = append(v.refused, text)
	if len(v.refused) > refusedMax {
		v.refused = v.refused[1:]
	}
}

// Status implements [fs.Top].
func (v *Volume) Status() *status.Checkpoints {
	s := &status.Checkpoints{Directory: v.home.Path(), Drafts: []status.Draft{}, Published: v.published(), Refused: []string{}}
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(v.self.Fd()), &disk); err == nil {
		s.Free = int64(disk.Bavail) * disk.Frsize
	}
	if v.opt.Drain != nil {
		s.Drain = v.opt.Drain()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	s.Refused = append(s.Refused, v.refused...)
	for _, d := range v.drafts {
		s.Drafts = append(s.Drafts, d.status())
	}
	for _, d := range v.fast.Drafts() {
		s.Drafts = append(s.Drafts, status.Draft{Name: d.Name, UID: d.UID, PID: d.PID, Since: d.Began, Open: d.Files - d.Sealed, Total: d.Bytes, Past: true})
	}
	slices.SortFunc(s.Drafts, func(a, b status.Draft) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// published tells of all checkpoints. A manifest is read once.
func (v *Volume) published() []status.Published {
	names, _, err := v.home.Names()
	all := make([]status.Published, 0, len(names))
	if err != nil {
		return all
	}
	slices.SortFunc(names, checkpoint.Natural)
	is := make(map[string]info, len(names))
	for _, name := range names {
		id, err := v.Published(name)
		if err != nil || id == 0 {
			continue
		}
		v.mu.Lock()
		p, known := v.infos[name]
		v.mu.Unlock()
		if !known || p.id != id {
			p = info{id, status.Published{Name: name, State: "damaged"}}
			if c, err := v.home.Open(name); err != nil {
				p.is.Why = err.Error()
			} else {
				p.is = status.Published{Name: name, State: "local", Files: len(c.Manifest.Files), Size: c.Manifest.Size(), Created: c.Manifest.Created}
				_ = c.Close() // opened for reading
			}
		}
		is[name] = p
		if v.opt.State != nil && p.is.State == "local" {
			p.is.State, p.is.Why = v.opt.State(name)
		}
		all = append(all, p.is)
	}
	v.mu.Lock()
	v.infos = is
	v.mu.Unlock()
	return all
}

// State is what the next daemon takes of the volume: a [handover.State].
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
	Lock             string       // name of its lock among the files that are kept
	Home             container.ID `json:",omitempty"`
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
	v.self = source
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
	removed := map[uint64]*node{} // whose readers and writers go on
	v.inner.EachBooked(func(handle uint64, o fs.Opened) {
		n := v.adoptFile(o.Inode)
		if n == nil && removed[o.Inode] == nil {
			removed[o.Inode] = &node{ino: o.Inode, file: -1, gone: true}
		}
		if n == nil {
			n = removed[o.Inode]
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.handles[handle] = n
		n.opens++
		n.backing = o.Backing
	})
	v.mu.Lock()
	v.keep()
	v.mu.Unlock()
	v.tidying.Go(v.tidy)
	return nil
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
		return n
	}
	at, err := n.at()
	if err != nil {
		return n
	}
	defer func() { _ = unix.Close(at) }() // opened to name it
	if fd, err := readOnly(at); err == nil {
		v.mu.Lock()
		n.file, n.opener = fd, n.draft.owner.UID
		v.mu.Unlock()
		v.room.files.Book(n.opener, 1)
	}
	return n
}

// tidy removes what the daemon before was about to remove.
func (v *Volume) tidy() {
	removed, err := v.home.Clean(context.Background())
	for _, path := range removed {
		v.opt.Log.Info("removed what the daemon before left", "path", path)
	}
	if err != nil {
		v.opt.Log.Error("leftovers stay until the next mount", "error", err)
	}
}
