package cufile

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/source"
)

// scattered is a file whose bytes lie in files of a folder, one byte in each. It counts those that are open.
type scattered struct {
	dir   string
	files []*source.Backing
	now   atomic.Int64
	peak  atomic.Int64
}

func newScattered(t *testing.T, n int) *scattered {
	t.Helper()
	s := &scattered{dir: t.TempDir()}
	for i := range n {
		s.files = append(s.files, source.Lent(s, uint64(i+1), "", uint64(i), int64(i), false))
		must(t, os.WriteFile(s.path(uint64(i)), []byte{byte(i)}, 0o644))
	}
	return s
}

func (s *scattered) path(object uint64) string {
	return filepath.Join(s.dir, strconv.FormatUint(object, 10))
}

func (s *scattered) Open(_ context.Context, files []*source.Backing) ([]*source.Backing, error) {
	for _, b := range files {
		fd, err := source.OpenFile(s.path(b.Object))
		if err != nil {
			return nil, err
		}
		if err := b.Adopt(fd); err != nil {
			return nil, err
		}
		s.peak.Store(max(s.peak.Load(), s.now.Add(1))) // openers take turns
	}
	return nil, nil
}

func (s *scattered) Release(_ context.Context, files []*source.Backing) {
	s.now.Add(-int64(len(files)))
}

func (s *scattered) Runs(context.Context, []source.Span) ([]source.Run, error) {
	var list []source.Run
	for i := range s.files {
		list = append(list, source.Run{Logical: int64(i), Length: 1, Object: uint64(i), Stride: 1, Count: 1})
	}
	return list, nil
}
func (s *scattered) Backing(r *source.Run) *source.Backing { return s.files[r.Object] }
func (s *scattered) Backings() []*source.Backing           { return s.files }
func (s *scattered) Unshare() []*source.Backing            { return s.files }
func (s *scattered) Size() int64                           { return int64(len(s.files)) }
func (s *scattered) Close() error                          { return nil }

func TestReadOfMoreFilesThanMayBeOpen(t *testing.T) {
	everyPath(t, func(t *testing.T, o Options) {
		const n = 100
		s := newScattered(t, n)
		o.Descriptors = 6
		r := newReader(t, o)
		if r.mapped != nil {
			r.mapped.LimitFiles(8)
		}
		f := r.add("scattered", s, "")
		defer func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if slices.ContainsFunc(s.files, func(b *source.Backing) bool { return b.FD >= 0 }) {
				t.Error("a file is open after Close")
			}
		}()
		for range 2 {
			v, err := f.Read(t.Context(), 0, n)
			if err != nil {
				t.Fatal(err)
			}
			if v.Moved().Total() != n {
				t.Errorf("moved %+v, want %d bytes", v.Moved(), n)
			}
			for i, b := range content(t, v) {
				if b != byte(i) {
					t.Fatalf("byte %d is %d by %s", i, b, v.Choice().Path)
				}
			}
		}
		offsets := []int64{99, 3, 50, 3, 0, 77, 12, 98, 5, 61, 60}
		v, err := f.Gather(t.Context(), offsets, 1)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range content(t, v) {
			if int64(b) != offsets[i] {
				t.Errorf("span %d brought %d, want %d", i, b, offsets[i])
			}
		}
		if err := f.Plain(t.Context(), 0, n); err != nil {
			t.Error(err)
		}
		if peak := s.peak.Load(); peak > 6 {
			t.Errorf("%d files were open at once, at most 6 may be", peak)
		}
		if r.mapped != nil && r.mapped.Files() > 8 {
			t.Errorf("%d files are mapped, at most 8 should be", r.mapped.Files())
		}
	})
}
