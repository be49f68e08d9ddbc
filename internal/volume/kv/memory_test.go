package kv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/internal/sys/asuser"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

// until waits for a condition with patience.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// waitsForLock tells whether a goroutine with the function in its stack waits for a lock.
func waitsForLock(function string) bool {
	stacks := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		head, rest, _ := strings.Cut(stack, "\n")
		if strings.Contains(head, "[sync.") && strings.Contains(rest, function) {
			return true
		}
	}
	return false
}

// memoryOf is what a namespace has allocated of the memory tier.
func (v *volume) memoryOf(name string) uint64 {
	for _, i := range v.Namespaces() {
		if i.Name == name {
			return i.Counts.Memory.Allocated
		}
	}
	return 0
}

// cuts is what KV_SPACE says of the memory tier.
func (c *client) cuts() uint64 { return c.space.open(false)[0].Cuts }

// fill puts new blocks until the memory of a namespace grows no more.
func (v *volume) fill(c *client) {
	v.t.Helper()
	for was := uint64(0); ; {
		for _, e := range c.put(4096, keysOf(int(v.token.Load()%1e8), 100)...) { // tokens are never the same
			if e != 0 {
				v.t.Fatal(e)
			}
		}
		now := v.memoryOf(c.space.name)
		if now == was {
			return
		}
		was = now
	}
}

// TestClearKeepsMemoryThatIsOpen: engines have registered the regions with CUDA. They go once no connection has the namespace open.
func TestClearKeepsMemoryThatIsOpen(t *testing.T) {
	v := open(t, t.TempDir(), 16<<20, 4<<20)
	c := v.connect("model", 4096)
	v.fill(c)
	was, cuts := v.memoryOf("model"), c.cuts()
	c.space.clear()
	for range 3 { // the mover has looked
		c.space.rest()
	}
	if now := v.memoryOf("model"); now != was || c.cuts() != cuts {
		t.Errorf("memory of %d bytes is %d after a clear, cut %d times", was, now, c.cuts()-cuts)
	}
	if i := v.Namespaces()[0]; i.Counts.Memory.Blocks != 0 {
		t.Errorf("%+v", i.Counts)
	}
	c.put(4096, keysOf(0, 100)...)
	c.close()
	d := v.connect("model", 4096)
	if d.get("key-00000042") == nil || d.cuts() != cuts {
		t.Error("memory that has blocks went with the last connection")
	}
	d.space.clear()
	d.close()
	until(t, "memory without blocks stays, and nobody has it open", func() bool { return v.memoryOf("model") == 0 })
	d = v.connect("model", 4096)
	defer d.close()
	if d.cuts() == cuts {
		t.Error("who comes back is not told that regions went")
	}
}

// TestMemoryThatNobodyHasOpenGoesToOthers: at once and wholly, and none of it before.
func TestMemoryThatNobodyHasOpenGoesToOthers(t *testing.T) {
	v := open(t, t.TempDir(), 16<<20, 4<<20)
	c := v.connect("first", 4096)
	v.fill(c)
	was := v.memoryOf("first")
	if was < 3<<20 {
		t.Fatalf("the first has %d bytes of memory", was)
	}
	d := v.connect("second", 4096)
	v.fill(d)
	if now := v.memoryOf("first"); now != was || v.memoryOf("second") > 4<<20-was {
		t.Fatalf("memory that is open was taken: %d bytes of %d are left", now, was)
	}
	c.close()
	until(t, "the second gets no memory", func() bool { v.fill(d); return v.memoryOf("first") == 0 })
	if now := v.memoryOf("second"); now < was {
		t.Errorf("the second has %d bytes of memory, the first had %d", now, was)
	}
	d.close()
}

// TestMemoryWaitsForThoseWhoComeBack: after the daemon's end processes come back, which may have the memory registered.
func TestMemoryWaitsForThoseWhoComeBack(t *testing.T) {
	v := open(t, t.TempDir(), 16<<20, 4<<20)
	c := v.connect("first", 4096)
	v.fill(c)
	was := v.memoryOf("first")
	c.close()
	set := func(await time.Time, away ...uint64) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.await = await
		clear(v.away)
		for _, id := range away {
			v.away[id] = true
		}
	}
	set(time.Now().Add(time.Hour), 7)
	d := v.connect("second", 4096)
	defer d.close()
	v.fill(d)
	if now := v.memoryOf("first"); now != was {
		t.Errorf("%d bytes of %d are left", now, was)
	}
	set(time.Now().Add(time.Hour)) // all came back, or ended
	until(t, "the second gets no memory", func() bool { v.fill(d); return v.memoryOf("first") == 0 })
}

