// Package namespaces shows a KV volume as files: each namespace is an empty file in the root. Its owner and mode say who may read and write its blocks, and
// its st_blocks are its use of the disk. Blocks themselves never pass the mount: the control channel has them (internal/volume/kv).
//
//	v := namespaces.New(store)
//	m, err := fs.New(ctx, point, v.Listing(), fs.Options{KV: store, Around: v.Around, MayWrite: v.MayWrite, ...})
package namespaces

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/fs"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/internal/sys/container"
	"github.com/hbmfs/hbmfs/internal/volume/kv"
)

// View shows the namespaces of a store.
type View struct {
	store  *kv.Store
	device func() (device, error) // of the mount; nil before Around
}

// device is the number of a filesystem.
type device struct{ major, minor uint32 }

// New makes the view of a store, which need not be loaded yet.
func New(store *kv.Store) *View { return &View{store: store} }

// Listing is the mount's root alone: the directory of the disk tier has its owner and mode.
func (v *View) Listing() *cache.Listing {
	root := cache.DirEntry{Perm: 0o755, ModTime: time.Now()}
	var st unix.Stat_t
	if unix.Stat(v.store.Directory(), &st) == nil {
		root = cache.DirEntry{ModTime: time.Unix(st.Mtim.Unix()), Perm: uint16(st.Mode & 0o777), UID: st.Uid, GID: st.Gid}
	}
	return &cache.Listing{Dirs: []cache.DirEntry{root}}
}

// Around makes the filesystem that the kernel talks to.
func (v *View) Around(inner *fs.Mount) fuse.RawFileSystem {
	v.device = sync.OnceValues(func() (device, error) {
		major, minor, err := container.Device(inner.Point())
		return device{major, minor}, err
	})
	return &router{inner, v.store}
}

// MayWrite refuses a process that has the volume mounted read-only, as a pod has it with readOnly. The kernel lets it reach the control
// socket all the same. Of a process in a PID namespace that cannot be seen from here, 0, nobody can tell.
func (v *View) MayWrite(pid int) error {
	if pid == 0 {
		return nil
	}
	its, err := v.device()
	if err != nil {
		return fmt.Errorf("nobody can tell whether process %d may write here: %w", pid, err)
	}
	switch writes, err := container.Writes(pid, its.major, its.minor); {
	case err != nil:
		return fmt.Errorf("nobody can tell whether process %d may write here: %w", pid, err)
	case !writes:
		return fmt.Errorf("process %d has this volume mounted read-only: namespaces can be read there, and neither written nor made: %w", pid, unix.EROFS)
	}
	return nil
}

// router answers for namespaces, and leaves the rest to the inner mount.
type router struct {
	*fs.Mount
	store *kv.Store
}

// outer is set in the node ids of namespaces. The inner mount numbers its nodes from 1.
const outer = 1 << 62

const rootID = fuse.FUSE_ROOT_ID

func isOuter(id uint64) bool { return id&outer != 0 }

// nodeID is the same in all lives of the mount.
func nodeID(e *kv.Entry) uint64 { return e.ID&(outer-1) | outer }

// attr fills in the attributes of a namespace.
func attr(e *kv.Entry, out *fuse.Attr) {
	*out = fuse.Attr{Ino: nodeID(e), Blocks: uint64(e.Allocated) / 512, Mode: syscall.S_IFREG | e.Mode, Nlink: 1, Owner: fuse.Owner{Uid: e.UID, Gid: e.GID}}
	out.SetTimes(&e.Used, &e.Used, &e.Used)
}

func (r *router) find(id uint64) *kv.Entry {
	for _, e := range r.store.Entries() {
		if nodeID(&e) == id {
			return &e
		}
	}
	return nil
}

