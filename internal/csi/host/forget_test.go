package host

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// stage stages a volume of the node's data as kubelet does, and returns where.
func (n *node) stage(id string, attributes ...string) string {
	n.Helper()
	path := n.kubelet("plugins/" + id + "/globalmount")
	n.must(os.MkdirAll(path, 0o755))
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	n.must(n.stageAt(ctx, id, path, attributes...))
	return path
}

// unstage ends the staging of a volume.
func (n *node) unstage(id, path string) error {
	_, err := n.service().NodeUnstageVolume(n.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})
	return err
}

// stagedIDs are the volume ids that the host has staged.
func (n *node) stagedIDs() (ids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range n.volumes {
		for id := range v.rec.Staged {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// recovered waits until the host has gone on with every volume.
func (n *node) recovered() {
	n.Helper()
	n.mu.Lock()
	volumes := slices.Collect(maps.Values(n.volumes))
	n.mu.Unlock()
	for _, v := range volumes {
		n.must(v.acquire(n.Context()))
		v.unlock()
	}
}

// TestStagedBelowADirectoryThatWasWiped has kubelet's directory wiped without a word to the host. The next host forgets what
// was staged there, unless a pod has the volume, and where it cannot know.
func TestStagedBelowADirectoryThatWasWiped(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	gone, used, kept := n.stage("gone", "umask", "007"), n.stage("used"), n.stage("kept", "umask", "027")
	n.must(n.publish("used", "p"))
	n.endHost()
	n.must(os.RemoveAll(filepath.Dir(gone)))
	n.must(os.RemoveAll(filepath.Dir(used)))
	n.startHost()
	n.recovered()
	if ids := n.stagedIDs(); !slices.Equal(ids, []string{"kept", "used"}) {
		t.Errorf("%q are staged, want kept and used", ids)
	}
	n.within("each has a daemon, and nobody else", func() bool { return len(n.daemons()) == 2 })
	if !n.reads(n.target("p"), "a.bin") {
		t.Error("the pod does not read its volume")
	}
	n.must(n.unpublish("used", "p"))
	n.endHost()
	n.must(os.Rename(n.kubelet(""), n.kubelet("")+".away")) // as where kubelet's disk is not mounted
	n.startHost()
	n.recovered()
	if ids := n.stagedIDs(); !slices.Equal(ids, []string{"kept", "used"}) {
		t.Errorf("without kubelet's directory %q stay staged, want kept and used", ids)
	}
	n.endHost()
	n.must(os.Rename(n.kubelet("")+".away", n.kubelet("")))
	n.must(os.RemoveAll(filepath.Dir(kept)))
	n.startHost()
	n.recovered()
	n.within("no daemon is left", func() bool { return len(n.daemons()) == 0 })
	n.clean()
}