// TestRegionsOfMemoryComeAhead: who reserves finds a region that was made meanwhile.
func TestRegionsOfMemoryComeAhead(t *testing.T) {
	v := open(t, t.TempDir(), 16<<20, 64<<20) // regions of 256 slots
	c := v.connect("model", 4096)
	defer c.close()
	c.put(4096, keysOf(0, 200)...)
	until(t, "no region is made ahead", func() bool { return v.memoryOf("model") >= 2<<20 })
	if i := v.Namespaces()[0]; i.Counts.Memory.Blocks != 200 || i.Counts.Disk.Allocated != 0 {
		t.Errorf("%+v", i.Counts)
	}
}

// attachTo makes a connection that goes on with a client's holds.
func (v *volume) attachTo(c *client, seen uint64) *client {
	v.t.Helper()
	d := &client{Session: v.Session(me(), selfPidfd(v.t)), t: v.t}
	_, err := d.attach(&control.KVAttach{Client: c.owner.id, Seen: seen})
	d.must(err)
	d.must(d.openSpace(control.KVOpen{Name: c.space.name, Flags: control.KVWrite}))
	return d
}

// TestWhatALostAnswerGaveComesBack: a client says which token it saw last, and what it was given later is given back. One that lies harms itself.
func TestWhatALostAnswerGaveComesBack(t *testing.T) {
	v := open(t, t.TempDir(), 4<<20, 0)
	c, other := v.connect("model", 4096), v.connect("model", 4096)
	c.put(4096, "a", "b")
	pin := func(c *client, key string) uint64 {
		return c.lookup(c.space, [][]byte{[]byte(key)}, true)[0].Token
	}
	reserve := func(c *client, key string) control.KVSlot {
		return c.reserve(c.space, []control.KVBlock{{Key: []byte(key), Length: 1}})[0]
	}
	theirs := pin(other, "a")
	known := pin(c, "a")
	pin(c, "b") // of this answer, and the next, nothing comes
	reserve(c, "new")
	d := v.attachTo(c, known) // the daemon has not seen the end of the first connection yet
	if i := v.Namespaces()[0].Counts; i.Pins != 2 || i.Reservations != 0 {
		t.Errorf("%d pins and %d reservations, want 2 and none", i.Pins, i.Reservations)
	}
	if s := reserve(c, "late"); s.Errno != unix.ESTALE {
		t.Errorf("the connection before is given more: %+v", s)
	}
	fresh := reserve(d, "new")
	if done := d.commit(d.space, []control.KVStored{{Token: fresh.Token, Flags: control.KVHasCRC}}); fresh.Errno != 0 || done[0].Errno != 0 {
		t.Errorf("the key of the lost reservation: %+v, %+v", fresh, done)
	}
	c.close()
	if done := d.drop(d.space, []uint64{known}, false); done[0].Errno != 0 {
		t.Errorf("the pin that was seen: %v", done)
	}
	last := pin(d, "b")
	liar := v.attachTo(d, 0) // it has seen nothing, it says
	if done := liar.drop(liar.space, []uint64{last, theirs}, false); done[0].Errno != unix.ENOENT || done[1].Errno != unix.ENOENT {
		t.Errorf("what the liar held, and what is another client's: %v", done)
	}
	if done := other.drop(other.space, []uint64{theirs}, false); done[0].Errno != 0 {
		t.Errorf("the pin of another client: %v", done)
	}
	boast := pin(liar, "b")
	greedy := v.attachTo(liar, control.KVKeep) // it has seen all, it says
	if done := greedy.drop(greedy.space, []uint64{boast}, false); done[0].Errno != 0 {
		t.Errorf("what was to be kept: %v", done)
	}
	for _, c := range []*client{d, liar, greedy, other} {
		c.close()
	}
	if i := v.Namespaces()[0]; i.Counts.Pins+i.Counts.Reservations != 0 || v.count.Booked() != 0 || v.held.Booked() != 0 || i.Open != 0 {
		t.Errorf("%+v", i)
	}
}

