package fs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

func file(path string) entry { return entry{path, &node{kind: kindText, ino: inoOf(path, "")}} }

// walk lists every path below a directory of the tree, in the order of its children.
func walk(t *testing.T, tr *tree, dir *node, prefix string) []string {
	t.Helper()
	var out []string
	first := dir.dir.first
	nodes := tr.nodes[first : first+dir.dir.count]
	for i, n := range nodes {
		if tr.get(first+i) != n {
			t.Errorf("%s is not at its number %d", n.name, first+i)
		}
		if found, at := tr.find(dir.dir, n.name); found != n || at != first+i {
			t.Errorf("%s is not found by its name", n.name)
		}
		out = append(out, prefix+n.name)
		if n.kind == kindDir {
			out = append(out, walk(t, tr, n, prefix+n.name+"/")...)
		}
	}
	return out
}

func TestTreeGrowsFromPaths(t *testing.T) {
	tr := newTree(node{perm: 0o755}, []entry{
		file("b/c/d"), file("a.x"), file("a/z"), file("b/a"), {"b", &node{kind: kindDir, perm: 0o700}}, file("a/z"), file("ab"),
	})
	want := []string{"a", "a/z", "a.x", "ab", "b", "b/a", "b/c", "b/c/d"}
	if got := walk(t, tr, tr.get(rootNumber), ""); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	b, _ := tr.find(tr.get(rootNumber).dir, "b")
	if b.perm != 0o700 {
		t.Errorf("b has %o: the entry that describes it was lost", b.perm)
	}
	for _, absent := range []string{"", "aa", "zzz", "a/z"} {
		if n, _ := tr.find(tr.get(rootNumber).dir, absent); n != nil {
			t.Errorf("%q is found", absent)
		}
	}
	for _, number := range []int{-1, len(tr.nodes), 1 << 40} {
		if tr.get(number) != nil {
			t.Errorf("number %d has a node", number)
		}
	}
}

// Children that were removed while somebody looks for them are not found.
func TestChildrenThatAreRemoved(t *testing.T) {
	tr := newTree(node{}, []entry{file("a/x"), file("a/y")})
	a, _ := tr.find(tr.get(rootNumber).dir, "a")
	tr.clear(grown{first: a.dir.first, count: a.dir.count})
	if n, _ := tr.find(a.dir, "x"); n != nil {
		t.Error("a node that was removed is found")
	}
}

func TestTreeOfManyFiles(t *testing.T) {
	var entries []entry
	for i := range 5000 {
		entries = append(entries, file(fmt.Sprintf("d%02d/f%04d", i%50, i)))
	}
	tr := newTree(node{}, entries)
	if got := walk(t, tr, tr.get(rootNumber), ""); len(got) != 5050 || !slices.IsSortedFunc(got, func(a, b string) int {
		return strings.Compare(strings.ReplaceAll(a, "/", "\x00"), strings.ReplaceAll(b, "/", "\x00"))
	}) {
		t.Errorf("%d paths, or out of order", len(got))
	}
}

func TestSourceEntriesHideTheControlDirectory(t *testing.T) {
	l := &cache.Listing{
		Dirs:    []cache.DirEntry{{}, {Name: ".hbmfs"}},
		Objects: []*layout.Object{layout.Bytes(".hbmfs/status", nil), layout.Bytes(".hbmfs2", nil), layout.Bytes("a", nil)},
	}
	var got []string
	for _, e := range sourceEntries(l, ".hbmfs", func(*node) {}) {
		got = append(got, e.path)
	}
	if want := []string{".hbmfs2", "a"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestInodesAreStableAndTellVersionsApart(t *testing.T) {
	if got := inoOf("a", "1"); got != 0xe5d2e8190426ecef { // what a mount of an earlier version gave
		t.Errorf("inode %#x", got)
	}
	seen := map[uint64]bool{}
	for _, s := range [][2]string{{"a", "1"}, {"a", "2"}, {"a1", ""}, {"", "a1"}, {"b", "1"}} {
		seen[inoOf(s[0], s[1])] = true
	}
	if len(seen) != 5 {
		t.Errorf("%d inodes of 5 files", len(seen))
	}
}

func TestOnceRunsOneAtATimeUntilItWorks(t *testing.T) {
	var o once
	var running, calls atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_ = o.do(t.Context(), func(context.Context) error { // the failures are the test
				if running.Add(1) != 1 {
					t.Error("two at a time")
				}
				defer running.Add(-1)
				if calls.Add(1) < 3 {
					return errors.New("not yet")
				}
				return nil
			})
		})
	}
	wg.Wait()
	if calls.Load() != 3 {
		t.Errorf("%d calls, want 3: two failures and the one that works", calls.Load())
	}
}

