package mount_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// TestMountUponAMount has something else mounted on the mount point already, which is there again afterwards.
func TestMountUponAMount(t *testing.T) {
	blackbox.NeedFUSE(t)
	blackbox.NeedRoot(t)
	source, _ := mounttest.ShardedTokens(t, suite, 1, 1000)
	point := suite.NewDir(t)
	must(t, unix.Mount("below", point, "tmpfs", 0, ""))
	t.Cleanup(func() {
		for unix.Unmount(point, unix.MNT_DETACH) == nil { // all that is there, where the test failed
		}
	})
	r := run(t, "mount", "-o", "fsname=a-name", source, point)
	if r.Code != 0 {
		t.Fatalf("mount: %s", r.Stderr)
	}
	if err := mounttest.CompareTrees(source, point); err != nil {
		t.Error(err)
	}
	if r := run(t, "mount", source, point); r.Code == 0 || !strings.Contains(r.Stderr, "already") {
		t.Errorf("a second time: exit code %d, %s", r.Code, r.Stderr)
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if !strings.Contains(string(table), " - fuse.hbmfs a-name ") {
		t.Errorf("the name that was asked for is not in the mount table")
	}
	if r := run(t, "umount", point); r.Code != 0 {
		t.Fatalf("umount: %s", r.Stderr)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(point, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Errorf("what is there now is of type %x, %v", st.Type, err)
	}
}
