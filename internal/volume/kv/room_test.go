package kv

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"
)

// still makes a store without its mover, whose work tests do themselves.
func still(t testing.TB, size, memory int64) *volume {
	t.Helper()
	s, err := New(Options{Directory: t.TempDir(), Size: size, Memory: memory, Log: slog.New(slog.DiscardHandler), LeaseTime: 200 * time.Millisecond})
	if err == nil {
		err = s.Load()
	}
	if err != nil {
		t.Fatal(err)
	}
	v := &volume{s, t, func() {}}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

// counts are those of a namespace.
func (v *volume) counts(name string) (i Info) {
	for _, i = range v.Namespaces() {
		if i.Name == name {
			return i
		}
	}
	return Info{}
}

// mustBeInMemory fails where a namespace has lost blocks, or has one elsewhere.
func (v *volume) mustBeInMemory(name string, blocks int) {
	v.t.Helper()
	if c := v.counts(name).Counts; c.Memory.Blocks != uint64(blocks) || c.Memory.Evictions != 0 || c.Disk.Blocks != 0 || c.Disk.Allocated != 0 {
		v.t.Errorf("namespace %q has %d blocks in memory and %d on the disk, and has evicted %d: want %d in memory", name, c.Memory.Blocks, c.Disk.Blocks, c.Memory.Evictions, blocks)
	}
}

// Regions of 16 blocks, of which memory has 62: what tests fill, and all there is.
const (
	testMemory = 4 << 20
	testBlocks = 800
)

// filled is a store whose first namespace has filled the memory.
func filled(t *testing.T) (v *volume, first *client) {
	v = still(t, 16<<20, testMemory)
	first = v.connect("first", 4096)
	v.fill(first)
	return v, first
}

// put800 puts what needs nearly all memory, at once.
func (c *client) put800() {
	c.t.Helper()
	for at := 0; at < testBlocks; at += 200 {
		for _, errno := range c.put(4096, keysOf(at, 200)...) {
			if errno != 0 {
				c.t.Fatal(errno)
			}
		}
	}
}

// TestIdleMemoryGoesBeforeOwnBlocks: who needs memory gets that of a namespace which nobody uses, and loses no block meanwhile.
func TestIdleMemoryGoesBeforeOwnBlocks(t *testing.T) {
	v, first := filled(t)
	first.close()
	second := v.connect("second", 4096)
	defer second.close()
	second.put800()
	v.mustBeInMemory("second", testBlocks)
}

// TestMemoryThatBecomesIdleIsTakenAtOnce: who has asked in vain a moment ago asks again once the other namespace is closed.
func TestMemoryThatBecomesIdleIsTakenAtOnce(t *testing.T) {
	v, first := filled(t)
	second := v.connect("second", 4096)
	defer second.close()
	for range 2 {
		if v.roomFor1(second.space.memory(), 100) {
			t.Fatal("there is room, though another namespace has all memory")
		}
	}
	if second.space.memory().asked.IsZero() {
		t.Fatal("nobody was asked")
	}
	first.close()
	second.put800()
	v.mustBeInMemory("second", testBlocks)
}

// hold has a slot of the last region held as the mover does, and gives what lets it go.
func (c *client) hold() (letGo func()) {
	sp := c.space
	m := sp.memory()
	n := uint32(m.slots() - 1)
	sp.mu.Lock()
	m.at(n).holds++
	sp.mu.Unlock()
	return func() {
		sp.mu.Lock()
		defer sp.mu.Unlock()
		m.letGo(n)
	}
}

// waiting tells whether somebody waits for the memory of a namespace.
func (c *client) waiting() bool {
	c.space.mu.Lock()
	defer c.space.mu.Unlock()
	return c.space.waits > 0
}

// TestWhoWaitsForTheMoverHearsOfIt: a reservation waits for a copy of a block that is in the way, and no longer.
func TestWhoWaitsForTheMoverHearsOfIt(t *testing.T) {
	v, first := filled(t)
	first.close()
	second := v.connect("second", 4096)
	defer second.close()
	for tries := 0; ; tries++ {
		if tries == 20 {
			t.Fatal("who waits hears nothing")
		}
		letGo := first.hold()
		got := make(chan bool, 1)
		go func() { got <- v.takeFrom(second.space.memory(), 1) }()
		until(t, "nobody waits", func() bool { return first.waiting() || len(got) > 0 })
		letGo()
		if <-got { // or else this machine took longer than a reservation waits
			break
		}
	}
	if first.waiting() {
		t.Error("somebody waits still")
	}
	second.put800()
	v.mustBeInMemory("second", testBlocks)
}

// TestTheMoverYields: it gives up what it was about to copy while others wait for the memory, and copies nothing more of it.
func TestTheMoverYields(t *testing.T) {
	v, first := filled(t)
	sp := first.space
	first.close()
	v.roomFor1(sp.disk(), atOnce)
	batch := sp.dirty()
	if len(batch) == 0 || !sp.held() {
		t.Fatal("nothing is to be copied")
	}
	if !sp.memory().await(1) {
		t.Fatal("a process holds something")
	}
	for i := range batch {
		if !sp.yields() {
			t.Fatal("it goes on")
		}
		sp.giveUp(&batch[i])
	}
	sp.writeBack(t.Context(), make([]byte, 1<<20))
	if c := v.counts("first").Counts; c.Disk.Copied != 0 || sp.held() {
		t.Errorf("%d bytes were copied, and slots are held still: %v", c.Disk.Copied, sp.held())
	}
	sp.memory().await(-1)
	sp.writeBack(t.Context(), make([]byte, 1<<20))
	if c := v.counts("first").Counts; c.Disk.Copied == 0 || sp.held() {
		t.Errorf("%d bytes were copied afterwards, and slots are held: %v", c.Disk.Copied, sp.held())
	}
}

// held tells whether a slot is held, or reserved.
func (sp *Space) held() bool {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return slices.ContainsFunc(sp.tiers, func(t *tier) bool {
		return slices.ContainsFunc(t.shelves, func(s *shelf) bool {
			return slices.ContainsFunc(s.slots, func(s slot) bool { return s.holds > 0 || s.state == reserved })
		})
	})
}

// TestNobodyWaitsForAProcess: nobody knows for how long it holds a block.
func TestNobodyWaitsForAProcess(t *testing.T) {
	v, first := filled(t)
	key := first.space.memory().key(uint32(first.space.memory().slots() - 1))
	if s := first.lookup(first.space, [][]byte{slices.Clone(key)}, true); s[0].Errno != 0 {
		t.Fatal(s[0].Errno)
	}
	first.close() // the process lives, and so does what it holds
	second := v.connect("second", 4096)
	defer second.close()
	v.memory.idle.Store(true)
	if v.takeFrom(second.space.memory(), 1) || first.waiting() {
		t.Error("memory was taken in which a process holds a block")
	}
	if v.memory.idle.Load() {
		t.Error("that memory is said to be idle")
	}
}

// TestTheEndOfTheStoreEndsWaiting: Close does not wait for those who wait for memory.
func TestTheEndOfTheStoreEndsWaiting(t *testing.T) {
	v, first := filled(t)
	first.close()
	second := v.connect("second", 4096)
	defer second.close()
	defer first.hold()()
	ctx, cancel := context.WithCancel(t.Context())
	v.Store.stop = ctx
	cancel()
	quickest := time.Hour
	for range 100 {
		began := time.Now()
		if v.takeFrom(second.space.memory(), 1) || first.waiting() {
			t.Fatal("memory was taken that is held")
		}
		quickest = min(quickest, time.Since(began))
	}
	if quickest >= spareTime { // as it takes each that waits, on whatever machine
		t.Errorf("after the end of the store it waits still: %v at least", quickest)
	}
}
