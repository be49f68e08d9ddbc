package volume_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// onXFS mounts a volume on an XFS of a loop device, whose files may have any size and holes.
func onXFS(t *testing.T, flags ...string) *volumetest.Volume {
	t.Helper()
	return onLoop(t, []string{"mkfs.xfs", "-q", "-m", "reflink=1"}, flags...)
}

// onLoop mounts a volume on a filesystem of a loop device.
func onLoop(t *testing.T, mkfs []string, flags ...string) *volumetest.Volume {
	t.Helper()
	blackbox.NeedRoot(t)
	image, disk := filepath.Join(suite.NewDir(t), "image"), suite.NewDir(t)
	blackbox.Must(t, errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<30)))
	for _, words := range [][]string{append(mkfs, image), {"mount", "-o", "loop", image, disk}} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs a loop device and %s: %v: %s", mkfs[0], err, out)
		}
	}
	t.Cleanup(func() { blackbox.Must(t, unix.Unmount(disk, 0)) })
	blackbox.Must(t, os.Chmod(disk, 0o777))
	return mountAt(t, disk, flags...)
}

// sparse makes a file of a size, with a byte at each of these places.
func sparse(t *testing.T, name string, size int64, at ...int64) {
	t.Helper()
	f, err := os.Create(name)
	blackbox.Must(t, err)
	blackbox.Must(t, f.Truncate(size))
	for _, place := range at {
		_, err := f.WriteAt([]byte{1}, place)
		blackbox.Must(t, err)
	}
	blackbox.Must(t, f.Close())
}

// TestHugeFiles: sizes that no manifest has room for are refused before any work, and what is in holes is no work.
func TestHugeFiles(t *testing.T) {
	v := onXFS(t)
	daemon := v.PID(t)
	dir := v.Draft(t, "huge", nil)
	sparse(t, dir+"/file", 7<<60)
	volumetest.Want(t, "publish 7 EiB", v.Publish("huge"), unix.EINVAL)
	v.Said(t, "cut it")
	blackbox.Must(t, os.Remove(dir+"/file"))
	for _, name := range []string{"a", "b", "c", "d"} {
		sparse(t, dir+"/"+name, 20<<40)
	}
	volumetest.Want(t, "publish 80 TiB", v.Publish("huge"), unix.EINVAL)
	v.Said(t, "publish it in parts")
	for _, name := range []string{"a", "b", "c", "d"} {
		blackbox.Must(t, os.Remove(dir+"/"+name))
	}
	const size = 1 << 40
	sparse(t, dir+"/file", size, 0, size/2, size-1)
	blackbox.Must(t, v.Publish("huge")) // reading it takes minutes
	for _, name := range []string{v.Dir + "/huge/file", v.Path("huge", "file")} {
		f, err := os.Open(name)
		blackbox.Must(t, err)
		data, dataErr := f.Seek(size/4, unix.SEEK_DATA)
		hole, holeErr := f.Seek(size/2, unix.SEEK_HOLE)
		blackbox.Must(t, errors.Join(dataErr, holeErr, f.Close()))
		if data != size/2 || hole <= data || hole > data+1<<20 {
			t.Errorf("%s has data at %d and a hole at %d", name, data, hole)
		}
	}
	if code, out, errs := run(t, "checkpoint", "verify", v.Dir+"/huge"); code != 0 {
		t.Errorf("verify: %d %s%s", code, out, errs)
	}
	if now := v.PID(t); now != daemon {
		t.Errorf("the daemon is process %d, and was %d", now, daemon)
	}
}
