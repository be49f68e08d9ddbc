package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// volume is a store, with its mover.
type volume struct {
	*Store
	t    testing.TB
	stop func()
}

func me() asuser.User {
	return asuser.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Capable: true}
}

func open(t testing.TB, dir string, size, memory int64) *volume {
	t.Helper()
	s, err := New(Options{Directory: dir, Size: size, Memory: memory, Log: slog.New(slog.DiscardHandler), LeaseTime: 200 * time.Millisecond})
	if err == nil {
		err = s.Load()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { s.Run(ctx); close(over) }()
	v := &volume{s, t, nil}
	v.stop = func() {
		cancel()
		<-over
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		v.stop = func() {}
	}
	t.Cleanup(func() { v.stop() })
	return v
}

// crash ends a store as a kill would: nothing is synced, or said to be over.
func (v *volume) crash() {
	for _, sp := range v.all() {
		sp.meta.Ended = false
	}
	boot := v.all()
	v.stop()
	for _, sp := range boot {
		f, err := os.OpenFile(filepath.Join(v.opt.Directory, sp.name, metaName), os.O_RDWR, 0)
		if err != nil {
			v.t.Fatal(err)
		}
		sp.meta.Ended = false
		b := sp.meta.encode()
		_, err = f.WriteAt(b, 0)
		if err = errors.Join(err, f.Truncate(int64(len(b))), f.Close()); err != nil {
			v.t.Fatal(err)
		}
	}
}

// client is a connection of this process, or of another one.
type client struct {
	*Session
	t     testing.TB
	space *Space
	files []*os.File
}

func selfPidfd(t testing.TB) *os.File {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "self")
}

func (v *volume) connect(name string, block int64) *client {
	v.t.Helper()
	c := &client{Session: v.Session(me(), selfPidfd(v.t)), t: v.t}
	c.must(c.openSpace(control.KVOpen{Name: name, BlockBytes: block, Mode: 0o640, Flags: control.KVCreate | control.KVWrite}))
	return c
}

func (c *client) openSpace(m control.KVOpen) error {
	a, err := c.open(&m)
	if err != nil {
		return err
	}
	got, err := control.ParseKVSpace(a.Payload(nil))
	c.must(err)
	c.space, c.files = c.store.space(got.Space), a.Files
	return nil
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) close() {
	for _, f := range c.files {
		_ = f.Close()
	}
	c.End()
}

func blockOf(key string, length int) []byte {
	b := make([]byte, length)
	copy(b, bytes.Repeat([]byte(key+"|"), length/(len(key)+1)+1))
	return b
}

func sumOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli()) }

// put stores blocks, and tells the errno of each.
func (c *client) put(length int, keys ...string) []unix.Errno {
	c.t.Helper()
	var blocks []control.KVBlock
	for _, k := range keys {
		blocks = append(blocks, control.KVBlock{Key: []byte(k), Length: uint32(length)})
	}
	errnos := make([]unix.Errno, len(keys))
	var stored []control.KVStored
	for i, s := range c.reserve(c.space, blocks) {
		if errnos[i] = s.Errno; s.Errno != 0 {
			continue
		}
		b := blockOf(keys[i], length)
		_, err := c.files[s.Tier].WriteAt(b, int64(s.Slot)*c.space.meta.Slot)
		c.must(err)
		stored = append(stored, control.KVStored{Token: s.Token, CRC: sumOf(b), Flags: control.KVHasCRC})
	}
	for _, d := range c.commit(c.space, stored) {
		if d.Errno != 0 {
			c.t.Fatalf("commit: %v", d.Errno)
		}
	}
	return errnos
}

// get reads a block: nil where there is none.
func (c *client) get(key string) []byte {
	c.t.Helper()
	s := c.lookup(c.space, [][]byte{[]byte(key)}, true)[0]
	if s.Errno != 0 {
		return nil
	}
	b := make([]byte, s.Length)
	_, err := c.files[s.Tier].ReadAt(b, int64(s.Slot)*c.space.meta.Slot)
	c.must(err)
	if d := c.drop(c.space, []uint64{s.Token}, false); d[0].Errno != 0 {
		c.t.Fatalf("release: %v", d[0].Errno)
	}
	if s.Flags != control.KVHasCRC || sumOf(b) != s.CRC || !bytes.Equal(b, blockOf(key, len(b))) {
		c.t.Fatalf("block %q is wrong", key)
	}
	return b
}

