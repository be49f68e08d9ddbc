package csi_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// TestPods takes pods through their lives: published, read, killed, with a driver that is replaced in the middle, and
// unpublished. All pods of a volume share one daemon, and all can read past it. HBMFS_TEST_LONG has more of them.
func TestPods(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	var pluginFDs, hostFDs int
	for _, count := range []int{1, 8, blackbox.Rounds(12, 50)} {
		v := n.directoryVolume(fmt.Sprint("corpus-", count), files)
		pods := n.startPods(v, count)
		if d := n.daemons(); len(d) != 1 {
			t.Fatalf("%d pods of one volume have %d daemons: %v", count, len(d), d)
		}
		n.parallel(count, func(i int) {
			for _, f := range files {
				if a := pods[i].must("read", f); a.Bytes != int64(f.Size) {
					t.Errorf("read gave %d bytes of %s, which has %d", a.Bytes, f.Name, f.Size)
				}
				if a := pods[i].must("control", f); a.Bytes != int64(f.Size) {
					t.Errorf("the control channel gave %d bytes of %s, which has %d", a.Bytes, f.Name, f.Size)
				}
			}
		})
		for _, p := range pods[:min(2, count)] {
			p.must("map", files[0])
			p.must("hbmfs", files[0])
		}
		n.restartPlugin()
		n.restartHost()
		n.waitReady()
		for _, p := range pods[:count/2] {
			p.kill() // and kubelet takes the volume away later
		}
		for _, p := range pods[count/2:] {
			p.must("read", files[1])
		}
		if d := n.daemons(); len(d) != 1 {
			t.Errorf("after a restart of the driver a volume has %d daemons: %v", len(d), d)
		}
		n.stopPods(pods)
		n.unstage(v)
		n.mustBeClean()
		if count == 1 {
			pluginFDs, hostFDs = fds(t, n.plugin.pid()), fds(t, n.host.pid())
		}
	}
	const spare = 3 // a connection that is about to be closed, Go's own
	if !within(func() bool { return fds(t, n.plugin.pid()) <= pluginFDs+spare && fds(t, n.host.pid()) <= hostFDs+spare }) {
		t.Errorf("the plugin has %d files open and had %d, the host %d and had %d", fds(t, n.plugin.pid()), pluginFDs, fds(t, n.host.pid()), hostFDs)
	}
}

// TestPodNeedsNothing proves that a pod needs no privilege, no hostPath and no further volume to read past the mount.
func TestPodNeedsNothing(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	v := n.directoryVolume("corpus", files)
	p := n.startPod(v, podOptions{})
	facts := p.must("who", file{}).Text
	for _, want := range []string{"CapEff 0000000000000000", "Uid 1000 1000 1000 1000", "uid_map 1000 100001 1", "create: true"} {
		if !strings.Contains(facts, want) {
			t.Errorf("the pod's program is not what this test is about: it lacks %q:\n%s", want, facts)
		}
	}
	for _, name := range []string{"mnt", "pid", "user", "net"} {
		ours, err := os.Readlink("/proc/self/ns/" + name)
		must(t, err)
		if strings.Contains(facts, ours) {
			t.Errorf("the pod is in our namespace %s", ours)
		}
	}
	for _, hidden := range []string{v.attributes["source"], n.state, n.kubelet, suite.Dir, "/dev/fuse"} {
		if a := p.do("see", file{Name: hidden}); a.Error == "" {
			t.Errorf("the pod sees %s", hidden)
		}
	}
	for _, f := range files {
		if a := p.must("control", f); a.Bytes != int64(f.Size) {
			t.Errorf("the control channel gave %d bytes of %s, which has %d", a.Bytes, f.Name, f.Size)
		}
		p.must("hbmfs", f)
	}
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}

// TestInlineVolumes: what asks for the same is served by the same daemon, inline or not, until the last of it has gone.
func TestInlineVolumes(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	v := n.directoryVolume("corpus", files)
	a, b := n.startPod(v.inlined("a"), podOptions{}), n.startPod(v.inlined("b"), podOptions{})
	c := n.startPod(v, podOptions{propagate: true})
	if d := n.daemons(); len(d) != 1 {
		t.Errorf("three volumes that are the same have %d daemons: %v", len(d), d)
	}
	other := v.inlined("other")
	other.attributes = map[string]string{"source": v.attributes["source"], "showViews": "true"}
	d := n.startPod(other, podOptions{})
	if found := n.daemons(); len(found) != 2 {
		t.Errorf("a volume with another option: %d daemons: %v", len(found), found)
	}
	for _, p := range []*pod{a, b, c, d} {
		p.must("read", files[0])
	}
	n.stopPod(a)
	n.stopPod(d)
	for _, p := range []*pod{b, c} {
		p.must("read", files[0])
		p.must("control", files[1])
	}
	n.stopPod(c)
	n.unstage(v)
	b.must("read", files[0])
	n.stopPod(b)
	n.mustBeClean()
}

