package fs

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/volume/shares"
)

func TestBuffersAreTouched(t *testing.T) {
	if !touchBuffers(&fuse.Server{}) {
		t.Error("go-fuse keeps its buffers elsewhere: see touchBuffers")
	}
}

// TestHandlesOutliveADaemon opens, closes and loses answers in one life, and goes on in the next.
func TestHandlesOutliveADaemon(t *testing.T) {
	x, err := newHandles()
	if err != nil {
		t.Fatal(err)
	}
	of := func(node int, request uint64) *fuse.InHeader {
		return &fuse.InHeader{NodeId: nodeID(node), Unique: request, Caller: fuse.Caller{Owner: fuse.Owner{Uid: modest}}}
	}
	open := func(x *handles, node int, request uint64, state uint32, backing int32) uint64 {
		n, ok := x.open(of(node, request), state, backing, 0)
		if !ok {
			t.Fatal("there is no room")
		}
		return n
	}
	cached, closed := open(x, 1, 2, handleCached, 0), open(x, 2, 4, handlePassthrough, 7)
	lost, closing := open(x, 3, 6, handlePassthrough, 8), open(x, 4, 8, handlePassthrough, 9)
	x.close(closed)
	x.get(closing).state.Store(handleClosing)

	y, err := openHandles(x.file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[uint32]int32{}
	y.recover(func(h *handle) {
		if found[h.node] = h.backing; h.state.Load() == handleClosing {
			h.state.Store(handleFree)
		}
	})
	if len(found) != 3 || found[3] != 8 || found[4] != 9 || y.room.Of(modest) != 2 {
		t.Errorf("recovered %v, %d of the user", found, y.room.Of(modest))
	}
	for what, n := range map[string]uint64{"a closed file": closed, "one that was closing": closing} {
		if y.get(n) != nil {
			t.Errorf("%s is open", what)
		}
		y.close(n) // the kernel says it again
	}
	if again, h := y.answered(of(3, 6|1<<63)); h == nil || again != lost || h.backing != 8 {
		t.Errorf("an OPEN whose answer was lost is %d, want %d", again, lost)
	}
	for what, request := range map[string]*fuse.InHeader{"of another node": of(9, 6|1<<63), "that is new": of(3, 6), "that is not known": of(3, 99|1<<63)} {
		if _, h := y.answered(request); h != nil {
			t.Errorf("an OPEN %s is taken for one that was answered", what)
		}
	}
	again := open(y, 5, 10, handleCached, 0)
	if again == closed || again == closing || uint32(again) >= 4 {
		t.Errorf("a new file has handle %#x; those before were %#x and %#x", again, closed, closing)
	}
	y.close(cached)
	y.close(lost)
	y.close(again)
	if y.room.Booked() != 0 || len(y.answers) != 0 || len(y.free) != 4 {
		t.Errorf("after the last close %d are booked, %d answers and %d free", y.room.Booked(), len(y.answers), len(y.free))
	}
}

// TestHandlesOfAUserAreBounded has one user open as many files as it can; another still opens some.
func TestHandlesOfAUserAreBounded(t *testing.T) {
	x, err := newHandles()
	if err != nil {
		t.Fatal(err)
	}
	x.room = shares.New(1000, 1000, 0)
	for range 2000 {
		x.open(&fuse.InHeader{Caller: fuse.Caller{Owner: fuse.Owner{Uid: greedy}}}, handleCached, 0, 0)
	}
	if _, ok := x.open(&fuse.InHeader{Caller: fuse.Caller{Owner: fuse.Owner{Uid: modest}}}, handleCached, 0, 0); !ok {
		t.Error("a user has taken all")
	}
}

// TestHandlesOfAnotherVersionAreRefused has a table that another program has made.
func TestHandlesOfAnotherVersionAreRefused(t *testing.T) {
	x, err := newHandles()
	if err != nil {
		t.Fatal(err)
	}
	x.head.version++
	if _, err := openHandles(x.file); err == nil {
		t.Error("a table of another version is taken")
	}
	f, err := handover.NewMemory("short")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openHandles(f); err == nil {
		t.Error("a table that is too short is taken")
	}
}

// TestReservedNumbersComeBack fills two directories in one order, and in the next life in the other.
func TestReservedNumbersComeBack(t *testing.T) {
	grow := func(tr *tree, name string, entries ...entry) (grown, bool, error) {
		n, _ := tr.find(tr.get(rootNumber).dir, name)
		return tr.grow(n, entries)
	}
	base := func() *tree {
		return newTree(node{}, []entry{{"a", &node{kind: kindDir}}, {"b", &node{kind: kindDir}}})
	}
	one := base()
	a, _, _ := grow(one, "a", file("x"), file("d/y"))
	b, _, _ := grow(one, "b", file("z"))
	two := base()
	two.reserve(b)
	two.reserve(a)
	if n, dir := two.at(a.first); n != nil || dir != a.dir {
		t.Errorf("number %d is %v of directory %d, want %d", a.first, n, dir, a.dir)
	}
	if _, known, err := grow(two, "b", file("other")); !known || err == nil || statusOf(err) != fuse.Status(unix.ESTALE) {
		t.Errorf("another file takes the place of one that was told: %v", err)
	}
	for name, entries := range map[string][]entry{"b": {file("z")}, "a": {file("x"), file("d/y")}} {
		if _, known, err := grow(two, name, entries...); !known || err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range one.nodes {
		if one.nodes[i].name != two.nodes[i].name {
			t.Errorf("number %d is %q, was %q", i, two.nodes[i].name, one.nodes[i].name)
		}
	}
}
