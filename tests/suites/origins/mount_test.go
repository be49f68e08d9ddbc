package origins_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// TestGoldenDatasets reads every golden dataset through every origin: cold, warm, and after the daemon was killed; files
// and views; through the kernel and by extents.
func TestGoldenDatasets(t *testing.T) {
	blackbox.NeedFUSE(t)
	files := goldenFiles(t)
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		s.PutAll(t, files)
		files := shown(t, files)
		views := viewsOfCopy(t, s, files)
		cached := suite.NewDir(t)
		flags := []string{"--cache-dir", cached, sitetest.SegmentFlag}
		m := servers.Mount(t, s.Source, "", flags...)
		for _, e := range m.Extents(t, "large/train.bin").Extents {
			if e.Path != "" || !slices.Equal(e.Flags, []string{"pending"}) {
				t.Errorf("nothing was read, and %d bytes at %d lie in %q, %q", e.Length, e.Logical, e.Path, e.Flags)
			}
		}
		byExtents := sitetest.Sum("large/train.bin", files["large/train.bin"])
		for path, hash := range views {
			if filepath.Base(path) == "tokens.npy" {
				byExtents[filepath.Join(".hbmfs", "views", path)] = hash
			}
		}
		m.ReadByExtents(t, byExtents)
		check := func(m *sitetest.Mounted) {
			t.Helper()
			m.Compare(t, files)
			if got := m.Views(t); !maps.Equal(got, views) {
				t.Errorf("%d views, not all of them as in a mount of the same files here, which has %d", len(got), len(views))
			}
		}
		check(m)
		m.Settled(t)
		before := s.Asked()
		for m := range twice(t, s, m, flags) {
			m.ReadByExtents(t, byExtents)
			lies := m.Extents(t, "large/train.bin")
			for i, e := range lies.Extents {
				if e.Path == "" || len(e.Flags) > 0 || e.Logical != int64(i)*sitetest.Segment || e.Length != min(sitetest.Segment, lies.Size-e.Logical) {
					t.Errorf("extent %d of what is here: %d bytes at %d in %q", i, e.Length, e.Logical, e.Path)
				}
			}
			check(m)
			if st := m.Status(t); st.Passthrough.On && st.Counters.PassthroughOpens == 0 {
				t.Error("nothing was opened with passthrough, although all is here")
			}
		}
		if after := s.Asked(); len(after) != len(before) {
			t.Errorf("what was here was asked for again: %v", after[len(before):])
		}
	})
}

// twice yields a mount, and the one that follows when its daemon was killed.
func twice(t *testing.T, s *sitetest.Site, m *sitetest.Mounted, flags []string) func(func(*sitetest.Mounted) bool) {
	return func(yield func(*sitetest.Mounted) bool) {
		if !yield(m) {
			return
		}
		m.Kill(t)
		yield(servers.Mount(t, s.Source, m.Point, flags...))
	}
}

// viewsOfCopy are the views of the same files in a directory.
func viewsOfCopy(t *testing.T, s *sitetest.Site, files map[string][]byte) map[string][32]byte {
	t.Helper()
	root := suite.NewDir(t)
	for name, data := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, data, 0o644))
	}
	if s.Indexed {
		must(t, os.WriteFile(filepath.Join(root, "index.json"), sitetest.Index(t, root), 0o644))
	}
	return servers.Mount(t, root, "").Views(t)
}

// TestWithoutCache mounts a remote source that is kept nowhere.
func TestWithoutCache(t *testing.T) {
	blackbox.NeedFUSE(t)
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		files := map[string][]byte{"train.bin": sitetest.Tokens(1 << 20), "val.bin": sitetest.Tokens(1000), "empty": {}}
		s.PutAll(t, files)
		m := servers.Mount(t, s.Source, "")
		m.Compare(t, files)
		m.ReadByExtents(t, sitetest.Sum("train.bin", files["train.bin"]))
	})
}

// goldenFiles are all golden datasets, and one that is larger than a segment of these tests.
func goldenFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	const root = "../../data/testdata"
	must(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	}))
	files["large/train.bin"] = sitetest.Tokens(3 << 20)
	return files
}
