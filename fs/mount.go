package fs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/fs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/observe/trace"
	"github.com/hbmfs/hbmfs/internal/volume/drafts"
	"github.com/hbmfs/hbmfs/internal/volume/kv"
	"github.com/hbmfs/hbmfs/layout"
)

// Options are the options of a mount.
type Options struct {
	Source     string         // the source, as the status names it
	Name       string         // in /proc/mounts and df; "" for the source
	Layout     layout.Options // how the format is recognized
	ShowViews  bool           // list .hbmfs in the root
	AllowOther bool           // let users other than the mounter in, under the files' permissions
	UID, GID   *uint32        // owner of all files; nil: as at the origin
	Umask      uint16         // permission bits to take away
	ReadAhead  int            // bytes that the kernel may read ahead on files without passthrough; 0: the kernel's default
	Frozen     bool           // files stay as they are: the kernel opens them itself, and keeps their bytes
	Extra      []string       // further mount options for the kernel or fusermount3
	Helper     []string       // a command that calls Bind with the argument added to it
	Remote     Remote         // of a remote source
	Version    string         // of the program, for status
	Notes      []string       // findings of the program, one line each, for status
	Log        *slog.Logger
	LogFile    string         // where Log goes, for status; "" in the foreground
	Trace      *trace.Tracer  // has spans of recognition and of readers' requests; nil for none
	Life       *handover.Life // of the daemon, which may go on with a mount; nil where nobody holds the mount
	Top        Top            // of a mount whose root changes; nil for a dataset
	Drafts     *drafts.Server // of a checkpoint volume; nil for a dataset
	KV         *kv.Store      // of a KV volume; nil for a dataset

	// MayWrite refuses a process that may not change a KV volume, even if the modes of namespaces allow it. If it is nil, the modes
	// alone decide.
	MayWrite func(pid int) error

	// Around makes the filesystem that the kernel talks to, around the mount's, where Top is nil; nil: the mount's itself.
	Around func(inner *Mount) fuse.RawFileSystem
}

// Remote is the origin and the cache of a source that does not lie in local files. Either may be nil.
type Remote struct {
	Origin func() status.OriginTotals
	Cache  Cache
}

// Cache keeps the segments of one origin or of several, such as the source and its decoder.
type Cache interface {
	control.Cache
	Stats() status.Cache
}

// Mount is a mounted dataset.
type Mount struct {
	readOnly // answers the requests that Mount has no method for

	opt     Options
	point   string
	log     *slog.Logger
	started time.Time
	listing *cache.Listing
	access  *access
	around  fuse.RawFileSystem // the kernel's peer: this mount, or Top's filesystem around it
	root    node
	tree    *tree
	server  *fuse.Server

	found    recognition
	unfrozen atomic.Pointer[string] // why not, where Options.Frozen asks for it; valid once Ready is closed

	backing  backings
	handles  *handles
	journal  *handover.Journal  // nil where nobody holds the mount
	suspects *handover.Suspects // nil where nobody holds the mount
	told     toldViews
	depth    int // see stackDepth
	texts    texts
	pipes    pipes
	failed   failures
	branches branches
	counters counters
	yields   yields
	control  *control.Server
}

// New mounts listing at point. The kernel waits with the first requests until Serve runs. New recognizes a format that
// Options force, or select documents of, before it mounts. Otherwise Serve recognizes formats while the mount is in use.
func New(ctx context.Context, point string, listing *cache.Listing, opt Options) (*Mount, error) {
	m := &Mount{
		readOnly: readOnly{fuse.NewDefaultRawFileSystem()},
		opt:      opt, point: point, log: opt.Log, started: time.Now(), listing: listing, access: newAccess(listing),
	}
	m.found = recognition{opt: &m.opt, listing: listing, looked: make(chan struct{})}
	m.branches = branches{mount: m, byName: map[string]*branch{}}
	m.told = toldViews{listing: listing}
	m.control = control.New(control.Options{
		Mount: served{m}, Point: point, Listing: listing, Cache: opt.Remote.Cache, Drafts: opt.Drafts, KV: opt.KV, MayWrite: opt.MayWrite,
		Helper: opt.Helper, Life: opt.Life, Log: opt.Log, Trace: opt.Trace,
	})
	m.around = m
	if opt.Top != nil {
		m.around = opt.Top.Around(m)
	} else if opt.Around != nil {
		m.around = opt.Around(m)
	}
	top := listing.Dirs[0]
	m.root = node{perm: top.Perm, uid: top.UID, gid: top.GID, modTime: top.ModTime}
	m.opt.adopt(&m.root)
	if opt.Life.Adopts() {
		return m, m.takeOver(ctx)
	}
	m.depth = stackDepth(opt.Source)
	if opt.Layout.Format != "" || len(opt.Layout.Select) > 0 {
		if _, err := m.found.index(ctx); err != nil {
			return nil, err
		}
	}
	m.prepare()
	if err := m.makeBooks(); err != nil {
		return nil, err
	}
	server, err := m.newServer(ctx, point)
	if err != nil {
		return nil, mountError(point, err)
	}
	m.server = server
	m.backing.server = server
	touchBuffers(server)
	m.afterMount()
	return m, nil
}