// TestCutsAreCountedOverLives: the next daemon counts on, and namespaces do not share a count.
func TestCutsAreCountedOverLives(t *testing.T) {
	v := open(t, t.TempDir(), 4<<20, 0)
	*v.table.cuts(7) += 3
	*v.table.cuts(8)++
	next := &holdTable{memory: v.table.memory}
	if *next.cuts(7) != 3 || *next.cuts(8) != 1 || *next.cuts(9) != 0 {
		t.Errorf("%d, %d, %d", *next.cuts(7), *next.cuts(8), *next.cuts(9))
	}
	for id := range uint64(mostSpaces) {
		next.cuts(id + 100)
	}
	if *next.cuts(1) == *next.cuts(2) {
		t.Error("counts without a cell are no number of their own")
	}
}

// TestHugePagesTakeNoMoreThanTheLimit: regions of whole huge pages get these, where the kernel has them, and others do not.
func TestHugePagesTakeNoMoreThanTheLimit(t *testing.T) {
	slab, _, err := tmpfsSlab(true)
	supported := err == nil && hasHuge(slab)
	for _, memory := range []int64{4 << 20, 256 << 20} {
		v := open(t, t.TempDir(), 16<<20, memory)
		c := v.connect("model", 8<<10)
		c.put(8<<10, keysOf(0, 10)...)
		m := c.space.memory()
		if want := supported && memory > 128<<20; m.huge != want || v.Namespaces()[0].Huge != want || m.huge && m.regionBytes()%hugePage != 0 {
			t.Errorf("memory of %d bytes in regions of %d has huge pages: %v, want %v", memory, m.regionBytes(), m.huge, want)
		}
		var st unix.Stat_t
		c.must(unix.Fstat(int(m.slab.Fd()), &st))
		if st.Blocks*512 > st.Size {
			t.Errorf("%d bytes are taken, of a file of %d", st.Blocks*512, st.Size)
		}
		c.close()
	}
	if slab != nil {
		_ = slab.Close() // it was only asked
	}
}

// TestNoRecordOutlivesItsBlock: where the mover has taken the slots of blocks that it evicted, their records are zeroed, though no copy has begun. A key that
// is removed then, and not found, would come back after a kill. Who removes one waits for that.
func TestNoRecordOutlivesItsBlock(t *testing.T) {
	v := open(t, t.TempDir(), 2<<20, 1<<20)
	c := v.connect("model", 4096)
	defer c.close()
	for at := range 20 {
		c.put(4096, keysOf(at*100, 100)...)
	}
	sp, d := c.space, c.space.disk()
	evicted := 0
	for at := 0; evicted == 0 && at < 100; at++ { // the mover of the volume may have been faster
		c.put(4096, keysOf(10_000+at*16, 16)...)
		batch := sp.dirty()
		for _, m := range batch {
			p := make([]byte, recordSize)
			_, err := d.index.ReadAt(p, d.recordAt(m.dst))
			c.must(err)
			if !isEmpty(p) {
				t.Fatalf("slot %d has a record still", m.dst)
			}
			evicted++
		}
		for i := range batch {
			sp.move(&batch[i], make([]byte, 1<<20))
		}
	}
	if evicted == 0 {
		t.Error("nothing was chosen")
	}
	sp.evicting.RLock() // as who has hidden a block, and not zeroed its record
	var answered atomic.Bool
	over := make(chan struct{})
	go func() {
		c.remove(sp, [][]byte{[]byte("nobody has it")})
		answered.Store(true)
		close(over)
	}()
	until(t, "the removal does not wait", func() bool { return answered.Load() || waitsForLock("(*Space).evicted(") })
	if answered.Load() {
		t.Error("a removal was answered before the records of blocks were zeroed that are hidden")
	}
	sp.evicting.RUnlock()
	<-over
	if r := sp.verify(context.Background(), 0); r.Damaged != 0 || slices.ContainsFunc(v.Namespaces(), func(i Info) bool { return i.Counts.Dropped > 0 }) {
		t.Errorf("%+v", r)
	}
}

