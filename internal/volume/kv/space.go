package kv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/sys/uncached"
)

// Space is a namespace.
type Space struct {
	store  *Store
	name   string
	number uint32
	meta   meta
	dir    *os.File // nil: it is in memory alone
	rights *os.File // the file whose owner and mode say who may use the namespace, and which has its meta
	has    int64    // regions of the disk tier, when it was opened

	// settling is held while the mover says in which tiers a block is, and while blocks are removed. Otherwise a kill could leave a record of
	// one that was removed. Before mu.
	settling sync.Mutex

	// evicting is held (shared) from the time when a block is hidden, until its record is zeroed. A removal of keys waits for that before it answers. Otherwise a
	// kill could bring back a key that was evicted just before, and was not found. Before mu.
	evicting sync.RWMutex

	mu                                    sync.Mutex // guards the fields below
	tiers                                 []*tier    // memory first, where there is some; the slice never changes
	opened                                int        // by sessions
	waits                                 int        // reservations of others that want the memory of this namespace, which nobody uses
	used                                  time.Time
	hits, misses, stored, exists, refused uint64
	pins, reservations                    int64
	broken                                uint64 // slabs that were found cut or grown
}

// meta is the description in a namespace's file.
type meta struct {
	Version int    `json:"version"`
	Name    string `json:"name,omitempty"` // of a namespace that is in memory alone
	ID      uint64 `json:"id"`             // records of another namespace of the name have another
	Block   int64  `json:"block_bytes"`
	Slot    int64  `json:"slot_bytes"`
	Disk    int64  `json:"disk_region"`   // slots
	Memory  int64  `json:"memory_region"` // slots
	Boot    string `json:"boot"`          // of the machine, when it was mounted last
	Ended   bool   `json:"ended"`         // and it was unmounted in order
	Lost    bool   `json:"lost"`          // and the disk could not write all of it
	Slab    fileID `json:"slab"`          // which file that is, so that a copy is known as one
	Index   fileID `json:"index"`
}

const metaVersion = 1

// Files of a namespace's directory.
const (
	slabName  = "slab"
	indexName = "index"
	metaName  = "space"
)

// encode writes a meta with its checksum.
func (m *meta) encode() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic("kv: internal error: " + err.Error())
	}
	return fmt.Appendf(b, "\n%08x\n", crc32.Checksum(b, castagnoli()))
}

// parseMeta reads a meta.
func parseMeta(b []byte) (m meta, ok bool) {
	text, sum, found := bytes.Cut(b, []byte("\n"))
	if !found || strings.TrimSuffix(string(sum), "\n") != fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli())) || json.Unmarshal(text, &m) != nil {
		return m, false
	}
	good := m.Version == metaVersion && m.Block > 0 && m.Block <= control.MaxKVBlock && m.Slot >= m.Block && m.Slot%4096 == 0 && m.Slot <= control.MaxKVBlock+4096
	return m, good && m.Disk > 0 && m.Disk < 1<<32 && m.Memory >= 0 && m.Memory < 1<<32 && m.ID != 0
}

// bootID names this boot of the machine.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // it is always there
	return strings.TrimSpace(string(b))
}

// begin says in the meta that the namespace is mounted.
func (sp *Space) begin() (err error) {
	sp.meta.Boot, sp.meta.Ended, sp.meta.Lost = bootID(), false, false
	if sp.meta.Slab, err = identify(sp.disk().slab); err != nil {
		return err
	}
	if sp.meta.Index, err = identify(sp.disk().index); err != nil {
		return err
	}
	return sp.save()
}

// save writes the meta, for the next mount.
func (sp *Space) save() error {
	b := sp.meta.encode()
	_, err := sp.rights.WriteAt(b, 0)
	if err == nil {
		err = sp.rights.Truncate(int64(len(b)))
	}
	if err == nil {
		err = sp.rights.Sync()
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", sp.rights.Name(), err)
	}
	return nil
}

