package origins_test

import (
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

const (
	segment     = 2 << 20
	segmentFlag = "--cache-segment=2MiB"
)

// TestGoldenDatasets reads every golden dataset through every origin: cold, warm, and after the daemon was killed; files
// and views; through the kernel and by extents.
func TestGoldenDatasets(t *testing.T) {
	blackbox.NeedFUSE(t)
	files := goldenFiles(t)
	onEverySite(t, func(t *testing.T, s *site) {
		s.putAll(t, files)
		files := shown(t, files)
		views := viewsOfCopy(t, s, files)
		cached := suite.NewDir(t)
		flags := []string{"--cache-dir", cached, segmentFlag}
		m := mount(t, s.source, "", flags...)
		for _, e := range m.extents(t, "large/train.bin").Extents {
			if e.Path != "" || !slices.Equal(e.Flags, []string{"pending"}) {
				t.Errorf("nothing was read, and %d bytes at %d lie in %q, %q", e.Length, e.Logical, e.Path, e.Flags)
			}
		}
		byExtents := sum("large/train.bin", files["large/train.bin"])
		for path, hash := range views {
			if filepath.Base(path) == "tokens.npy" {
				byExtents[filepath.Join(".hbmfs", "views", path)] = hash
			}
		}
		m.readByExtents(t, byExtents)
		check := func(m *mounted) {
			t.Helper()
			m.compare(t, files)
			if got := m.views(t); !maps.Equal(got, views) {
				t.Errorf("%d views, not all of them as in a mount of the same files here, which has %d", len(got), len(views))
			}
		}
		check(m)
		m.settled(t)
		before := s.asked()
		for m := range twice(t, s, m, flags) {
			m.readByExtents(t, byExtents)
			lies := m.extents(t, "large/train.bin")
			for i, e := range lies.Extents {
				if e.Path == "" || len(e.Flags) > 0 || e.Logical != int64(i)*segment || e.Length != min(segment, lies.Size-e.Logical) {
					t.Errorf("extent %d of what is here: %d bytes at %d in %q", i, e.Length, e.Logical, e.Path)
				}
			}
			check(m)
			if st := m.status(t); st.Passthrough.On && st.Counters.PassthroughOpens == 0 {
				t.Error("nothing was opened with passthrough, although all is here")
			}
		}
		if after := s.asked(); len(after) != len(before) {
			t.Errorf("what was here was asked for again: %v", after[len(before):])
		}
	})
}

// twice yields a mount, and the one that follows when its daemon was killed.
func twice(t *testing.T, s *site, m *mounted, flags []string) func(func(*mounted) bool) {
	return func(yield func(*mounted) bool) {
		if !yield(m) {
			return
		}
		m.kill(t)
		yield(mount(t, s.source, m.point, flags...))
	}
}

// viewsOfCopy are the views of the same files in a directory.
func viewsOfCopy(t *testing.T, s *site, files map[string][]byte) map[string][32]byte {
	t.Helper()
	root := suite.NewDir(t)
	for name, data := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, data, 0o644))
	}
	if s.indexed {
		must(t, os.WriteFile(filepath.Join(root, "index.json"), siteIndex(t, root), 0o644))
	}
	return mount(t, root, "").views(t)
}

// TestHalfFilled kills a daemon while a segment is being filled. Of what was published, nothing is fetched again; of the
// rest, nothing is believed.
func TestHalfFilled(t *testing.T) {
	blackbox.NeedFUSE(t)
	onEverySite(t, func(t *testing.T, s *site) {
		data := tokens(5 << 20)
		s.putAll(t, map[string][]byte{"train.bin": data})
		cached := suite.NewDir(t)
		flags := []string{"--cache-dir", cached, segmentFlag}
		const good = 3 * segment // from there on, answers stop in the middle
		s.setFault(func(_ int, a asked) fault {
			if a.from >= good {
				return stall
			}
			return none
		})
		m := mount(t, s.source, "", flags...)
		f, err := os.Open(m.Path("train.bin"))
		must(t, err)
		got := make([]byte, good)
		if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, data[:good]) {
			t.Errorf("the first %d bytes: %v, or other bytes", good, err)
		}
		if !blackbox.Within(patience, func() bool { return m.status(t).Cache.Segments >= 3 }) {
			t.Fatalf("3 segments were read, %+v", m.status(t).Cache)
		}
		m.kill(t)
		_ = f.Close() // its mount is dead
		published := publishedIn(t, cached)
		if len(published) < 3 {
			t.Errorf("%d segments were published, want 3", len(published))
		}
		before := len(s.asked())
		s.setFault(nil)
		again := mount(t, s.source, m.point, flags...)
		again.compare(t, map[string][]byte{"train.bin": data})
		s.notAgain(t, published, before)
		if len(s.asked()) == before {
			t.Error("a segment that was half filled was believed")
		}
	})
}

// TestWithoutCache mounts a remote source that is kept nowhere.
func TestWithoutCache(t *testing.T) {
	blackbox.NeedFUSE(t)
	onEverySite(t, func(t *testing.T, s *site) {
		files := map[string][]byte{"train.bin": tokens(1 << 20), "val.bin": tokens(1000), "empty": {}}
		s.putAll(t, files)
		m := mount(t, s.source, "")
		m.compare(t, files)
		m.readByExtents(t, sum("train.bin", files["train.bin"]))
	})
}
