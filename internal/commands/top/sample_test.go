package top

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestFindsMounts(t *testing.T) {
	got := mountsIn([]*mountinfo.Info{
		{ID: 1, Mountpoint: "/", FSType: "ext4", Root: "/", Major: 8},
		{ID: 2, Mountpoint: "/pod/sub", FSType: "fuse.hbmfs", Root: "/shards", Minor: 50},
		{ID: 3, Mountpoint: "/mnt/b", FSType: "fuse.hbmfs", Root: "/", Minor: 50},
		{ID: 4, Mountpoint: "/pod/b", FSType: "fuse.hbmfs", Root: "/", Minor: 50},
		{ID: 5, Mountpoint: "/mnt/hidden", FSType: "fuse.hbmfs", Root: "/", Minor: 51},
		{ID: 6, Parent: 5, Mountpoint: "/mnt/hidden", FSType: "tmpfs", Root: "/", Minor: 52},
		{ID: 7, Mountpoint: "/mnt/a", FSType: "fuse.hbmfs", Root: "/", Minor: 53},
		{ID: 8, Mountpoint: "/mnt/part", FSType: "fuse.hbmfs", Root: "/shards", Minor: 54},
	})
	var lines []string
	for _, m := range got {
		lines = append(lines, strings.Join(m.Points, " ")+map[bool]string{false: " (a part)"}[m.Whole])
	}
	want := []string{"/mnt/a", "/mnt/b /pod/sub /pod/b", "/mnt/part (a part)"}
	if !slices.Equal(lines, want) {
		t.Errorf("mounts are %q, want %q", lines, want)
	}
}

func TestAnswersOverTheLastBound(t *testing.T) {
	if l := LatencyOf([]int64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5}, nil); l.Slowest != 8.192 || l.P50 != 8.192 {
		t.Errorf("answers over the last bound: %+v", l)
	}
}