// open describes the tiers. fresh: for a connection that has not opened the namespace before. From now on its memory stays where it is.
func (sp *Space) open(fresh bool) (tiers []control.KVTier) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if fresh {
		sp.opened++
		sp.used = time.Now()
	}
	for i, t := range sp.tiers {
		given := control.KVTier{Kind: t.kind, FD: int32(i), Bytes: t.budget.limit / t.cost() * t.regionBytes(), Region: t.regionBytes()}
		if t.cuts != nil {
			given.Cuts = *t.cuts
		}
		if t.io != nil && sp.store.opt.Buffered == "" {
			given.Flags = control.KVDirect
		}
		tiers = append(tiers, given)
	}
	return tiers
}

// left says that a connection has ended which had the namespace open. Without another one its memory is others'.
func (sp *Space) left() {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.opened--
	if m := sp.memory(); m != nil && len(m.shelves) > 0 && sp.opened == 0 {
		m.budget.idle.Store(true)
		m.spared()
	}
}

// disk is the disk tier.
func (sp *Space) disk() *tier { return sp.tiers[len(sp.tiers)-1] }

// memory is the memory tier, nil where there is none.
func (sp *Space) memory() *tier {
	if len(sp.tiers) < 2 {
		return nil
	}
	return sp.tiers[0]
}

// regionOf gives how many slots a region of a tier has: a 64th of the tier's limit, and at least one.
func regionOf(limit, slot int64) int64 { return min(max(limit/64/slot, 1), max(512<<20/slot, 1)) }

// memoryRegionOf is regionOf for memory: of whole huge pages, where a region is that large.
func memoryRegionOf(limit, slot int64) int64 {
	n := regionOf(limit, slot)
	whole := int64(1) // slots that are whole huge pages
	for ; whole*slot%hugePage != 0; whole *= 2 {
	}
	if n >= whole {
		n -= n % whole
	}
	return n
}

// newSpace makes the namespace of a name, where the disk fails in memory alone.
func (s *Store) newSpace(m *control.KVOpen, user asuser.User) (sp *Space, err error) {
	slot := (m.BlockBytes + 4095) &^ 4095
	space := func() *Space {
		return &Space{store: s, name: m.Name, used: time.Now(), meta: meta{
			Version: metaVersion, ID: newID(), Block: m.BlockBytes, Slot: slot, Disk: regionOf(s.opt.Size, slot), Memory: memoryRegionOf(s.opt.Memory, slot),
		}}
	}
	sp = space()
	if cost := (&tier{slotBytes: slot, perRegion: sp.meta.Disk}).cost(); cost > s.opt.Size-ownRoom {
		return nil, refuse(unix.EINVAL, "a block of %d bytes has no room in a volume of %d bytes", m.BlockBytes, s.opt.Size)
	}
	if s.frozen != "" {
		return s.newAlone(sp, m, user, errFrozen)
	}
	ok, err := s.disk.take(ownRoom)
	if err == nil && !ok {
		return nil, refuse(unix.ENOSPC, "the disk tier has no room for another namespace: remove blocks of others")
	}
	if err == nil {
		if err = sp.makeOnDisk(m, user); err != nil {
			s.disk.give(ownRoom)
		}
	}
	if err != nil && s.memory != nil && (noDisk(err) || s.readOnly(err)) {
		return s.newAlone(space(), m, user, err)
	}
	return sp, err
}

// makeOnDisk makes the files of a new namespace.
func (sp *Space) makeOnDisk(m *control.KVOpen, user asuser.User) (err error) {
	s := sp.store
	err = unix.Mkdirat(int(s.dir.Fd()), m.Name, 0o700)
	if errors.Is(err, unix.EEXIST) { // it was left out, or has come since
		if err = s.setAside(m.Name); err == nil {
			err = unix.Mkdirat(int(s.dir.Fd()), m.Name, 0o700)
		}
	}
	if err != nil {
		return fmt.Errorf("make namespace %q: %w", m.Name, err)
	}
	if sp.dir, err = openAt(s.dir, m.Name, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			sp.discard()
		}
	}()
	if sp.rights, err = openAt(sp.dir, metaName, unix.O_RDWR|unix.O_CREAT); err != nil {
		return err
	}
	if err = sp.belongs(m, user); err != nil {
		return err
	}
	if err = sp.openTiers(); err != nil {
		return err
	}
	if err = errors.Join(sp.disk().slab.Truncate(0), sp.disk().index.Truncate(0)); err != nil {
		return err
	}
	return sp.begin()
}

