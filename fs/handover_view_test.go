package fs

import (
	"bytes"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
)

// savingViews are those of two files, and a view of their bytes behind a header, as an earlier daemon has told of it.
func savingViews() (*toldViews, *node, *layout.File) {
	v := &toldViews{listing: &cache.Listing{Objects: []*layout.Object{layout.Bytes("a", make([]byte, 100)), layout.Bytes("b", make([]byte, 1000))}}, told: map[uint64]told{}}
	f := &layout.File{ModTime: time.Unix(7, 8), DType: 3, Tokens: -1}
	f.Body.Add(layout.Inline([]byte("header")), 0, 6)
	f.Body.Add(v.listing.Objects[0], 10, 90)
	f.Body.AddStrided(v.listing.Objects[1], 4, 8, 16, 50)
	n := &node{name: "tokens.npy", kind: kindView, perm: 0o440, uid: 5, gid: 6, ino: 1 << 60, modTime: time.Unix(9, 10), view: &lazyView{number: 12}}
	v.told[n.ino] = told{f.Size(), bodySum(&f.Body)}
	return v, n, f
}

func TestSavedViewComesBack(t *testing.T) {
	v, n, f := savingViews()
	b, ok := v.encode(n, f)
	if !ok {
		t.Fatal("it cannot be saved")
	}
	got := v.decode(b)
	if got == nil {
		t.Fatal("it does not come back")
	}
	file := got.view.file
	if got.name != n.name || got.perm != n.perm || got.uid != 5 || got.gid != 6 || got.ino != n.ino || !got.modTime.Equal(n.modTime) || got.view.number != 12 ||
		file.DType != f.DType || file.Tokens != -1 || !file.ModTime.Equal(f.ModTime) || bodySum(&file.Body) != bodySum(&f.Body) {
		t.Errorf("%+v with %+v came back", got, file)
	}
	head := make([]byte, 6)
	if _, err := file.Body.ReadAt(t.Context(), head, 0); err != nil || !bytes.Equal(head, []byte("header")) {
		t.Errorf("its header is %q, %v", head, err)
	}
	for i := range b {
		if v.decode(b[:i]) != nil {
			t.Errorf("%d of %d bytes are taken for a view", i, len(b))
		}
	}
	v.told[n.ino] = told{f.Size(), 1}
	if v.decode(b) != nil {
		t.Error("a view that is not what was told is taken")
	}
	f.Body.Add(layout.Bytes("elsewhere", make([]byte, 10)), 0, 10)
	if _, ok := v.encode(n, f); ok {
		t.Error("a view of a file that is not listed is saved")
	}
}

func FuzzSavedView(f *testing.F) {
	v, n, file := savingViews()
	b, _ := v.encode(n, file)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := v.decode(b); got != nil && (got.view.file.Size() != file.Size() || got.ino != n.ino) {
			t.Errorf("%+v is taken for what was told", got)
		}
	})
}
