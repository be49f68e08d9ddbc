package kv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
)

// A block on the disk needs the checksum of its client. Its reservation stays until that comes.
func TestBlocksOnTheDiskHaveChecksums(t *testing.T) {
	for _, memory := range []int64{0, 4 << 20} {
		v := still(t, 16<<20, memory)
		c := v.connect("model", 4096)
		r := c.reserve(c.space, []control.KVBlock{{Key: []byte("key"), Length: 4}})[0]
		_, err := c.files[r.Tier].WriteAt([]byte("byte"), int64(r.Slot)*c.space.meta.Slot)
		must(t, err)
		var want unix.Errno
		if memory == 0 {
			want = unix.EINVAL
		}
		if done := c.commit(c.space, []control.KVStored{{Token: r.Token}}); done[0].Errno != want {
			t.Errorf("with %d bytes of memory, COMMIT without a checksum: %v, want %v", memory, done[0].Errno, want)
		}
		if memory == 0 {
			if done := c.commit(c.space, []control.KVStored{{Token: r.Token, CRC: sumOf([]byte("byte")), Flags: control.KVHasCRC}}); done[0].Errno != 0 {
				t.Errorf("and then with one: %v", done[0].Errno)
			}
		}
		c.close()
	}
}

// What the daemon copies from memory to the disk has a checksum there, though its client gave none.
func TestWhatIsWrittenBackHasAChecksum(t *testing.T) {
	v := still(t, 16<<20, 4<<20)
	c := v.connect("model", 4096)
	defer c.close()
	for at := 0; at < 950; at += 50 { // memory has room for 992
		var blocks []control.KVBlock
		for _, key := range keysOf(at, 50) {
			blocks = append(blocks, control.KVBlock{Key: []byte(key), Length: 4096})
		}
		var stored []control.KVStored
		for i, s := range c.reserve(c.space, blocks) {
			if s.Errno != 0 || s.Tier != 0 {
				t.Fatalf("%s has no slot in memory: %+v", blocks[i].Key, s)
			}
			_, err := c.files[s.Tier].WriteAt(blockOf(string(blocks[i].Key), 4096), int64(s.Slot)*c.space.meta.Slot)
			must(t, err)
			stored = append(stored, control.KVStored{Token: s.Token})
		}
		c.commit(c.space, stored)
	}
	c.space.writeBack(t.Context(), make([]byte, 1<<20))
	d, onDisk := c.space.disk(), 0
	for n := range d.slots() {
		if s := d.at(uint32(n)); s.state == ready {
			onDisk++
			if s.bits&hasCRC == 0 || s.crc != sumOf(blockOf(string(d.key(uint32(n))), 4096)) {
				t.Fatalf("the block %q has the checksum %08x on the disk", d.key(uint32(n)), s.crc)
			}
		}
	}
	if onDisk == 0 {
		t.Error("nothing was written back")
	}
}

// A mount that did not end in order leaves blocks to the next one where files and device are the same, and a copy has none.
func TestACopyBeginsAnew(t *testing.T) {
	for _, ended := range []bool{false, true} {
		dir, copied := t.TempDir(), t.TempDir()
		v := open(t, dir, 16<<20, 0)
		c := v.connect("model", 4096)
		c.put(4096, "key")
		c.close()
		if ended {
			v.stop()
		} else {
			v.crash()
		}
		must(t, os.CopyFS(copied, os.DirFS(dir)))
		for _, at := range []string{dir, copied} {
			v = open(t, at, 16<<20, 0)
			c = v.connect("model", 4096)
			want := ended || at == dir
			if got := c.get("key"); (got != nil) != want {
				t.Errorf("ended in order: %v, a copy: %v: the block is there: %v, want %v", ended, at == copied, got != nil, want)
			}
			if said := strings.Contains(strings.Join(v.Notes(), "\n"), "copies of its files"); said == want {
				t.Errorf("ended in order: %v, a copy: %v: the notes are %q", ended, at == copied, v.Notes())
			}
			c.close()
			v.stop()
		}
	}
}

// A namespace whose files could not be synced at the end is not used again.
func TestAFailedSyncBeginsAnew(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir, 16<<20, 0)
	c := v.connect("model", 4096)
	c.put(4096, "key")
	c.close()
	disk := c.space.disk()
	slab := disk.slab
	pipe, other, err := os.Pipe()
	must(t, err)
	defer func() { _ = other.Close() }()
	disk.slab = pipe // which cannot be synced
	if err := c.space.close(); err == nil {
		t.Fatal("close did not fail")
	}
	must(t, slab.Close())
	text, err := os.ReadFile(filepath.Join(dir, "model", metaName))
	must(t, err)
	if m, ok := parseMeta(text); !ok || !m.Lost || m.Ended {
		t.Errorf("the meta is %+v", m)
	}
	v.mu.Lock()
	v.number = nil // it is closed
	v.mu.Unlock()
	v.stop()
	v = open(t, dir, 16<<20, 0)
	c = v.connect("model", 4096)
	if c.get("key") != nil {
		t.Error("the block is a hit")
	}
	if notes := strings.Join(v.Notes(), "\n"); !strings.Contains(notes, lostText) {
		t.Errorf("the notes are %q", notes)
	}
	c.close()
}