// Lookup finds a namespace.
func (r *router) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	switch {
	case isOuter(h.NodeId):
		return fuse.Status(syscall.ENOTDIR)
	case h.NodeId != rootID || name == mountpoint.ControlName:
		return r.Mount.Lookup(cancel, h, name, out)
	}
	for _, e := range r.store.Entries() {
		if e.Name == name {
			attr(&e, &out.Attr)
			out.NodeId, out.Generation = nodeID(&e), 1
			out.SetEntryTimeout(fs.ShortTimeout)
			out.SetAttrTimeout(fs.ShortTimeout)
			return fuse.OK
		}
	}
	return fuse.ENOENT // it may be there the next moment
}

// GetAttr answers stat.
func (r *router) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if !isOuter(in.NodeId) {
		return r.Mount.GetAttr(cancel, in, out)
	}
	e := r.find(in.NodeId)
	if e == nil {
		return fuse.ENOENT
	}
	attr(e, &out.Attr)
	out.SetTimeout(fs.ShortTimeout)
	return fuse.OK
}

// Open lets a namespace be read, which has no bytes here.
func (r *router) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if !isOuter(in.NodeId) {
		return r.Mount.Open(cancel, in, out)
	}
	if in.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		return fuse.EROFS
	}
	return fuse.OK
}

// Read finds the end of a namespace.
func (r *router) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if !isOuter(in.NodeId) {
		return r.Mount.Read(cancel, in, buf)
	}
	return fuse.ReadResultData(nil), fuse.OK
}

// Release closes a file.
func (r *router) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	if !isOuter(in.NodeId) {
		r.Mount.Release(cancel, in)
	}
}

// OpenDir has the kernel keep listings of directories that do not change.
func (r *router) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if in.NodeId != rootID {
		out.OpenFlags = fuse.FOPEN_CACHE_DIR | fuse.FOPEN_KEEP_CACHE
	}
	return fuse.OK
}

// ReadDir lists the namespaces in the root.
func (r *router) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if in.NodeId != rootID {
		return r.Mount.ReadDir(cancel, in, out)
	}
	return r.list(in, func(e fuse.DirEntry, _ *kv.Entry) bool { return out.AddDirEntry(e) })
}

// ReadDirPlus lists them with their attributes.
func (r *router) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if in.NodeId != rootID {
		return r.Mount.ReadDirPlus(cancel, in, out)
	}
	return r.list(in, func(e fuse.DirEntry, of *kv.Entry) bool {
		slot := out.AddDirLookupEntry(e)
		if slot != nil && of != nil {
			attr(of, &slot.Attr)
			slot.NodeId, slot.Generation = nodeID(of), 1
			slot.SetEntryTimeout(fs.ShortTimeout)
			slot.SetAttrTimeout(fs.ShortTimeout)
		}
		return slot != nil
	})
}

// list gives the entries of the root from an offset on. Namespaces only come, at the end.
func (r *router) list(in *fuse.ReadIn, add func(fuse.DirEntry, *kv.Entry) bool) fuse.Status {
	entries := r.store.Entries()
	for i := in.Offset; i < uint64(len(entries))+2; i++ {
		e := fuse.DirEntry{Mode: syscall.S_IFDIR, Ino: rootID, Off: i + 1}
		var of *kv.Entry
		if i < 2 {
			e.Name = "..."[:i+1]
		} else {
			of = &entries[i-2]
			e.Name, e.Mode, e.Ino = of.Name, syscall.S_IFREG, nodeID(of)
		}
		if !add(e, of) {
			break
		}
	}
	return fuse.OK
}

// StatFs gives the size of the disk tier, and the part that no namespace has.
func (r *router) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const block = 4096
	_, limit := r.store.Limits()
	free := uint64(limit)
	for _, e := range r.store.Entries() {
		free -= min(free, uint64(e.Allocated))
	}
	*out = fuse.StatfsOut{Blocks: uint64(limit) / block, Bfree: free / block, Bavail: free / block, Bsize: block, Frsize: block, NameLen: 128}
	return fuse.OK
}
