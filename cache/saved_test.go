package cache

import (
	"reflect"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

func savedListing() *Listing {
	return &Listing{
		Objects: []*layout.Object{
			{Name: "a/b", Size: 1 << 40, ModTime: time.Unix(-5, 7), Version: "v\n1", Perm: 0o640, UID: 1 << 31, GID: 3, Whole: true},
			{Name: "c", ModTime: time.Unix(1, 0)},
		},
		Dirs:     []DirEntry{{ModTime: time.Unix(2, 3), Perm: 0o755, UID: 1, GID: 2}, {Name: "a"}},
		Links:    []LinkEntry{{"l", "a", time.Unix(4, 5)}},
		Denied:   []Denied{{"d", "why"}},
		Problems: []layout.Problem{{Object: "x", Offset: 9, Detail: "bad"}},
	}
}

// TestListingIsSavedWhole has a listing come back as it was, and every part of its bytes refused.
func TestListingIsSavedWhole(t *testing.T) {
	l := savedListing()
	l.Dirs[1].ModTime = time.Time{}
	b := l.Save(nil)
	got, err := LoadListing(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Dirs[1].ModTime.IsZero() {
		t.Error("a time that is not known has become one")
	}
	got.Dirs[1].ModTime = time.Time{}
	if !reflect.DeepEqual(got, l) {
		t.Errorf("%+v, want %+v", got, l)
	}
	for n := range b {
		if _, err := LoadListing(b[:n], nil); err == nil {
			t.Errorf("%d of %d bytes are taken for a listing", n, len(b))
		}
	}
}

func FuzzLoadListing(f *testing.F) {
	f.Add(savedListing().Save(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := LoadListing(b, nil)
		if err != nil {
			return
		}
		if again, err := LoadListing(l.Save(nil), nil); err != nil || !reflect.DeepEqual(again, l) {
			t.Errorf("a listing changes when it is saved: %v", err)
		}
	})
}
