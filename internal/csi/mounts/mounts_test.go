package mounts

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// table is a mount table: what lies upon what is in the parents, and not in the order of the lines.
const table = `1 0 8:1 / / rw - ext4 /dev/sda rw
20 1 0:50 / /v ro - fuse.hbmfs hbmfs-csi:1:a ro
19 20 0:51 / /v ro - fuse.hbmfs hbmfs-csi:1:a ro
21 1 0:50 / /pod\040one ro - fuse.hbmfs hbmfs-csi:1:a ro
22 1 0:50 /sub /sub rw - fuse.hbmfs hbmfs-csi:1:a ro
23 22 0:60 / /sub/tmp rw - tmpfs tmpfs rw
24 1 0:52 / /other ro - fuse.hbmfs hbmfs-csi:1:b ro
25 1 0:50 / /state/mnt ro - fuse.hbmfs hbmfs-csi:1:a ro
26 1 0:50 / /tmpfs rw - tmpfs hbmfs-csi:1:a rw
`

func TestDeadMountsOfAVolume(t *testing.T) {
	proc := t.TempDir()
	if err := os.WriteFile(filepath.Join(proc, "mountinfo"), []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := placesIn(proc, dead("hbmfs-csi:1:a", "0:51", "/state/mnt"))
	want := []Sighting{{"/pod one", "/", false}, {"/sub", "/sub", true}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := placesIn(filepath.Join(proc, "gone"), dead("", "", "")); err == nil {
		t.Errorf("of a process that has ended: %v", got)
	}
}

func TestUncovered(t *testing.T) {
	all, err := mountinfo.GetMountsFromReader(strings.NewReader(table), at("/v"))
	if err != nil {
		t.Fatal(err)
	}
	if top := uncovered(all); len(top) != 1 || top[0].ID != 19 {
		t.Errorf("%+v", top)
	}
	if top := uncovered(nil); len(top) > 0 {
		t.Errorf("%+v", top)
	}
}
