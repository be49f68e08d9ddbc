package mountpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// What Locate follows, it follows as the kernel does.
func TestLocateFollowsLinksAsTheKernelDoes(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"relative": "a/b", "absolute": filepath.Join(dir, "a"), "up": "a/b/..", "far": "relative/../b", "self": "self", "gone": "nowhere/below",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(dir, "a"))
	for _, path := range []string{
		dir, "/", ".", "..", "b", "b/", "../relative", "../relative/..", "../absolute/b", "../up", "../far/..", "../up/../relative/./",
		filepath.Join(dir, "absolute"), dir + "//far/../../up",
	} {
		place, err := Locate(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		want, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.Lstat(place.Path); err != nil || !os.SameFile(got, want) || !filepath.IsAbs(place.Path) {
			t.Errorf("%s leads to %s (%v)", path, place.Path, err)
		}
		if place.Over != nil {
			t.Errorf("%s lies in the mount at %s", path, place.Over.Mountpoint)
		}
	}
	if place, err := Locate("../gone"); err != nil || place.Path != filepath.Join(dir, "nowhere", "below") {
		t.Errorf("a link that leads nowhere: %v, %v", place, err)
	}
	if _, err := Locate("../self"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link to itself: %v, want ELOOP", err)
	}
}

// Which mount of a place is seen, their parents say, and not their order.
func TestUppermostMount(t *testing.T) {
	root := &mountinfo.Info{ID: 1, Parent: 0, Mountpoint: "/"}
	below := &mountinfo.Info{ID: 9, Parent: 1, Mountpoint: "/mnt"}
	upon := &mountinfo.Info{ID: 5, Parent: 9, Mountpoint: "/mnt"}
	inside := &mountinfo.Info{ID: 7, Parent: 5, Mountpoint: "/mnt/inside"}
	for _, all := range [][]*mountinfo.Info{{root, below, upon, inside}, {inside, upon, below, root}, {root, upon, below, inside}} {
		seen := Uppermost(all)
		if seen["/"] != root || seen["/mnt"] != upon || seen["/mnt/inside"] != inside || len(seen) != 3 {
			t.Errorf("seen are %v", seen)
		}
	}
}
