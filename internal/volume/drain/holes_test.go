package drain

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// sparse publishes a checkpoint with a sparse file, whose first and last byte are 1, and an empty directory.
func sparse(t *testing.T, dir, name string, size int64) {
	t.Helper()
	d, err := checkpoint.Begin(t.Context(), filepath.Join(dir, name), checkpoint.Part{Of: 1})
	must(t, err)
	defer func() { must(t, d.Drop()) }()
	f, err := os.Create(filepath.Join(d.Dir(), "file"))
	must(t, err)
	_, first := f.WriteAt([]byte{1}, 0)
	_, last := f.WriteAt([]byte{1}, size-1)
	must(t, errors.Join(first, last, f.Close(), os.MkdirAll(filepath.Join(d.Dir(), "dir/empty"), 0o755)))
	must(t, d.PublishAll(t.Context(), checkpoint.SealOptions{}))
}

// TestHoles: what lies in holes arrives as zeros. A checkpoint of which far more would be sent than it has is refused before anything is, and others are sent.
func TestHoles(t *testing.T) {
	s, dir := newStore(t), t.TempDir()
	const small = 40*mib + 5
	sparse(t, dir, "a", mostHoles+10*mib)
	sparse(t, dir, "b", small)
	got := once(t, dir, s.url("run"), fast())
	if got["b"] != Remote || !strings.HasPrefix(got["a"], Failed) || !strings.Contains(got["a"], "64 GiB in holes") {
		t.Errorf("the states are %v", got)
	}
	want := make([]byte, small)
	want[0], want[small-1] = 1, 1
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects["run/b/file"]; o == nil || !bytes.Equal(o.data, want) {
		t.Error("object b/file is not the file")
	}
	for name := range s.objects {
		if strings.HasPrefix(name, "run/a/") {
			t.Errorf("%s was sent", name)
		}
	}
	if o := s.objects["run/b/"+checkpoint.ManifestName]; o == nil || !bytes.Contains(o.data, []byte(`"empty_directories":["dir/empty"]`)) {
		t.Error("the manifest has not the empty directory")
	}
}
