package cachedir

import (
	"context"
	"encoding/hex"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// zeros gives objects of zero bytes.
type zeros struct{}

func (zeros) Fetch(_ context.Context, _ *layout.Object, _, n int64, sink func([]byte) error) error {
	return sink(make([]byte, n))
}

func (zeros) ReadAt(_ context.Context, _ *layout.Object, p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// TestVerifyHashes has an object with the MD5 of its source, one with another MD5, and one of which a segment is missing. Mounts do not compare MD5s.
func TestVerifyHashes(t *testing.T) {
	const size = 2<<20 + 1
	right := layout.VersionHash(layout.MD5Version+strings.Repeat("0", 32), size)
	_, err := right.Write(make([]byte, size))
	blackbox.Must(t, err)
	wrong := layout.MD5Version + strings.Repeat("0", 32) + " etag"
	l := cache.RemoteListing([]*layout.Object{
		{Name: "right", Size: size, Version: layout.MD5Version + hex.EncodeToString(right.Sum(nil))},
		{Name: "wrong", Size: size, Version: wrong}, {Name: "partial", Size: size, Version: wrong},
	})
	dir := t.TempDir()
	s, err := store.Open(dir, store.Options{Segment: 1 << 20, MinFree: 1, Size: 1 << 30})
	blackbox.Must(t, err)
	defer func() { blackbox.Must(t, s.Close()) }()
	s.Add("test://", zeros{}, l)
	for _, o := range l.Objects {
		for at := int64(0); at < o.Size; at += 1 << 20 {
			if o.Name == "partial" && at == 1<<20 {
				continue
			}
			if _, err := o.ReadAt(t.Context(), make([]byte, min(1<<20, o.Size-at)), at); err != nil && err != io.EOF {
				t.Error(err)
			}
		}
	}
	blackbox.Within(blackbox.Patience, func() bool { time.Sleep(time.Millisecond); return s.Stats().Filling == 0 })
	blackbox.Must(t, s.Segments(t.Context(), false, func(g store.Segment) error { // which may have come ahead
		if g.Object == "partial" && g.Offset == 1<<20 {
			return s.Remove(g.File)
		}
		return nil
	}))
	found, err := Verify(t.Context(), dir, s, true, func(string, int64, bool) (func(int64), func()) { return func(int64) {}, func() {} })
	blackbox.Must(t, err)
	if found.Segments != 8 || len(found.Damaged) != 3 || found.Removed != 3 {
		t.Errorf("%+v", found)
	}
	for _, g := range found.Damaged {
		if g.Object != "wrong" || !strings.Contains(g.Damage, "the source says 000000") {
			t.Errorf("%+v", g)
		}
	}
	if found, err = Verify(t.Context(), dir, s, false, func(string, int64, bool) (func(int64), func()) { return func(int64) {}, func() {} }); err != nil || len(found.Damaged) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
}