func TestOnceHonoursTheContextOfThoseWhoWait(t *testing.T) {
	var o once
	entered, leave := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := o.do(t.Context(), func(context.Context) error { close(entered); <-leave; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := o.do(ctx, func(context.Context) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err %v, want the context's", err)
	}
	close(leave)
	wg.Wait()
}

// TestViewsAreNotLookedAtWhileTheyAreBuilt is for the race detector: whoever gives up waiting must not read what is built.
func TestViewsAreNotLookedAtWhileTheyAreBuilt(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		v := &lazyView{build: func(context.Context) (*layout.File, error) { return &layout.File{}, nil }}
		var both sync.WaitGroup
		for _, ctx := range []context.Context{t.Context(), over} {
			both.Go(func() {
				if file, err := v.get(ctx); (file == nil) == (err == nil) {
					t.Errorf("%v and %v", file, err)
				}
			})
		}
		both.Wait()
	}
}

func TestStatusOf(t *testing.T) {
	_, timeout := (&net.Dialer{Timeout: 1}).DialContext(t.Context(), "tcp", "192.0.2.1:80") // it says that a context's deadline has passed
	if !errors.Is(timeout, context.DeadlineExceeded) {
		t.Fatalf("a dial without time gives %v", timeout)
	}
	for _, c := range []struct {
		err  error
		want fuse.Status
	}{
		{nil, fuse.OK},
		{fmt.Errorf("x: %w", cache.ErrChanged), fuse.Status(syscall.ESTALE)},
		{fmt.Errorf("x: %w", layout.ErrShort), fuse.EIO},
		{&layout.AbsentError{Why: "x"}, fuse.ENOENT},
		{context.Canceled, fuse.EINTR},
		{fmt.Errorf("the origin cannot be reached: %w", timeout), fuse.EIO},
		{syscall.EACCES, fuse.EACCES},
		{fmt.Errorf("x: %w", syscall.EMFILE), fuse.Status(syscall.EMFILE)},
		{errors.New("anything"), fuse.EIO},
		{syscall.ENOENT, fuse.EIO}, // never "not made yet" for a file that was listed
	} {
		if got := statusOf(c.err); got != c.want {
			t.Errorf("%v gives %v, want %v", c.err, got, c.want)
		}
	}
}

func TestAccessIsWhatAllObjectsGrant(t *testing.T) {
	a := newAccess(&cache.Listing{Dirs: []cache.DirEntry{
		{Perm: 0o755, UID: 7, GID: 7}, {Name: "private", Perm: 0o700, UID: 1, GID: 2}, {Name: "private/open", Perm: 0o755, UID: 1, GID: 2},
		{Name: "team", Perm: 0o750, UID: 7, GID: 2}, {Name: "theirs", Perm: 0o700, UID: 7, GID: 7},
	}})
	object := func(name string, perm uint16, uid, gid uint32) *layout.Object {
		return &layout.Object{Name: name, Perm: perm, UID: uid, GID: gid}
	}
	for _, c := range []struct {
		objects  []*layout.Object
		perm     uint16
		uid, gid uint32
	}{
		{nil, 0o444, 7, 7},
		{[]*layout.Object{object("a", 0o644, 1, 2), object("b", 0o640, 1, 2)}, 0o440, 1, 2},
		{[]*layout.Object{object("a", 0o644, 1, 2), object("b", 0o644, 3, 2)}, 0o444, 1, 2},
		{[]*layout.Object{object("a", 0o644, 1, 2), object("b", 0o640, 3, 2)}, 0o040, 1, 2},
		{[]*layout.Object{object("a", 0o644, 1, 2), object("b", 0o604, 3, 4)}, 0, 1, 2},
		{[]*layout.Object{object("not listed/a", 0o644, 1, 2)}, 0, 1, 2},
		{[]*layout.Object{object("a", 0o640, 1, 2), object("b", 0o640, 1, 3)}, 0o400, 1, 2},
		{[]*layout.Object{object("a", 0o600, 1, 1), object("b", 0o600, 2, 2)}, 0, 1, 1},
		{[]*layout.Object{layout.Inline([]byte("header")), object("a", 0o755, 1, 2)}, 0o444, 1, 2},
		{[]*layout.Object{object("private/a", 0o644, 1, 2)}, 0o400, 1, 2},
		{[]*layout.Object{object("private/open/a", 0o644, 1, 2)}, 0o400, 1, 2},
		{[]*layout.Object{object("a", 0o644, 1, 2), object("private/a", 0o644, 1, 2)}, 0o400, 1, 2},
		{[]*layout.Object{object("team/a", 0o644, 1, 2)}, 0o040, 1, 2},
		{[]*layout.Object{object("theirs/a", 0o644, 1, 2)}, 0, 1, 2},
	} {
		if perm, uid, gid := a.of(slices.Values(c.objects)); perm != c.perm || uid != c.uid || gid != c.gid {
			t.Errorf("%+v: %o %d %d, want %o %d %d", c.objects, perm, uid, gid, c.perm, c.uid, c.gid)
		}
	}
}
