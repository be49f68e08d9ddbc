package volume_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// small mounts a small ext4 on a loop device.
func small(t *testing.T) string {
	t.Helper()
	image, point := suite.NewDir(t)+"/image", suite.NewDir(t)
	blackbox.Must(t, errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 24<<20)))
	for _, words := range [][]string{{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, point}} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Skipf("needs a loop device and mkfs.ext4: %v: %s", err, out)
		}
	}
	t.Cleanup(func() { blackbox.Must(t, unix.Unmount(point, 0)) })
	return point
}

// TestFullDisk: programs get ENOSPC as on the disk itself, what is published stays, and once there is room all goes on.
func TestFullDisk(t *testing.T) {
	v := mount(t) // skips where nothing can be mounted
	v.End(t)
	disk := small(t)
	v = mountAt(t, disk)
	v.Draft(t, "done", map[string]string{"file": "bytes"})
	blackbox.Must(t, v.Publish("done"))
	dir := v.Draft(t, "step", map[string]string{"file": "bytes"})
	f, err := os.Create(dir + "/big")
	blackbox.Must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 1<<20))
	}
	volumetest.Want(t, "write", err, unix.ENOSPC)
	for err = nil; err == nil; { // to the last block
		_, err = f.Write(make([]byte, 4096))
	}
	volumetest.Want(t, "write", err, unix.ENOSPC)
	blackbox.Must(t, f.Close())
	volumetest.Want(t, "allocate", func() error {
		fd, err := unix.Open(dir+"/file", unix.O_RDWR|unix.O_CLOEXEC, 0)
		blackbox.Must(t, err)
		defer func() { _ = unix.Close(fd) }()
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, 20<<20)
	}(), unix.ENOSPC)
	if err := v.Publish("step"); err == nil {
		t.Log("there was room for the manifest")
	} else {
		volumetest.Want(t, "publish", err, unix.ENOSPC)
		if text, err := os.ReadFile(dir + "/file"); err != nil || string(text) != "bytes" {
			t.Errorf("after it the draft has %q, %v", text, err)
		}
		if _, err := os.Stat(v.Path("step")); !os.IsNotExist(err) {
			t.Errorf("after it there is a checkpoint: %v", err)
		}
		blackbox.Must(t, os.Remove(dir+"/big"))
		blackbox.Must(t, v.Publish("step"))
	}
	for _, name := range []string{"done", "step"} {
		if code, out, errs := run(t, "checkpoint", "verify", disk+"/"+name); code != 0 {
			t.Errorf("verify %s: %d %s%s", name, code, out, errs)
		}
	}
	blackbox.Must(t, os.Remove(v.Path("step")))
	if !strings.Contains(strings.Join(volumetest.Listed(t, v.Point), " "), "done") {
		t.Error("what was published is gone")
	}
	v.End(t)
}
