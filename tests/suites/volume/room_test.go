package volume_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/volume/volumetest"
)

// TestFullDiskRefusesDrafts: a draft that would fail in its middle is not begun, and the status says why. Drafts that are there go on.
func TestFullDiskRefusesDrafts(t *testing.T) {
	v := mount(t) // skips where nothing can be mounted
	v.End(t)
	v = mountAt(t, small(t))
	dir := v.Draft(t, "step-1", map[string]string{"file": "bytes"})
	f, err := os.Create(dir + "/big")
	blackbox.Must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	volumetest.Want(t, "write", err, unix.ENOSPC)
	blackbox.Must(t, f.Close())
	volumetest.Want(t, "mkdir", os.Mkdir(v.Path("step-2.tmp"), 0o755), unix.ENOSPC)
	v.Said(t, "is full")
	blackbox.Must(t, os.Remove(dir+"/big"))
	blackbox.Must(t, v.Publish("step-1"))
	blackbox.Must(t, os.Mkdir(v.Path("step-2.tmp"), 0o755))
	v.End(t)
}
