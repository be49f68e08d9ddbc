package checkpoints

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/internal/volume/drafts"
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
	pins       *os.File // an inotify instance; nil for none
	device     uint64
	umask      uint32 // of this process
	room       room
	origin     *cache.Dir
	inner      *fs.Mount
	side       *mountedDraft  // has the side files
	fast       *drafts.Server // has the drafts of writers that go past the kernel
	removed    []string       // leftovers, at the start
	foreign    []string
	tidying    sync.WaitGroup
	containers containers

	mu       sync.Mutex // guards the fields below
	drafts   map[string]*mountedDraft
	nodes    map[uint64]*node
	placed   []*node                    // directories that stay open, the oldest first
	listings map[uint64][]fuse.DirEntry // of open directories
	entries  int                        // in all of them
	lastList uint64
	handles  map[uint64]*node // of open files
	pens     map[uint64]*node // of these, files that are open for writing
	plain    map[uint64]int   // descriptors of files that are open without passthrough
	refused  []string
	minute   int64 // of the refusals that were logged last, and how many
	logged   int
	lastKept int
	infos    map[string]info // of published checkpoints
}

var _ fs.Top = (*Volume)(nil)

// Open opens a directory of checkpoints, or goes on with an earlier daemon's drafts. Otherwise drafts that nobody works on are removed: their
// writers are gone with the mount that they wrote through.
func Open(ctx context.Context, dir string, opt Options) (v *Volume, err error) {
	v = &Volume{
		opt: opt, drafts: map[string]*mountedDraft{}, nodes: map[uint64]*node{}, listings: map[uint64][]fuse.DirEntry{}, handles: map[uint64]*node{}, pens: map[uint64]*node{}, plain: map[uint64]int{}, infos: map[string]info{},
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
			v.openPins()
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

// look finds entries of the directory that are no checkpoints.
func (v *Volume) look() (err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(v.self.Fd()), &st); err != nil {
		return err
	}
	v.device, v.umask = st.Dev, umask()
	_, v.foreign, err = v.home.Names()
	v.foreign = slices.DeleteFunc(v.foreign, func(name string) bool { return v.sideFile(name) != nil })
	slices.Sort(v.foreign)
	return errors.Join(err, v.openSide())
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
	for _, f := range []*os.File{v.self, v.pins} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// End removes the drafts, when the mount is over. The next mount removes the rest.
func (v *Volume) End() {
	v.containers.end()
	v.mu.Lock()
	all := make([]*mountedDraft, 0, len(v.drafts))
	for _, d := range v.drafts {
		all = append(all, d)
	}
	v.mu.Unlock()
	if err := v.fast.Close(); err != nil {
		v.opt.Log.Error("a draft stays until the next mount", "error", err)
	}
	for _, d := range all {
		if d.publishSaid(context.Background(), d.publishAlone); d.isPublished() { // nobody writes to it any more
			continue
		}
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

// Drains marks that a checkpoint is being drained: see [fs.Mount.Task].
func (v *Volume) Drains(name string) (end func(), err error) {
	return v.inner.Task(0, "drain", []byte(name))
}

// Around implements [fs.Top].
func (v *Volume) Around(inner *fs.Mount) fuse.RawFileSystem {
	v.inner = inner
	return &router{Mount: inner, v: v}
}

// draftShown finds a draft by its name in the root.
func (v *Volume) draftShown(name string) *mountedDraft {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d := v.drafts[strings.TrimSuffix(name, Suffix)]; d != nil && d.shown == name {
		return d
	}
	return nil
}

// Remove removes a published checkpoint of any owner: one that is somewhere else by now.
func (v *Volume) Remove(ctx context.Context, c *checkpoint.Checkpoint) error {
	name := filepath.Base(c.Path)
	return v.home.Remove(ctx, name, c, func() {
		if v.inner != nil {
			v.inner.DropBranch(name)
		}
	})
}