// prepare makes all that answers need and that no kernel has a part in.
func (m *Mount) prepare() {
	m.tree = newTree(m.root, append(m.controlEntries(), sourceEntries(m.listing, mountpoint.ControlName, m.opt.adopt)...))
	m.backing.init()
	m.texts.init()
}

// timeout is how long the kernel may keep an answer: the dataset does not change while it is mounted.
const timeout = 365 * 24 * time.Hour

func (m *Mount) mountOptions() *fuse.MountOptions {
	o := &fuse.MountOptions{
		Name:                     "hbmfs",
		FsName:                   cmp.Or(m.opt.Name, m.opt.Source),
		AllowOther:               m.opt.AllowOther,
		Options:                  append([]string{"default_permissions"}, m.opt.Extra...),
		MaxBackground:            maxBackground(m.opt.Remote.Origin != nil),
		MaxWrite:                 maxRead,
		ExplicitDataCacheControl: true,
		EnableSymlinkCaching:     true,
		DisableXAttrs:            true,
		ExtraCapabilities:        fuse.CAP_NO_OPENDIR_SUPPORT | fuse.CAP_HAS_RESEND, // opening a directory costs no round trip
		MaxStackDepth:            m.depth,
		Logger:                   slog.NewLogLogger(m.log.Handler(), slog.LevelWarn),
		PanicHandler:             m.panicked,
	}
	return o
}

// maxBackground is how many reads the kernel asks for at once without a reader that waits for just these. For local files that is a queue
// for every CPU of a large machine; the kernel's default is 12. Reads of a remote source may wait for minutes where an object stalls, and
// those of others come after them.
func maxBackground(remote bool) int {
	if remote {
		return 1024
	}
	return 64
}

// stackDepth returns how deep the backing filesystems of passthrough files may be stacked. 1 allows a plain
// filesystem, and something stacked upon this mount; 2 is needed where the source lies on overlayfs.
func stackDepth(source string) int {
	var st unix.Statfs_t
	if err := unix.Statfs(source, &st); err == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return 2
	}
	return 1
}

func mountError(point string, err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, os.ErrNotExist) && !exists("/dev/fuse"):
		return fmt.Errorf("mount %s: this machine has no /dev/fuse: load the module (modprobe fuse), or give the container the device", point)
	case errors.As(err, &errno) && errno == syscall.EPERM, errors.Is(err, os.ErrPermission):
		return fmt.Errorf("mount %s: %w: be root, or install fuse3, which has fusermount3 for ordinary users", point, err)
	case errors.Is(err, exec.ErrNotFound) && os.Geteuid() == 0:
		return fmt.Errorf("mount %s: root may not mount here: a container needs CAP_SYS_ADMIN, or fusermount3 (apt install fuse3)", point)
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("mount %s: fusermount3 is not installed, which ordinary users need: apt install fuse3", point)
	case strings.Contains(err.Error(), "/dev/fuse: Permission denied"): // as fusermount3 says
		return fmt.Errorf("mount %s: %w: have root give users the device, as udev does (chmod 666 /dev/fuse)", point, err)
	}
	return fmt.Errorf("mount %s: %w", point, err)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// afterMount does optional work that needs the mount. None of it waits for the filesystem.
func (m *Mount) afterMount() {
	if m.opt.ReadAhead > 0 {
		if err := setReadAhead(m.point, m.opt.ReadAhead); err != nil {
			m.log.Warn("read-ahead stays at the kernel's default", "error", err)
		}
		if os.Geteuid() != 0 { // an ordinary user has asked for it; root's default may fail where /sys is read-only
			m.opt.Notes = append(m.opt.Notes, "--read-ahead has no effect: only root can set it")
		}
	}
	m.backing.judge(m.server.KernelSettings(), m.log)
	for _, note := range m.opt.Notes {
		m.log.Warn("the mount is not as it might be meant", "note", note)
	}
	if len(m.listing.Objects) == 0 && m.opt.Top == nil && m.opt.KV == nil {
		m.log.Warn("the source has no files", "source", m.opt.Source)
	}
	for _, p := range m.listing.Problems {
		m.log.Warn("problem in the source", "object", p.Object, "problem", p.Detail)
	}
}

