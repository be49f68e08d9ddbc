package fs

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/fs/control"
	"github.com/hbmfs/hbmfs/internal/mounts/mountpoint"
	"github.com/hbmfs/hbmfs/layout"
)

// zeros is an origin of objects of any size.
type zeros struct{}

func (zeros) ReadAt(_ context.Context, _ *layout.Object, p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// listed reads objects as a hostile server could list them: a line for each, with name, size, seconds and version.
func listed(text string) (objects []*layout.Object) {
	for line := range strings.SplitSeq(text, "\n") {
		f := strings.Split(line, "\t")
		if len(f) != 4 {
			continue
		}
		size, _ := strconv.ParseInt(f[1], 10, 64)
		seconds, _ := strconv.ParseInt(f[2], 10, 64)
		objects = append(objects, &layout.Object{Name: f[0], Size: size, ModTime: time.Unix(seconds, 0), Version: f[3], Origin: zeros{}})
	}
	return objects
}

// FuzzListing mounts, but for the kernel, whatever a server may list. Each object is in the tree at its path, with figures
// that can be, or a problem names it; and formats can look at all.
func FuzzListing(f *testing.F) {
	for _, text := range []string{
		"a/b\t10\t1\tv\na/c\t20\t2\tw", "a\t-1\t0\tv", "a\t-9223372036854775808\t0\tv", "a\t9223372036854775807\t0\tv\nb\t9223372036854775807\t0\tv",
		"a\t1\t0\tv\na/b\t1\t0\tv", "a\t1\t0\tv\na\t2\t0\tw", "\t1\t0\tv", "../a\t1\t0\tv", "/a\t1\t0\tv", "a//b\t1\t0\tv", "a/\t1\t0\tv", ".\t1\t0\tv",
		"a\x00b\t1\t0\tv", strings.Repeat("n", 300) + "\t1\t0\tv", "a\t1\t9223372036854775807\tv", "a\t1\t-9223372036854775808\tv", "a\t1\t0\t",
		".hbmfs/status\t1\t0\tv\n.hbmfs\t1\t0\tv\ntrain.bin\t72057594037927936\t0\tv\nindex.json\t9\t0\tv", strings.Repeat("d/", 1000) + "f\t1\t0\tv",
		"train.npy\t72057594037927937\t0\tv\nx.tar\t1152921504606846976\t0\tv\na-b\t1\t0\tv\na/b\t1\t0\tv\na.b\t1\t0\tv",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		objects := listed(text)
		given := len(objects)
		l := cache.RemoteListing(objects)
		if leftOut := len(l.Problems); len(l.Objects)+leftOut < given {
			t.Errorf("of %d objects %d are shown and %d are problems", given, len(l.Objects), leftOut)
		}
		m := &Mount{listing: l, control: control.New(control.Options{})}
		m.tree = newTree(m.root, sourceEntries(l, mountpoint.ControlName, m.opt.adopt))
		sum := int64(0)
		for _, o := range l.Objects {
			if sum += o.Size; o.Size < 0 || sum < 0 {
				t.Fatalf("%q has %d bytes, all have %d", o.Name, o.Size, sum)
			}
			if o.Name != mountpoint.ControlName && !strings.HasPrefix(o.Name, mountpoint.ControlName+"/") {
				checkNode(t, m, o)
			}
		}
		if _, err := layout.Index(t.Context(), l.Objects, layout.Options{}); err != nil {
			t.Error(err)
		}
	})
}

// checkNode looks an object up by its path, as the kernel does, and compares what stat says of it.
func checkNode(t *testing.T, m *Mount, o *layout.Object) {
	t.Helper()
	n := m.tree.get(rootNumber)
	for part := range strings.SplitSeq(o.Name, "/") {
		if n == nil || n.kind != kindDir {
			t.Fatalf("%q lies below what is no directory", o.Name)
		}
		n, _ = m.tree.find(n.dir, part)
	}
	if n == nil || n.object != o {
		t.Fatalf("%q is not to be found in the tree", o.Name)
	}
	var a fuse.Attr
	if present, err := n.attr(t.Context(), &a); !present || err != nil {
		t.Fatal(present, err)
	}
	if size := uint64(o.Size); a.Size != size || a.Blocks < size/512 || a.Blocks > size/512+1 || int64(a.Mtime) != o.ModTime.Unix() {
		t.Errorf("%q of %d bytes has %d and %d blocks, and is of %d", o.Name, size, a.Size, a.Blocks, a.Mtime)
	}
}
