package kv

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A user whose whole share is pinned reads the pinned blocks: LMCache pins, and then loads.
func TestPinnedBlocksAreReadAtTheLimit(t *testing.T) {
	dir := t.TempDir()
	v := open(t, dir, 16<<20, 0)
	c := v.connect("model", 60_000)
	keys := keysOf(0, 200)
	for at := 0; at < len(keys); at += 50 { // a reservation is charged as well
		c.put(60_000, keys[at:at+50]...)
	}
	var pinned []uint64
	var of [][]byte
	refused := false
	for _, key := range keys {
		switch s := c.lookup(c.space, [][]byte{[]byte(key)}, true)[0]; s.Errno {
		case 0:
			pinned, of = append(pinned, s.Token), append(of, []byte(key))
		case unix.EDQUOT:
			refused = true
		}
	}
	if !refused || len(pinned) < 50 {
		t.Fatalf("%d of %d blocks can be pinned, and then a refusal: %v; want the limit to be met", len(pinned), len(keys), refused)
	}
	for _, who := range []*client{c, v.connect("model", 60_000)} { // another process of the user, too
		var again []uint64
		for i, s := range who.lookup(who.space, of, true) {
			if s.Errno != 0 {
				t.Fatalf("the pinned block %q cannot be read: %v", of[i], s.Errno)
			}
			again = append(again, s.Token)
		}
		who.drop(who.space, again[:1], false)
		if who != c {
			who.drop(who.space, again, false)
			who.close()
			continue
		}
		c.drop(c.space, pinned[:1], false) // whichever of the pins ends first
		c.drop(c.space, again, false)
		if s := c.lookup(c.space, of[:1], true)[0]; s.Errno != 0 {
			t.Errorf("room for one block came back, and it cannot be pinned: %v", s.Errno)
		} else {
			pinned[0] = s.Token
		}
	}
	c.drop(c.space, pinned, false)
	c.close()
	if held, count, again := v.held.Booked(), v.count.Booked(), v.again.Booked(); held != 0 || count != 0 || again != 0 {
		t.Errorf("without holds %d bytes, %d slots and %d holds are charged", held, count, again)
	}
}

// Pins of one block are bounded, too: each takes an entry of the table that all users share.
func TestPinsOfOneBlockAreBounded(t *testing.T) {
	v := open(t, t.TempDir(), 16<<20, 0)
	c := v.connect("model", 4096)
	c.put(4096, "key")
	keys := make([][]byte, 1024)
	for i := range keys {
		keys[i] = []byte("key")
	}
	granted := 0
	for range 2 * mostHolds / len(keys) {
		for _, s := range c.lookup(c.space, keys, true) {
			if s.Errno == 0 {
				granted++
			}
		}
	}
	if most := mostHolds/8 + 1; granted != most {
		t.Errorf("%d pins of one block are granted, want %d", granted, most)
	}
	c.close()
}

// The same holds for a block that was pinned on the disk, and copied to memory since.
func TestAPinnedBlockIsReadAtTheLimitThoughMemoryHasItNow(t *testing.T) {
	v := still(t, 32<<20, 4<<20)
	c := v.connect("model", 60_000)
	keys := keysOf(0, 400)
	for at := 0; at < len(keys); at += 50 {
		c.put(60_000, keys[at:at+50]...)
	}
	var pinned, inMemory [][]byte
	full := false
	for _, key := range keys {
		switch s := c.lookup(c.space, [][]byte{[]byte(key)}, false)[0]; {
		case s.Errno != 0:
			t.Fatalf("%q: %v", key, s.Errno)
		case s.Tier == 0:
			inMemory = append(inMemory, []byte(key))
		default:
			if errno := c.lookup(c.space, [][]byte{[]byte(key)}, true)[0].Errno; errno == 0 {
				pinned = append(pinned, []byte(key))
			} else {
				full = true
			}
		}
	}
	if !full || len(pinned) == 0 || len(inMemory) == 0 {
		t.Fatalf("%d blocks of the disk are pinned, %d are in memory, the limit was met: %v", len(pinned), len(inMemory), full)
	}
	c.remove(c.space, inMemory[:1])
	c.space.promote(pinned[0], make([]byte, 1<<20))
	if s := c.lookup(c.space, pinned[:1], false)[0]; s.Errno != 0 || s.Tier != 0 {
		t.Fatalf("the block was not copied to memory: %+v", s)
	}
	if s := c.lookup(c.space, pinned[:1], true)[0]; s.Errno != 0 {
		t.Errorf("the pinned block cannot be read: %v", s.Errno)
	}
	c.close()
}