func keysOf(first, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("key-%08d", first+i))
	}
	return keys
}

func TestBlocksComeBack(t *testing.T) {
	for _, memory := range []int64{0, 8 << 20} {
		v := open(t, t.TempDir(), 32<<20, memory)
		c := v.connect("model", 5000)
		if e := c.put(5000, keysOf(0, 100)...); e[0] != 0 || e[99] != 0 {
			t.Fatal(e)
		}
		if e := c.put(5000, "key-00000007", "new"); e[0] != unix.EEXIST || e[1] != 0 {
			t.Error(e)
		}
		for _, k := range keysOf(0, 100) {
			if c.get(k) == nil {
				t.Errorf("%s is gone", k)
			}
		}
		if c.get("nobody") != nil {
			t.Error("there is a block that nobody stored")
		}
		if d := c.remove(c.space, [][]byte{[]byte("new"), []byte("nobody")}); d[0].Errno != 0 || d[1].Errno != unix.ENOENT || c.get("new") != nil {
			t.Error(d)
		}
		c.close()
	}
}

func TestCommittedBlocksSurviveACrash(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir, 32<<20, 0)
	c := v.connect("model", 4096)
	c.put(4096, keysOf(0, 500)...)
	c.remove(c.space, [][]byte{[]byte("key-00000003")})
	half := c.reserve(c.space, []control.KVBlock{{Key: []byte("half"), Length: 10}})[0]
	c.close()
	v.crash()
	v = open(t, dir, 32<<20, 0)
	c = v.connect("model", 4096)
	defer c.close()
	for i, k := range keysOf(0, 500) {
		if (c.get(k) == nil) != (i == 3) {
			t.Errorf("%s: %v", k, i == 3)
		}
	}
	if c.get("half") != nil {
		t.Error("a block is found that was not committed")
	}
	if d := c.commit(c.space, []control.KVStored{{Token: half.Token}}); d[0].Errno != unix.ENOENT {
		t.Error(d)
	}
	if n := v.Notes(); len(n) > 0 {
		t.Error(n)
	}
}

func TestAFullTierEvictsWhatNobodyHolds(t *testing.T) {
	v := open(t, t.TempDir(), 4<<20, 0)
	c := v.connect("model", 4096)
	defer c.close()
	var pins []uint64
	c.put(4096, keysOf(0, 10)...)
	for _, s := range c.lookup(c.space, [][]byte{[]byte("key-00000001"), []byte("key-00000002")}, true) {
		pins = append(pins, s.Token)
	}
	for i := range 40 {
		for j, e := range c.put(4096, keysOf(1000+i*100, 100)...) {
			if e != 0 {
				t.Fatalf("%d, %d: %v", i, j, e)
			}
		}
	}
	if c.get("key-00000001") == nil || c.get("key-00000002") == nil || c.get("key-00000005") != nil {
		t.Error("what is pinned is gone, or what is not is there")
	}
	c.drop(c.space, pins, false)
	var st unix.Stat_t
	sum := int64(0)
	_ = filepath.Walk(v.opt.Directory, func(path string, _ os.FileInfo, _ error) error {
		c.must(unix.Lstat(path, &st))
		sum += st.Blocks * 512
		return nil
	})
	if sum > 4<<20 {
		t.Errorf("%d bytes are on the disk, the limit is %d", sum, 4<<20)
	}
}

