package fs

import (
	"os"
	"testing"
)

// Users of these tests. None of them runs them.
const (
	greedy = 70001 + iota
	modest
)

func TestTextsOfAUserAreBounded(t *testing.T) {
	var x texts
	x.init()
	var opened []uint64
	for h := uint64(1); x.open(h, greedy, make([]byte, 1<<20)); h++ {
		opened = append(opened, h)
	}
	if len(opened) != textBytes/2>>20 {
		t.Errorf("one user has %d MiB of texts", len(opened))
	}
	for _, uid := range []uint32{modest, uint32(os.Geteuid())} {
		h := 1<<32 + uint64(uid)
		if !x.open(h, uid, make([]byte, 1<<20)) {
			t.Errorf("user %d finds no room", uid)
		}
		opened = append(opened, h)
	}
	for _, h := range opened {
		x.close(h)
	}
	if x.bytes.Booked() != 0 || len(x.byOpen) != 0 {
		t.Errorf("%d bytes of closed texts are left", x.bytes.Booked())
	}
}

func TestTextsShowWhatTheyWereWhenOpened(t *testing.T) {
	var x texts
	x.init()
	const h = 7
	if !x.open(h, modest, []byte("0123456789")) {
		t.Fatal("there is no room")
	}
	for _, c := range []struct {
		off  int64
		n    int
		want string
	}{{0, 4, "0123"}, {8, 10, "89"}, {10, 1, ""}, {99, 1, ""}} {
		res, ok := x.read(h, c.off, c.n)
		got, status := res.Bytes(nil)
		if !ok || string(got) != c.want || !status.Ok() {
			t.Errorf("read(%d, %d) = %q, %v", c.off, c.n, got, status)
		}
	}
	x.close(h)
	if _, ok := x.read(h, 0, 10); ok || len(x.byOpen) != 0 {
		t.Error("a closed text is still held")
	}
}
