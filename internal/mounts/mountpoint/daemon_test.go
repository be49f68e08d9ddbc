package mountpoint

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A process is known by the number of its connection where the kernel tells that, and only as one that serves some mount where
// it does not.
func TestConnectionOfAProcess(t *testing.T) {
	for what, c := range map[string]struct {
		link, info   string
		serves, told bool
	}{
		"this mount":      {"/dev/fuse", "pos:\t0\nmnt_id:\t24\nfuse_connection:\t41\n", true, true},
		"another":         {"/dev/fuse", "pos:\t0\nfuse_connection:\t412\n", false, true},
		"an old kernel":   {"/dev/fuse", "pos:\t0\nmnt_id:\t24\n", false, false},
		"no mount":        {"/dev/null", "pos:\t0\nfuse_connection:\t41\n", false, true},
		"not mounted yet": {"/dev/fuse", "fuse_connection:\t\n", false, true},
	} {
		proc := t.TempDir()
		for _, dir := range []string{"fd", "fdinfo"} {
			if err := os.Mkdir(filepath.Join(proc, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(c.link, filepath.Join(proc, "fd", "7")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, "fdinfo", "7"), []byte(c.info), 0o644); err != nil {
			t.Fatal(err)
		}
		fds, told := connections(proc, 41)
		if serves := slices.Equal(fds, []int{7}); serves != c.serves || told != c.told {
			t.Errorf("%s: serves %v, told %v", what, serves, told)
		}
	}
	if fds, told := connections(filepath.Join(t.TempDir(), "gone"), 41); len(fds) > 0 || !told {
		t.Errorf("a process that is gone: descriptors %v, told %v", fds, told)
	}
	if d := DaemonByPID(os.Getpid()); d != nil {
		t.Error("this process serves no mount")
		d.Close()
	}
}