// belongs gives a new namespace to its user.
func (sp *Space) belongs(m *control.KVOpen, user asuser.User) error {
	gid, err := sp.store.groupOf(user)
	if err != nil {
		return err
	}
	if err := sp.rights.Chown(int(user.UID), int(gid)); err != nil && os.Geteuid() == 0 {
		return err
	}
	return sp.rights.Chmod(os.FileMode(m.Mode))
}

// groupOf gives the group of a namespace that a user makes: the volume's own where its directory hands that on (S_ISGID), as with a pod's
// fsGroup.
func (s *Store) groupOf(user asuser.User) (uint32, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.dir.Fd()), &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_ISGID != 0 {
		return st.Gid, nil
	}
	return user.GID, nil
}

// ours tells whether a directory has files of a namespace alone.
func (sp *Space) ours() bool {
	entries, err := os.ReadDir(sp.path())
	for _, e := range entries {
		if name := e.Name(); name != metaName && name != indexName && name != slabName {
			return false
		}
	}
	return err == nil
}

// path is the namespace's directory.
func (sp *Space) path() string { return filepath.Join(sp.store.opt.Directory, sp.name) }

// discard removes a namespace that nobody uses, with its files.
func (sp *Space) discard() {
	for _, name := range []string{metaName, indexName, slabName} {
		_ = unix.Unlinkat(int(sp.dir.Fd()), name, 0) // leftovers are found at the next mount
	}
	_ = unix.Unlinkat(int(sp.store.dir.Fd()), sp.name, unix.AT_REMOVEDIR)
	sp.release()
}

// openTiers opens the files of a namespace, or makes them.
func (sp *Space) openTiers() (err error) {
	s := sp.store
	if s.memory != nil {
		t := &tier{kind: control.KVMemory, space: sp, budget: s.memory, slotBytes: sp.meta.Slot, perRegion: sp.meta.Memory, seed: maphash.MakeSeed(), charged: map[charge]uint32{}, cuts: s.table.cuts(sp.meta.ID)}
		sp.tiers = append(sp.tiers, t)
		if err := t.openMemory(); err != nil {
			return err
		}
	}
	t := &tier{kind: control.KVDisk, space: sp, budget: s.disk, slotBytes: sp.meta.Slot, perRegion: sp.meta.Disk, seed: maphash.MakeSeed(), charged: map[charge]uint32{}}
	sp.tiers = append(sp.tiers, t)
	if sp.alone() {
		t.shut(errAlone)
		err = sp.emptyTier(t)
	} else if t.slab, err = s.openOurs(sp.dir, slabName, unix.O_RDWR|unix.O_CREAT); err == nil {
		t.index, err = s.openOurs(sp.dir, indexName, unix.O_RDWR|unix.O_CREAT)
	}
	if err != nil {
		return err
	}
	if s.frozen != "" && !sp.alone() {
		t.shut(errFrozen)
	}
	slots, err := t.giveSlab()
	if err != nil {
		return err
	}
	if s.opt.Buffered != "" {
		t.io = uncached.Through(slots, s.opt.Buffered)
	} else {
		t.io = uncached.Open(slots)
	}
	return nil
}

