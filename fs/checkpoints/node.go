package checkpoints

import (
	"errors"
	"os"
	"path"
	"strconv"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// outer is set in the node ids of drafts. The inner mount numbers its nodes from 1.
const outer = 1 << 62

// node is a file or directory of a draft that the kernel may know.
type node struct {
	ino        uint64
	generation uint64 // tells files apart that have one inode number after the other
	draft      *mountedDraft
	isDir      bool

	// The volume's mu guards the fields below.
	parent  *node // nil for the draft itself
	name    string
	lookups uint64
	counts  bool    // for the share of its draft's user: see room.nodes
	gone    bool    // it has no name any more
	place   *opened // of a directory that was used lately, or has lost its name:
	held    bool    // then it counts for the user opener

	use     sync.Mutex // guards who opens and closes; taken before the volume's mu, which guards the fields below, too
	opens   int
	file    int    // O_RDONLY while it is open, and until its bytes are on the disk: see writeback.go. -1 otherwise
	opener  uint32 // the user whose share that counts for
	waits   bool   // file is open for the second reason alone
	written bool   // it may have bytes that are not on the disk
	mapped  bool   // a program could map it for writing; nobody knows of a file that this daemon did not make
	pinned  bool   // by the watch pinID: see pins.go
	pinID   uint32
	backing int32 // the kernel's number of it for passthrough, 0 for none
}

// node finds a node by its id.
func (v *Volume) node(id uint64) (*node, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := v.nodes[id&^outer]; n != nil {
		return n, nil
	}
	return nil, unix.ESTALE
}

// path is where a node lies in its draft.
func (n *node) path() string {
	n.draft.v.mu.Lock()
	defer n.draft.v.mu.Unlock()
	return n.pathLocked()
}

// pathLocked is path for a caller that has mu.
func (n *node) pathLocked() string {
	at := "."
	for ; n.parent != nil; n = n.parent {
		at = path.Join(n.name, at)
	}
	return at
}

// called is the node's name, which a rename may change.
func (n *node) called() string {
	n.draft.v.mu.Lock()
	defer n.draft.v.mu.Unlock()
	return n.name
}

// beneath opens a path in a directory of a draft. No link is followed, and no other filesystem entered.
func beneath(dir int, name string, flags uint64, mode uint64) (int, error) {
	for tries := 0; ; tries++ { // EAGAIN: something was renamed meanwhile. A file that another process has leased gives this error, too
		const most = 100
		fd, err := unix.Openat2(dir, name, &unix.OpenHow{
			Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Mode: mode,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
		})
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) || tries == most {
			return fd, err
		}
	}
}

// statx looks at a name in a directory, or with no name at a descriptor itself.
func statx(dir int, name string) (*unix.Statx_t, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	return &st, unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
}

// ordinary tells files and directories from links and devices, which somebody may make past the mount.
func ordinary(st *unix.Statx_t) bool {
	kind := st.Mode & unix.S_IFMT
	return (kind == unix.S_IFREG || kind == unix.S_IFDIR) && st.Ino < outer
}

// generation is made of the time of a file's birth, which stays when a daemon is replaced.
func generation(st *unix.Statx_t) uint64 {
	return uint64(st.Btime.Sec)*1e9 + uint64(st.Btime.Nsec) + 1
}

// stat looks at a node.
func (n *node) stat() (*unix.Statx_t, error) {
	at, err := n.at()
	if err != nil {
		return nil, err
	}
	defer at.end()
	return statx(at.fd, "")
}

// seen returns the node of a file that was found at a name, or was made there, and counts it as told.
func (v *Volume) seen(in *node, name string, st *unix.Statx_t, made bool) *node {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.nodes[st.Ino]
	if n == nil || n.draft != in.draft || n.generation != generation(st) || n.gone {
		told := uint64(0)
		if n != nil {
			told = n.lookups // the kernel forgets by number
		}
		n = &node{ino: st.Ino, draft: in.draft, isDir: st.Mode&unix.S_IFMT == unix.S_IFDIR, file: -1, generation: generation(st), lookups: told, mapped: !made}
		v.put(n) // openers of the older file have its node
	}
	n.parent, n.name, n.gone = in, name, false
	n.lookups++
	return n
}

