package fs

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// TestHandlesTellWriters: the next daemon hears which files are open for writing, and finds them by the requests that opened them.
func TestHandlesTellWriters(t *testing.T) {
	table, err := newHandles()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = table.file.Close() }() // it is memory
	want, request := map[uint64]Opened{}, map[uint64]uint64{}
	for i, o := range []Opened{{Inode: 1 << 40, Writes: true}, {Inode: 2, Backing: 7}, {Inode: 2, Backing: 7, Writes: true}} {
		unique := uint64(2*i + 2)
		handle, ok := (&Mount{handles: table}).Book(&fuse.InHeader{Unique: unique}, o)
		if !ok {
			t.Fatal("no room")
		}
		want[handle], request[handle] = o, unique
	}
	next, err := openHandles(table.file)
	if err != nil {
		t.Fatal(err)
	}
	next.recover(func(*handle) {})
	m, found := &Mount{handles: next}, 0
	m.EachBooked(func(handle uint64, o Opened) {
		if found++; o != want[handle] {
			t.Errorf("handle %d is %+v, want %+v", handle, o, want[handle])
		}
	})
	if found != len(want) {
		t.Errorf("%d handles are found, want %d", found, len(want))
	}
	for handle, o := range want {
		again := fuse.InHeader{Unique: request[handle] | 1<<63}
		if got, opened, ok := m.Answered(&again); !ok || got != handle || opened != o {
			t.Errorf("the open of handle %d, sent again, has handle %d, %+v, %v", handle, got, opened, ok)
		}
		m.Unbook(handle)
		if _, _, ok := m.Answered(&again); ok {
			t.Errorf("handle %d is closed, and still an answer", handle)
		}
	}
}