func TestHoldsEndWithTheirConnectionsProcess(t *testing.T) {
	v := open(t, t.TempDir(), 4<<20, 0)
	c := v.connect("model", 4096)
	c.put(4096, "a")
	c.lookup(c.space, [][]byte{[]byte("a")}, true)
	r := c.reserve(c.space, []control.KVBlock{{Key: []byte("b"), Length: 1}})[0]
	id := c.owner.id
	c.close() // its process lives
	d := &client{Session: v.Session(me(), selfPidfd(t)), t: t}
	if _, err := d.attach(&control.KVAttach{Client: id, Seen: r.Token}); err != nil {
		t.Fatal(err)
	}
	d.must(d.openSpace(control.KVOpen{Name: "model", Flags: control.KVWrite}))
	if again := d.reserve(d.space, []control.KVBlock{{Key: []byte("b"), Length: 1}})[0]; again.Errno != unix.EBUSY || again.Token != 0 {
		t.Errorf("a slot that may be written still is given again: %+v", again)
	}
	if done := d.commit(d.space, []control.KVStored{{Token: r.Token, Flags: control.KVHasCRC}}); done[0].Errno != 0 || done[0].Survives != control.KVOnDisk {
		t.Error(done)
	}
	d.end(d.owner) // as if the process had ended
	if i := v.Namespaces()[0]; i.Counts.Pins != 0 || i.Counts.Reservations != 0 || v.held.Booked() != 0 || v.count.Booked() != 0 {
		t.Errorf("%+v", i)
	}
	d.close()
}

func (c *client) end(o *owner) { c.store.end(o) }

func TestASlabThatIsCutIsFoundAndSaid(t *testing.T) {
	v := open(t, t.TempDir(), 8<<20, 0)
	c := v.connect("model", 4096)
	defer c.close()
	c.put(4096, keysOf(0, 900)...)
	slab := filepath.Join(v.opt.Directory, "model", slabName)
	info, err := os.Stat(slab)
	c.must(err)
	c.must(os.Truncate(slab, info.Size()/2))
	found := 0
	for _, k := range keysOf(0, 900) {
		if c.get(k) != nil {
			found++
		}
	}
	i := v.Namespaces()[0]
	if found == 900 || found == 0 || i.Counts.Dropped != uint64(900-found) || i.Broken != 1 || len(v.Notes()) != 1 {
		t.Errorf("%d found, %+v, %v", found, i, v.Notes())
	}
	if now, err := os.Stat(slab); err != nil || now.Size() != info.Size() {
		t.Errorf("the slab has %d bytes, want %d", now.Size(), info.Size())
	}
}

func TestDamagedBlocksAreFoundByTheirChecksums(t *testing.T) {
	v := open(t, t.TempDir(), 8<<20, 4<<20)
	c := v.connect("model", 4096)
	defer c.close()
	c.put(4096, keysOf(0, 50)...)
	damage := func(key string) uint64 {
		s := c.lookup(c.space, [][]byte{[]byte(key)}, true)[0]
		_, err := c.files[s.Tier].WriteAt([]byte("x"), int64(s.Slot)*c.space.meta.Slot+17)
		c.must(err)
		return s.Token
	}
	c.drop(c.space, []uint64{damage("key-00000004")}, true)
	if c.get("key-00000004") != nil {
		t.Error("a damaged block that its reader suspects is there still")
	}
	c.drop(c.space, []uint64{damage("key-00000005")}, false)
	if r := c.space.verify(context.Background(), 0); r.Cursor != 0 || r.Damaged != 1 || r.Blocks < 49 || c.get("key-00000005") != nil {
		t.Errorf("%+v", r)
	}
}

func TestMemoryIsWrittenBackAndPromoted(t *testing.T) {
	v := open(t, t.TempDir(), 64<<20, 4<<20)
	c := v.connect("model", 4096)
	defer c.close()
	keys := keysOf(0, 2000)
	for at := 0; at < len(keys); at += 100 {
		for _, e := range c.put(4096, keys[at:at+100]...) {
			if e != 0 {
				t.Fatal(e)
			}
		}
	}
	for _, k := range keys {
		if c.get(k) == nil {
			t.Fatalf("%s is gone, with room for it on the disk", k)
		}
	}
	until(t, "nothing is promoted", func() bool {
		c.get(keys[1])
		return v.Namespaces()[0].Counts.Memory.Copied > 0
	})
	if i := v.Namespaces()[0]; i.Counts.Disk.Copied == 0 {
		t.Errorf("%+v", i)
	}
}

