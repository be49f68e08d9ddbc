package volume_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDiskRefusesDrafts: a draft that would fail in its middle is not begun, and the status says why. Drafts that are there go on.
func TestFullDiskRefusesDrafts(t *testing.T) {
	v := mount(t) // skips where nothing can be mounted
	v.end(t)
	v = mountAt(t, small(t))
	dir := v.draft(t, "step-1", map[string]string{"file": "bytes"})
	f, err := os.Create(dir + "/big")
	must(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	want(t, "write", err, unix.ENOSPC)
	must(t, f.Close())
	want(t, "mkdir", os.Mkdir(v.Path("step-2.tmp"), 0o755), unix.ENOSPC)
	v.said(t, "is full")
	must(t, os.Remove(dir+"/big"))
	must(t, v.publish("step-1"))
	must(t, os.Mkdir(v.Path("step-2.tmp"), 0o755))
	v.end(t)
}