// TestALostReservationIsCommittedMeanwhile: the connection before commits what the next one gives back. One of them wins.
func TestALostReservationIsCommittedMeanwhile(t *testing.T) {
	v := open(t, t.TempDir(), 4<<20, 0)
	c := v.connect("model", 4096)
	token := c.reserve(c.space, []control.KVBlock{{Key: []byte("a"), Length: 1}})[0].Token
	var d *client
	attached := make(chan struct{})
	c.space.mu.Lock()
	go func() {
		defer close(attached)
		d = v.attachTo(c, 0)
	}()
	until(t, "nobody attaches", func() bool {
		c.owner.mu.Lock()
		defer c.owner.mu.Unlock()
		return c.owner.latest != c.Session
	})
	attaches := func() bool { return waitsForLock("(*volume).attachTo(") }
	until(t, "who attaches does not find the reservation", attaches)
	h, errno := c.begin(c.space, &control.KVStored{Token: token, Flags: control.KVHasCRC})
	c.space.mu.Unlock()
	if errno == 0 {
		until(t, "who attaches does not get the lock", func() bool { return !attaches() })
		c.space.mu.Lock()
		c.finish(c.space, token, h, nil)
		c.space.mu.Unlock()
	}
	<-attached
	v.sound()
	d.close()
	c.close()
}

// TestAUserLeavesProcessesToOthers: what a process holds is watched when its connection has ended, by descriptors of the daemon.
func TestAUserLeavesProcessesToOthers(t *testing.T) {
	v := open(t, t.TempDir(), 4<<20, 0)
	v.owning = shares.New(16, 8, 1)
	c := v.connect("model", 4096)
	defer c.close()
	c.put(4096, "a")
	greedy := me()
	greedy.UID += 1000
	var last error
	for range 20 {
		g := &client{Session: v.Session(greedy, selfPidfd(t)), t: t}
		if g.owner, last = v.newOwner(g.Session); last == nil {
			if s := g.lookup(c.space, [][]byte{[]byte("a")}, true)[0]; s.Errno != 0 {
				t.Fatal(s.Errno)
			}
		}
		g.close()
	}
	if refusal := new(control.Refusal); !errors.As(last, &refusal) || refusal.Errno != unix.EDQUOT {
		t.Errorf("20 owners of one user: %v", last)
	}
	modest := v.Session(asuser.User{UID: greedy.UID + 1}, selfPidfd(t))
	if _, err := v.newOwner(modest); err != nil {
		t.Errorf("another user: %v", err)
	}
	for _, o := range slices.Collect(maps.Values(v.owners)) {
		v.end(o)
	}
	if n := v.owning.Booked(); n != 0 {
		t.Errorf("%d owners are booked, and there is none", n)
	}
}

// TestAUserLeavesNamespacesToOthers: whoever may write the directory could take all that a volume has.
func TestAUserLeavesNamespacesToOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as other users")
	}
	dir := t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(dir, 0o777)) //nolint:gosec // others make namespaces here
	v := open(t, dir, 64<<20, 0)
	makeSpace := func(uid uint32, name string) error {
		c := &client{Session: v.Session(asuser.User{UID: uid, GID: uid}, selfPidfd(t)), t: t}
		defer c.close()
		return c.openSpace(control.KVOpen{Name: name, BlockBytes: 4096, Mode: 0o600, Flags: control.KVCreate | control.KVWrite})
	}
	var refused error
	made := 0
	for ; refused == nil && made <= mostSpaces; made++ {
		refused = makeSpace(1000, fmt.Sprint("greedy", made))
	}
	if refusal := new(control.Refusal); !errors.As(refused, &refusal) || refusal.Errno != unix.EDQUOT {
		t.Errorf("after %d namespaces: %v", made, refused)
	}
	if refused == nil || !strings.Contains(refused.Error(), "remove directories of some in "+dir) { // no command removes a namespace
		t.Errorf("the refusal names no remedy: %v", refused)
	}
	must(makeSpace(1001, "modest"))
	must(makeSpace(0, "roots"))
}