func TestOtherMountsAndBlockSizesAreRefused(t *testing.T) {
	v := open(t, t.TempDir(), 8<<20, 0)
	c := v.connect("model", 4096)
	defer c.close()
	other, err := New(Options{Directory: v.opt.Directory, Size: 8 << 20, Log: v.opt.Log, LeaseTime: time.Millisecond})
	c.must(err)
	if err := other.Load(); !errors.Is(err, ErrUsed) {
		t.Errorf("a second mount: %v", err)
	}
	_ = other.Close()
	for _, m := range []control.KVOpen{
		{Name: "model", BlockBytes: 8192}, {Name: "../x", BlockBytes: 1, Flags: control.KVCreate}, {Name: "", BlockBytes: 1, Flags: control.KVCreate},
		{Name: "none", BlockBytes: 1}, {Name: "huge", BlockBytes: 1 << 30, Flags: control.KVCreate},
	} {
		if err := c.openSpace(m); err == nil {
			t.Errorf("%+v is opened", m)
		}
	}
	if e := c.put(4097, "long"); e[0] != unix.EINVAL {
		t.Error(e)
	}
}

func TestANamespaceHasTheGroupThatItsDirectoryHandsOn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to other groups")
	}
	for mode, want := range map[os.FileMode]uint32{0o770: uint32(os.Getegid()), 0o770 | os.ModeSetgid: 4321} {
		dir := t.TempDir()
		if err := errors.Join(os.Chown(dir, -1, 4321), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
		v := open(t, dir, 1<<20, 0)
		v.connect("ns", 4096).close()
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, "ns", metaName), &st); err != nil || st.Gid != want {
			t.Errorf("in a directory with mode %v: group %d, want %d (%v)", mode, st.Gid, want, err)
		}
	}
}

func TestASlabThatIsStillWrittenIsNotUsedAgain(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir, 8<<20, 0)
	c := v.connect("model", 4096)
	c.put(4096, "a")
	c.End() // and keeps its files
	v.crash()
	v = open(t, dir, 8<<20, 0)
	d := v.connect("model", 4096)
	defer d.close()
	if d.get("a") != nil || len(v.Notes()) != 1 {
		t.Errorf("%v", v.Notes())
	}
	for _, f := range c.files {
		_ = f.Close()
	}
}

func TestASmallerLimitCutsTheLargest(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir, 16<<20, 0)
	c := v.connect("model", 4096)
	for i := range 36 {
		c.put(4096, keysOf(i*100, 100)...)
	}
	c.close()
	v.stop()
	v = open(t, dir, 8<<20, 0)
	c = v.connect("model", 4096)
	defer c.close()
	i := v.Namespaces()[0]
	if i.Counts.Disk.Allocated > 8<<20 || i.Counts.Disk.Blocks == 0 || len(v.Notes()) == 0 {
		t.Errorf("%+v, %v", i.Counts.Disk, v.Notes())
	}
	found := 0
	for _, k := range keysOf(0, 3600) {
		if c.get(k) != nil {
			found++
		}
	}
	if found != int(i.Counts.Disk.Blocks) {
		t.Errorf("%d blocks are found, of %d", found, i.Counts.Disk.Blocks)
	}
}

func TestAnotherNamespaceGetsRoom(t *testing.T) {
	v := open(t, t.TempDir(), 8<<20, 4<<20)
	c := v.connect("old", 4096)
	for i := range 30 {
		c.put(4096, keysOf(i*100, 100)...)
	}
	d := v.connect("new", 8192)
	defer d.close()
	allocated := func() (old, fresh uint64) {
		all := v.Namespaces()
		return all[1].Counts.Disk.Allocated, all[0].Counts.Disk.Allocated
	}
	until(t, "the namespace that was first keeps the disk", func() bool {
		for i := range 5 {
			d.put(8192, keysOf(i*100, 50)...)
		}
		old, fresh := allocated()
		return fresh*3 > old
	})
	if c.put(4096, "one more")[0] != 0 || c.get("one more") == nil {
		t.Error("the namespace that was first has no room any more")
	}
	c.close()
}