// forget takes back the kernel's references to a node.
func (v *Volume) forget(id, count uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.nodes[id&^outer]
	if n == nil {
		return
	}
	n.lookups -= min(count, n.lookups)
	v.mayGo(n)
}

// mayGo takes a node out of the books that nobody knows. The caller has mu.
func (v *Volume) mayGo(n *node) {
	if n.lookups > 0 || n.opens > 0 || n.file >= 0 || n.draft != nil && n.draft.root == n && v.drafts[n.draft.name] == n.draft {
		return
	}
	if v.nodes[n.ino] == n {
		delete(v.nodes, n.ino)
		v.unplace(n)
		n.uncount()
	}
}

// put books a node, in place of one that had its number. The caller has mu.
func (v *Volume) put(n *node) {
	old := v.nodes[n.ino]
	v.nodes[n.ino] = n
	if n.draft != nil {
		n.draft.nodes++
		n.counts = n.draft != v.side
		v.room.count(n, 1)
	}
	if old != nil {
		v.unplace(old)
		old.uncount()
	}
}

// uncount closes the directory of a draft that is over when nobody knows a file of it any more. The caller has mu.
func (n *node) uncount() {
	d := n.draft
	if d == nil {
		return
	}
	d.v.room.count(n, -1)
	if d.nodes--; d.nodes == 0 {
		d.detach()
	}
}

// unnamed marks a file that lost its name.
func (v *Volume) unnamed(ino uint64, in *node, name string) {
	v.mu.Lock()
	n := v.nodes[ino]
	if n == nil || n.parent != in || n.name != name {
		v.mu.Unlock()
		return
	}
	n.gone = true
	v.mu.Unlock()
	v.unwatch(n)
}

// moved gives a node another name.
func (v *Volume) moved(ino uint64, in *node, name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := v.nodes[ino]; n != nil {
		n.parent, n.name, n.gone = in, name, false
	}
}

// attr fills in attributes as the backing file has them.
func attr(st *unix.Statx_t, out *fuse.Attr) {
	*out = fuse.Attr{
		Ino: st.Ino, Size: st.Size, Blocks: st.Blocks, Mode: uint32(st.Mode), Nlink: st.Nlink, Owner: fuse.Owner{Uid: st.Uid, Gid: st.Gid}, Blksize: st.Blksize,
		Atime: uint64(st.Atime.Sec), Atimensec: st.Atime.Nsec, Mtime: uint64(st.Mtime.Sec), Mtimensec: st.Mtime.Nsec, Ctime: uint64(st.Ctime.Sec), Ctimensec: st.Ctime.Nsec,
	}
}

// procPath leads to the very file of a descriptor.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// readOnly opens the file of a descriptor for reading, as this process.
func readOnly(fd int) (int, error) {
	return unix.Open(procPath(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

// children lists a directory of a draft.
func (n *node) children() ([]fuse.DirEntry, error) {
	at, err := n.at()
	if err != nil {
		return nil, err
	}
	defer at.end()
	fd, err := unix.Open(procPath(at.fd), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "a directory of a draft")
	defer func() { _ = f.Close() }() // opened for reading
	found, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	entries := make([]fuse.DirEntry, 0, len(found))
	for _, e := range found {
		if n.hides(e.Name()) || !e.Type().IsRegular() && !e.IsDir() {
			continue
		}
		mode := uint32(unix.S_IFREG)
		if e.IsDir() {
			mode = unix.S_IFDIR
		}
		entries = append(entries, fuse.DirEntry{Name: e.Name(), Mode: mode})
	}
	return entries, nil
}
