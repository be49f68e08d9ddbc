package fs

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/fs/control"
	"github.com/hbmfs/hbmfs/layout"
)

// segmentedFile is an origin whose one object lies in a local file by the time that the second open of it comes.
type segmentedFile struct {
	segmentedBytes
	path     string
	first    func() // is called within the first open, before it hears that nothing is local
	opened   int
	released int
}

func (k *segmentedFile) OpenWhole(context.Context, *layout.Object) (int, func(), error) {
	if k.opened++; k.opened == 1 {
		k.first()
		return -1, nil, nil
	}
	fd, err := syscall.Open(k.path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	return fd, func() { k.released++ }, err
}

// segmentedBytes is an origin that never has anything here.
type segmentedBytes struct{}

func (segmentedBytes) ReadAt(context.Context, *layout.Object, []byte, int64) (int, error) {
	return 0, nil
}
func (segmentedBytes) Lies(_ *layout.Object, off int64) (*layout.Object, int64, int64) {
	return nil, off, 1
}
func (segmentedBytes) WasRead(*layout.Object, int64, int64) {}
func (segmentedBytes) Touched(*layout.Object, int64, int64) {}
func (segmentedBytes) Here(*layout.Object, int64, int64) (here, settling int64) {
	return 0, 0
}
func (segmentedBytes) Stale(*layout.Object) bool { return false }

func (segmentedBytes) OpenWhole(context.Context, *layout.Object) (int, func(), error) {
	return -1, nil, nil
}

// takes is a kernel that takes every file for passthrough.
type takes struct{ registered int }

func (k *takes) RegisterBackingFd(*fuse.BackingMap) (int32, syscall.Errno) {
	k.registered++
	return int32(k.registered), 0
}

func (k *takes) UnregisterBackingFd(int32) syscall.Errno { k.registered--; return 0 }

// TestOpensOfAnInodeAreOfOneKind has an object become local while somebody opens it: the kernel refuses to have one
// inode open with passthrough and without (EIO).
func TestOpensOfAnInodeAreOfOneKind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "segment")
	if err := os.WriteFile(path, []byte("bytes"), 0o644); err != nil {
		t.Fatal(err)
	}
	k, kernel := &segmentedFile{path: path}, &takes{}
	o := &layout.Object{Name: "o", Size: 5, Origin: k}
	m := &Mount{log: slog.New(slog.DiscardHandler), control: control.New(control.Options{})}
	m.tree = newTree(node{perm: 0o755}, []entry{{"o", &node{kind: kindObject, object: o, perm: 0o444}}})
	m.backing.init()
	m.backing.server = kernel
	if err := m.makeBooks(); err != nil {
		t.Fatal(err)
	}
	open := func() (out fuse.OpenOut) {
		t.Helper()
		if status := m.Open(nil, &fuse.OpenIn{InHeader: fuse.InHeader{NodeId: nodeID(1)}}, &out); status != fuse.OK {
			t.Fatalf("open: %v", status)
		}
		return out
	}
	release := func(out fuse.OpenOut) {
		m.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: nodeID(1)}, Fh: out.Fh})
	}
	var second fuse.OpenOut
	k.first = func() { second = open() }
	first := open()
	third := open()
	for name, out := range map[string]fuse.OpenOut{"the first": first, "the third": third} {
		if out.OpenFlags != second.OpenFlags || out.BackingID != second.BackingID {
			t.Errorf("%s is opened with flags %#x and backing %d, the second with %#x and %d", name, out.OpenFlags, out.BackingID, second.OpenFlags, second.BackingID)
		}
	}
	release(second)
	release(first)
	if kernel.registered != 1 || k.released != 1 { // the third open's own
		t.Errorf("%d files are registered and %d released while one is open", kernel.registered, k.released)
	}
	release(third)
	if kernel.registered != 0 || k.released != 2 || len(m.backing.byNode)+len(m.backing.cached) != 0 {
		t.Errorf("after the last close %d files are registered, %d released, %v and %v open", kernel.registered, k.released, m.backing.byNode, m.backing.cached)
	}
}

// TestOpensWithoutPassthroughStayOfOneKind has an object become local while it is open through the daemon.
func TestOpensWithoutPassthroughStayOfOneKind(t *testing.T) {
	b := backings{server: &takes{}}
	b.init()
	var id int32
	book := func(given int32) bool { id = given; return true }
	if b.open(1, -1, nil, book); id != noBacking {
		t.Fatalf("without a file the backing is %d", id)
	}
	fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	released := false
	if b.open(1, fd, func() { released = true }, book); id != noBacking || !released {
		t.Errorf("the second open has the backing %d, released: %v", id, released)
	}
	if b.closedCached(1) || !b.closedCached(1) || len(b.cached) != 0 {
		t.Errorf("of two opens, %v are left after two closes", b.cached)
	}
}
