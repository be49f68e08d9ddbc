package cache

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hbmfs/hbmfs/layout"
)

// TestSnapshotOfTheHub lists and reads a snapshot in the cache of the Hub's own tools, whose files are links out of it. A link that
// leaves the repository is left out.
func TestSnapshotOfTheHub(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	repo := filepath.Join(t.TempDir(), "models--org--name")
	at := filepath.Join(repo, "snapshots", commit)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(at, "sub"), 0o755))
	must(os.MkdirAll(filepath.Join(repo, "blobs"), 0o755))
	for name, text := range map[string]string{"blobs/aa": "weights", "blobs/bb": "config", "../outside": "secret"} {
		must(os.WriteFile(filepath.Join(repo, name), []byte(text), 0o644))
	}
	for name, target := range map[string]string{"model": "../../blobs/aa", "sub/config": "../../../blobs/bb", "out": "../../../outside", "gone": "../../blobs/cc"} {
		must(os.Symlink(target, filepath.Join(at, name)))
	}
	for dir, want := range map[string]map[string]string{at: {"model": "weights", "sub/config": "config"}, filepath.Join(at, "sub"): {"config": "config"}} {
		d, err := OpenDir(dir, 16)
		must(err)
		check := func(d *Dir, objects []*layout.Object) {
			t.Helper()
			got := map[string]string{}
			for _, o := range objects {
				buf := make([]byte, o.Size)
				n, err := d.ReadAt(t.Context(), o, buf, 0)
				if err != nil || d.Compare(o) != 0 {
					t.Errorf("%s: %v, change %v", o.Name, err, d.Compare(o))
				}
				got[o.Name] = string(buf[:n])
			}
			if len(got) != len(want) {
				t.Errorf("%s lists %v", dir, got)
			}
			for name, text := range want {
				if got[name] != text {
					t.Errorf("%s of %s is %q", name, dir, got[name])
				}
			}
		}
		l, err := d.List(t.Context())
		must(err)
		check(d, l.Objects)
		if dir == at && len(l.Problems) != 2 {
			t.Errorf("problems: %v", l.Problems)
		}
		f, err := d.File()
		must(err)
		again, err := OpenDirAt(f, d.Path(), 16)
		must(err)
		must(f.Close())
		check(again, l.Objects)
		must(again.Close())
		must(d.Close())
	}
}