// TestMountGroup: files belong to the pod's fsGroup, and pods of other groups have a daemon of their own.
func TestMountGroup(t *testing.T) {
	n := newNode(t)
	v := n.directoryVolume("corpus", someFiles(1)).inlined("a")
	w := v.inlined("b")
	v.fsGroup, w.fsGroup = "2345", "2346"
	p, q := n.startPod(v, podOptions{}), n.startPod(w, podOptions{})
	for p, want := range map[*pod]uint32{p: 2345, q: 2346} {
		if got := groupOf(t, filepath.Join(n.targetPath(p.volume, p.uid), "train.bin")); got != want {
			t.Errorf("a file of a volume with fsGroup %d has group %d", want, got)
		}
		p.must("read", someFiles(1)[0])
	}
	n.stopPod(p)
	n.stopPod(q)
	n.mustBeClean()
}

// TestStats asks for what kubelet asks for each minute.
func TestStats(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	var size int64
	for _, f := range files {
		size += int64(f.Size)
	}
	v := n.directoryVolume("corpus", files)
	p := n.startPod(v, podOptions{})
	r, err := n.stats(v, p.uid)
	must(t, err)
	if r.GetVolumeCondition().GetAbnormal() || r.GetVolumeCondition().GetMessage() == "" {
		t.Errorf("the condition of a good volume: %v", r.GetVolumeCondition())
	}
	for _, u := range r.GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES && u.GetTotal() < size {
			t.Errorf("a volume of %d bytes has %v", size, u)
		}
	}
	if len(r.GetUsage()) == 0 {
		t.Error("no usage")
	}
	n.stopPod(p)
	if _, err := n.stats(v, p.uid); code(err) != codes.NotFound {
		t.Errorf("what is not published any more has %v", err)
	}
	n.unstage(v)
	n.mustBeClean()
}

// TestAgainAndOutOfOrder: kubelet repeats calls whose answers it has lost, and takes away what was never there.
func TestAgainAndOutOfOrder(t *testing.T) {
	n := newNode(t)
	v := n.directoryVolume("corpus", someFiles(1))
	n.unpublish(v, "pod-9999")
	v.staged = true // as kubelet thinks where the answer was lost and the node was restarted
	must(t, os.MkdirAll(n.stagingPath(v), 0o750))
	n.unstage(v)
	for range 2 {
		must(t, n.stageOnce(v))
	}
	v.staged = true
	p := n.startPod(v, podOptions{})
	before := n.mounts()
	for range 3 { // requiresRepublish
		must(t, n.publishOnce(n.publishRequest(v, p.uid)))
		must(t, n.stageOnce(v))
	}
	if after := n.mounts(); len(after) != len(before) {
		t.Errorf("publishing again mounts again:\n%v\n%v", before, after)
	}
	p.must("read", someFiles(1)[0])
	n.stopPod(p)
	n.unpublish(v, p.uid)
	must(t, os.MkdirAll(n.stagingPath(v), 0o750))
	n.unstage(v)
	v.staged = true
	must(t, os.MkdirAll(n.stagingPath(v), 0o750))
	n.unstage(v)
	n.mustBeClean()
}

// TestIdentity asks what a registration with kubelet asks.
func TestIdentity(t *testing.T) {
	n := newNode(t)
	must(t, n.client(func(ctx context.Context, identity csi.IdentityClient, node csi.NodeClient) error {
		plugin, err1 := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		info, err2 := node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		can, err3 := node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
		if plugin.GetName() != driverName || plugin.GetVendorVersion() == "" || info.GetNodeId() != "node-1" {
			t.Errorf("the plugin is %v on %v", plugin, info)
		}
		has := map[csi.NodeServiceCapability_RPC_Type]bool{}
		for _, c := range can.GetCapabilities() {
			has[c.GetRpc().GetType()] = true
		}
		for _, c := range []csi.NodeServiceCapability_RPC_Type{
			csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
			csi.NodeServiceCapability_RPC_VOLUME_CONDITION, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		} {
			if !has[c] {
				t.Errorf("the node service does not offer %v", c)
			}
		}
		return errors.Join(err1, err2, err3)
	}))
	n.host.kill()
	if !within(func() bool { return !n.ready() }) {
		t.Error("the plugin says that it is ready although there is no host")
	}
	if err := n.publishOnce(n.publishRequest(n.directoryVolume("x", nil).inlined("x"), "pod-0001")); code(err) != codes.Unavailable || !strings.Contains(err.Error(), "host") {
		t.Errorf("publishing without a host: %v", err)
	}
	must(t, errors.Join(os.RemoveAll(n.podDir("pod-0001"))))
	if _, err := os.Stat(n.socket()); errors.Is(err, fs.ErrNotExist) {
		t.Error("the plugin has no socket any more")
	}
}
