package drain

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
)

// identity is the name that a drain of the directory has.
func identity(t *testing.T, dir string) string {
	t.Helper()
	s, err := openState(dir)
	must(t, err)
	defer s.close()
	return s.volume
}

// TestIdentityThatCannotBeRead: the next start that can read it has the same one.
func TestIdentityThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	was, file := identity(t, dir), filepath.Join(dir, StateName, volumeName)
	must(t, os.Rename(file, file+".moved"))
	must(t, os.Symlink(volumeName, file)) // it leads to itself
	if s, err := openState(dir); !errors.Is(err, unix.ELOOP) {
		t.Errorf("the error is %v, the state %+v", err, s)
	}
	must(t, os.Rename(file+".moved", file))
	if now := identity(t, dir); now != was {
		t.Errorf("it was %s and is %s", was, now)
	}
	must(t, os.WriteFile(file, nil, 0o600))
	if now := identity(t, dir); now == was || len(now) != len(was) {
		t.Errorf("from an empty file, it was %s and is %s", was, now)
	}
}

// TestIdentityAfterPowerLoss: the place at the destination may have been marked with it.
func TestIdentityAfterPowerLoss(t *testing.T) {
	blackbox.NeedRoot(t)
	d := powerloss.New(t, t.TempDir(), t.TempDir())
	was := identity(t, d.Dir)
	images, dir := d.Losses(t), t.TempDir()
	powerloss.Mount(t, images[len(images)-1], dir)
	if now := identity(t, dir); now != was {
		t.Errorf("it was %s and is %s", was, now)
	}
}