// openSpace opens a namespace that the directory has. nil: it could not be used, and is gone. With an error it is as it was.
func (s *Store) openSpace(name string) (_ *Space, err error) {
	if len(s.spaces) == mostSpaces {
		return nil, fmt.Errorf("a volume has at most %d", mostSpaces)
	}
	sp := &Space{store: s, name: name, used: time.Now()}
	defer func() {
		if err != nil {
			sp.release()
		}
	}()
	if sp.dir, err = openAt(s.dir, name, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return nil, err
	}
	if sp.rights, err = s.openOurs(sp.dir, metaName, unix.O_RDWR); err != nil {
		if errors.Is(err, unix.ENOENT) && unix.Unlinkat(int(s.dir.Fd()), name, unix.AT_REMOVEDIR) == nil { // a kill leaves an empty one
			sp.release()
			return nil, nil //nolint:nilnil // there is none, which is no error
		}
		return nil, fmt.Errorf("it is no namespace: %w", err)
	}
	text := make([]byte, 4096)
	n, _ := sp.rights.ReadAt(text, 0) // a short record has no checksum
	var ok bool
	if sp.meta, ok = parseMeta(text[:n]); !ok {
		if !sp.ours() {
			return nil, fmt.Errorf("it is no namespace, and has a file %q", metaName)
		}
		s.note("namespace %q begins anew: %s is damaged, or of a newer hbmfs", name, sp.rights.Name())
		sp.discard()
		return nil, nil //nolint:nilnil // likewise
	}
	if err := sp.trust(); err != nil {
		return nil, err
	}
	if s.memory != nil && !s.opt.Life.Adopts() {
		sp.meta.Memory = memoryRegionOf(s.opt.Memory, sp.meta.Slot)
	}
	if err := sp.openTiers(); err != nil {
		return nil, err
	}
	if err := sp.measure(); err != nil && !s.readOnly(err) {
		return nil, err
	}
	if s.frozen != "" {
		return sp, nil
	}
	if err := sp.begin(); err != nil && !s.readOnly(err) {
		return nil, err
	}
	return sp, nil
}

// release closes the descriptors of a namespace.
func (sp *Space) release() {
	for _, t := range sp.tiers {
		t.close()
	}
	for _, f := range []*os.File{sp.rights, sp.dir} {
		if f != nil {
			_ = f.Close() // its data was synced before
		}
	}
}

// measure finds how many regions the files of the disk tier have, and makes them as long.
func (sp *Space) measure() error {
	t := sp.disk()
	slab, err := t.slab.Stat()
	if err != nil {
		return err
	}
	index, err := t.index.Stat()
	if err != nil {
		return err
	}
	sp.has = min(slab.Size()/t.regionBytes(), index.Size()/t.indexBytes())
	if slab.Size() != sp.has*t.regionBytes() || index.Size() != sp.has*t.indexBytes() {
		if slab.Size() > t.regionBytes()*(sp.has+1) || slab.Size() < (index.Size()/t.indexBytes()-1)*t.regionBytes() { // a kill leaves a region more in either
			sp.broken++
			sp.store.note("the slab of namespace %q was cut or grown behind the volume: %d bytes, and %d in its index; blocks beyond are dropped", sp.name, slab.Size(), index.Size()/t.indexBytes()*t.regionBytes())
		}
		return errors.Join(t.index.Truncate(sp.has*t.indexBytes()), t.slab.Truncate(sp.has*t.regionBytes()))
	}
	return nil
}

// close syncs the namespace, for the next mount.
func (sp *Space) close() error {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	t := sp.disk()
	if t.closed { // nothing was written
		sp.release()
		return nil
	}
	err := errors.Join(t.slab.Sync(), t.index.Sync())
	sp.meta.Ended, sp.meta.Lost = err == nil, err != nil
	err = errors.Join(err, sp.save())
	sp.release()
	return err
}

// may asks the kernel whether a user may read the namespace, or write it too.
func (sp *Space) may(user asuser.User, write bool) error {
	mode, verb := uint32(unix.R_OK), "read"
	if write {
		mode, verb = unix.R_OK|unix.W_OK, "write"
	}
	if mayUse(sp.rights, user, mode) != nil {
		return refuse(unix.EACCES, "user %d may not %s namespace %q: its mode says who may", user.UID, verb, sp.name)
	}
	return nil
}

// mode gives the permission bits of the namespace.
func (sp *Space) mode() uint32 {
	mode, _, _ := sp.attributes()
	return mode
}

// attributes give the permission bits of the namespace, and whose it is.
func (sp *Space) attributes() (mode, uid, gid uint32) {
	var st unix.Stat_t
	if unix.Fstat(int(sp.rights.Fd()), &st) != nil {
		return 0, 0, 0
	}
	return st.Mode & 0o777, st.Uid, st.Gid
}