// setReadAhead sets how far the kernel reads ahead on the filesystem at point. It needs root.
func setReadAhead(point string, bytes int) error {
	info, err := mountpoint.At(point)
	if err != nil || info == nil {
		return fmt.Errorf("find the mount at %s: %w", point, err)
	}
	name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", info.Major, info.Minor)
	return os.WriteFile(name, []byte(strconv.Itoa(bytes/1024)), 0o644)
}

// Point returns the mount point.
func (m *Mount) Point() string { return m.point }

// Serve answers the kernel until the mount is gone. ctx ends the work beside that, not the mount: see Unmount.
func (m *Mount) Serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	roomy := make(chan struct{})
	go func() { // ends soon, awaited below
		defer close(roomy)
		m.pipes.makeRoom()
	}()
	indexed := make(chan struct{})
	go func() { // ended by cancel, awaited below
		defer close(indexed)
		defer close(m.found.looked)
		if err := m.makeViews(ctx); err != nil && ctx.Err() == nil {
			why := err.Error()
			m.found.failed.Store(&why)
			m.log.Error("the dataset could not be recognized, so it has no views", "error", err)
		}
		m.found.look(ctx)
	}()
	channel := make(chan struct{})
	go func() { // ended by cancel, awaited below
		defer close(channel)
		m.control.Serve(ctx, m.judgeFrozen)
	}()
	m.server.Serve()
	<-roomy
	m.pipes.close()
	cancel()
	<-indexed
	<-channel
}

// makeViews recognizes the dataset and makes the directories of its views, so that the first look into them does not wait
// for that. Views are built when the kernel asks for them.
func (m *Mount) makeViews(ctx context.Context) error {
	top, _ := m.tree.find(m.tree.get(rootNumber).dir, mountpoint.ControlName)
	views, _ := m.tree.find(top.dir, "views")
	defer m.found.made.Store(true)
	if m.opt.Top != nil { // each branch has its own
		return nil
	}
	return m.expand(ctx, views)
}

// controlEntries are the nodes of .hbmfs.
func (m *Mount) controlEntries() []entry {
	dir := node{kind: kindDir, perm: m.root.perm, uid: m.root.uid, gid: m.root.gid, modTime: m.started}
	make1 := func(name string, n node) entry {
		n.ino, n.modTime, n.uid, n.gid = inoOf(name, "control"), m.started, m.root.uid, m.root.gid
		return entry{name, &n}
	}
	views := dir
	dir.hidden = !m.opt.ShowViews
	views.dir = &directory{}
	if m.opt.Top == nil {
		views.dir.expand = func(ctx context.Context) ([]entry, error) {
			v, err := m.found.index(ctx)
			if err != nil {
				return nil, err
			}
			return m.views(m.listing, m.access).entries(v), nil
		}
	}
	top := make1(mountpoint.ControlName, dir)
	if me := os.Geteuid(); me != 0 { // the kernel lets only root make a socket where the permissions do not
		top.node.uid, top.node.perm = uint32(me), dir.perm|0o300
	}
	perm := m.root.perm &^ 0o111
	return []entry{
		top,
		make1(mountpoint.ControlName+"/views", views),
		make1(mountpoint.ControlName+"/status", node{kind: kindText, perm: perm, text: m.statusJSON}),
		make1(mountpoint.ControlName+"/metrics", node{kind: kindText, perm: perm, text: m.metricsText}),
		make1(mountpoint.ControlName+"/"+mountpoint.SocketName, node{kind: kindSocket, perm: 0o666}), // the daemon checks tickets and paths
	}
}

// Unmount takes the mount away; Serve then returns. A mount in use gives an error that wraps [mountpoint.ErrBusy].
func (m *Mount) Unmount() error { return m.takeAway(mountpoint.Unmount) }

// Detach takes the mount out of the tree now; Serve returns when the last open file is closed.
func (m *Mount) Detach() error { return m.takeAway(mountpoint.Detach) }

// takeAway lets by take the mount away. It fails where another filesystem has its place by now.
func (m *Mount) takeAway(by func(point string) error) error {
	if on, err := mountpoint.At(m.point); err == nil && on != nil && !mountpoint.Served(on) {
		return fmt.Errorf("another filesystem is mounted on %s: the mount ends with its last open file", m.point)
	}
	return by(m.point)
}
