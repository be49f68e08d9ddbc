package decode

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/layout"
)

// TestSizesThatOthersCanForge remembers a size, and lets others have a hand in the file: it is forgotten, and no link is
// followed.
func TestSizesThatOthersCanForge(t *testing.T) {
	o := &layout.Object{Name: "f.zst", Size: 100, Version: "1"}
	for name, c := range map[string]struct {
		forge func(path string) error
		known bool
	}{
		"nobody has":      {func(string) error { return nil }, true},
		"open to all":     {func(path string) error { return os.Chmod(path, 0o606) }, false},
		"open to a group": {func(path string) error { return os.Chmod(path, 0o660) }, false},
		"another's":       {func(path string) error { return os.Chown(path, 4711, -1) }, false},
		"a link to a file": {func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		}, false},
		"a pipe, never opened": {func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) }, false},
	} {
		if name == "another's" && os.Geteuid() != 0 {
			continue
		}
		path := filepath.Join(t.TempDir(), "sizes", "one.json")
		s := openSizes(path)
		s.put(o, 1000)
		if err := errors.Join(s.save(), c.forge(path)); err != nil {
			t.Fatal(err)
		}
		if size, known := openSizes(path).get(o); known != c.known || known && size != 1000 {
			t.Errorf("%s: %d, %v", name, size, known)
		}
	}
}
