package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
)

// TestDiskOfAKVVolume says how much of kubelet's disk a KV volume may take: what it has already counts, and other disks are its own.
func TestDiskOfAKVVolume(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "model"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".hbmfs-kv.free", "model/slab"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const allOfIt = 1 << 60
	spec := func(size int64) volume.Spec { return volume.Spec{Source: dir, KV: true, Size: size} }
	for _, c := range []struct {
		what    string
		kubelet string
		free    int64
		spec    volume.Spec
		want    codes.Code
	}{
		{"a size that has room", dir, 1, spec(3 << 20), codes.OK},
		{"all that stays free", dir, allOfIt, spec(3 << 20), codes.ResourceExhausted},
		{"what it has already", dir, allOfIt, spec(2 << 20), codes.OK},
		{"more than the disk has", dir, 0, spec(allOfIt), codes.ResourceExhausted},
		{"another disk", "/proc", allOfIt, spec(allOfIt), codes.OK},
		{"a dataset", dir, allOfIt, volume.Spec{Source: dir}, codes.OK},
	} {
		h := &Host{opt: Options{KubeletDir: c.kubelet, CacheMinFree: c.free}}
		if err := h.diskFor(c.spec); status.Code(err) != c.want || err != nil && !strings.Contains(err.Error(), "evicts no pods") {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}

// TestHowLongAVolumeStays: until its time is over, and no longer because of a clock that was set back.
func TestHowLongAVolumeStays(t *testing.T) {
	for _, c := range []struct {
		kept time.Duration // from now
		over bool
	}{{time.Minute, false}, {-time.Second, true}, {48 * time.Hour, true}} {
		v := newNodeVolume(&Host{}, "key", record{Spec: volume.Spec{KV: true, KeepFor: time.Hour}, Kept: time.Now().Add(c.kept)})
		if v.keeps() != c.over {
			t.Errorf("%v before its end a volume is over: %v", c.kept, !c.over)
		}
	}
	r := record{Spec: volume.Spec{KV: true, KeepFor: time.Hour}, Published: map[string]pod{"/t": {}}}
	if r.mayLinger(); r.lingering() {
		t.Error("a volume lingers that a pod has")
	}
	delete(r.Published, "/t")
	if r.mayLinger(); r.over() || time.Until(r.Kept) > time.Hour {
		t.Errorf("%+v", r)
	}
	if r.noLinger(); !r.over() {
		t.Error("a volume lingers that need not")
	}
}
