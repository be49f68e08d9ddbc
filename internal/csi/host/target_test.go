package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

// TestTargetsWithStrangeNames has volumes shown wherever a directory can be, and refused, without a trace, where none can.
func TestTargetsWithStrangeNames(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	pods := n.kubelet("pods")
	deep := filepath.Join(append([]string{pods}, strings.Split(strings.Repeat("a directory/", 60), "/")...)...)
	n.must(os.MkdirAll(deep, 0o755))
	n.must(os.WriteFile(filepath.Join(pods, "file"), nil, 0o644))
	n.must(os.Symlink("loop", filepath.Join(pods, "loop")))
	for what, target := range map[string]string{
		"as long as a name may be": filepath.Join(pods, strings.Repeat("x", 255)),
		"far down":                 filepath.Join(deep, "mount"),
		"with a space":             filepath.Join(pods, "a b"),
		"with a line break":        filepath.Join(pods, "a\nb\tc"),
		"with a backslash":         filepath.Join(pods, `a\040b`),
		"not in UTF-8":             filepath.Join(pods, "\xff\xfe"),
	} {
		if err := n.publishAt(patience, "v", target); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		n.must(n.publishAt(patience, "v", target)) // kubelet asks again
		if !n.reads(target, "a.bin") {
			t.Errorf("%s: the volume is not seen", what)
		}
		if err := n.unpublishAt("v", target); err != nil {
			t.Errorf("%s: unpublish: %v", what, err)
		}
	}
	for what, target := range map[string]string{
		"a name that is too long":        filepath.Join(pods, strings.Repeat("x", 300)),
		"a path that is too long":        filepath.Join(pods, strings.Repeat("x/", 2100)+"mount"),
		"a directory of too long a name": filepath.Join(pods, strings.Repeat("x", 300), "mount"),
		"below a file":                   filepath.Join(pods, "file", "mount"),
		"below a link to itself":         filepath.Join(pods, "loop", "mount"),
		"below nothing":                  filepath.Join(pods, "nothing", "mount"),
		"a NUL":                          filepath.Join(pods, "a\x00b"),
	} {
		n.code(n.publishAt(patience, "v", target), codes.InvalidArgument, "target path")
		for range 2 {
			if err := n.unpublishAt("v", target); err != nil {
				t.Errorf("%s: unpublish: %v", what, err)
			}
		}
		n.mu.Lock()
		known := len(n.volumes)
		n.mu.Unlock()
		if d := n.daemons(); known != 0 || len(d) != 0 {
			t.Errorf("%s: %d volumes are recorded, daemons %v run", what, known, d)
		}
	}
	n.must(os.RemoveAll(pods))
	n.must(os.Mkdir(pods, 0o755))
	n.clean()
}

// TestRecordOfATargetThatCannotBe has a host of an earlier version leave the record of a target that no system call takes.
func TestRecordOfATargetThatCannotBe(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.must(n.publish("v", "p"))
	n.mu.Lock()
	var v *nodeVolume
	for _, v = range n.volumes {
		v.rec.publish(n.kubelet("pods/"+strings.Repeat("x", 300)), pod{VolumeID: "v"})
		v.rec.publish(n.kubelet("pods/p/gone/mount"), pod{VolumeID: "v"})
	}
	n.must(v.save())
	n.mu.Unlock()
	n.must(os.WriteFile(n.kubelet("pods/p/gone"), nil, 0o644)) // where a directory was
	n.endHost()
	n.startHost()
	n.recovered()
	if !n.reads(n.target("p"), "a.bin") {
		t.Error("the pod lost its volume")
	}
	n.must(n.unpublish("v", "p"))
	n.must(os.Remove(n.kubelet("pods/p/gone")))
	n.clean()
}
