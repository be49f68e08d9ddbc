package csi_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// stall is what a reader may wait while the plugin is replaced. On a quiet machine it waits some milliseconds, which the
// test logs; one that tests other things at the same time may not give the reader a CPU for longer than that.
const stall = 5 * time.Second

// TestUpgrade replaces the plugin, and then the host, under readers at full speed.
func TestUpgrade(t *testing.T) {
	n := newNode(t)
	key := s3Key{"AKIDUPGRADE", "secret/of/the/upgrade", ""}
	store := newS3Store(t, key)
	files := someFiles(1)
	store.put("corpus", files)
	local, remote := n.directoryVolume("local", files), s3Volume("remote", store, "corpus", key)
	pods := []*pod{n.startPod(local, podOptions{}), n.startPod(remote, podOptions{})}
	before := n.daemons()
	for _, p := range pods {
		p.must("loop", files[0])
	}
	reads := func(what string) {
		for _, p := range pods {
			now := p.must("loop so far", files[0]).Passes
			if !within(func() bool { return p.must("loop so far", files[0]).Passes > now }) {
				t.Fatalf("a reader of %s does not go on after %s", p.volume.name, what)
			}
		}
	}
	reads("its start")
	for range 3 {
		n.restartPlugin()
		n.waitReady()
		q := n.startPod(local, podOptions{})
		q.must("read", files[1])
		n.stopPod(q)
		reads("the plugin was replaced")
	}
	n.restartHost()
	n.waitReady()
	reads("the host was replaced")
	if after := n.daemons(); !slices.EqualFunc(before, after, func(a, b daemon) bool { return a.pid == b.pid }) {
		t.Errorf("the daemons were %v and are %v", before, after)
	}
	for _, p := range pods {
		a := p.must("end loop", files[0])
		if a.Errors > 0 || a.Longest > stall {
			t.Errorf("a reader of %s has %d errors (%s), and waited %v for a read", p.volume.name, a.Errors, a.Text, a.Longest)
		}
		t.Logf("%s: %d MB in %d passes, the longest wait %v", p.volume.name, a.Bytes>>20, a.Passes, a.Longest)
		n.stopPod(p)
	}
	n.unstage(local)
	n.unstage(remote)
	n.mustBeClean()
}

// TestDaemonDies ends the mount of a volume under its pods, as the death of a daemon does that nobody follows. Their open files go on as if nothing had been. Files that
// they open after the volume was mounted again are there, in pods of either propagation. No mount lies upon another.
func TestDaemonDies(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	v := n.directoryVolume("corpus", files)
	pods := n.startPods(v, 4)
	for _, p := range pods {
		p.must("hold", files[0])
	}
	part := n.startPod(v, podOptions{subPath: "more"})
	inPart := file{"shard.bin", files[2].Seed, files[2].Size}
	for range 3 {
		part.must("read", inPart)
		n.endMounts()
		for _, p := range pods {
			p.must("held", files[0])
		}
		var longest time.Duration
		for _, p := range pods {
			_, took := p.soon("read", files[0])
			longest = max(longest, took)
		}
		t.Logf("after %v all pods read again", longest)
		for _, p := range pods {
			p.soon("control", files[1])
			p.must("held", files[0])
		}
		part.soon("read", inPart)
		if s := handovers(t, pods[0]); s.Count != 0 {
			t.Errorf("%d daemons went on with a mount that had ended", s.Count)
		}
		if d := n.daemons(); len(d) != 1 {
			t.Errorf("%d daemons after one was started again: %v", len(d), d)
		}
		n.mustNotStack(append(pods, part))
	}
	q := n.startPod(v, podOptions{})
	q.must("read", files[0])
	n.stopPods(append(pods, part, q))
	n.unstage(v)
	n.mustBeClean()
}

// mustNotStack fails the test where something is mounted upon a mount, on the node or in a pod.
func (n *node) mustNotStack(pods []*pod) {
	n.t.Helper()
	points := n.mounts()
	slices.Sort(points)
	if once := slices.Compact(slices.Clone(points)); len(once) != len(points) {
		n.t.Errorf("mounts lie upon mounts: %v", points)
	}
	for _, p := range pods {
		for _, line := range strings.Split(p.must("who", file{}).Text, "\n") {
			if strings.HasPrefix(line, "mounts ") && strings.Count(line+" ", " /data ") != 1 {
				n.t.Errorf("in %s: %s", p.uid, line)
			}
		}
	}
}

// TestHostDies kills the host with all of its daemons, as the end of its container does.
func TestHostDies(t *testing.T) {
	n := newNode(t)
	files := map[*volume]file{}
	var pods []*pod
	var volumes []*volume
	for i := range 3 {
		f := someFiles(uint64(100 * i))
		v := n.directoryVolume(fmt.Sprint("corpus-", i), f)
		files[v], volumes = f[0], append(volumes, v)
		pods = append(pods, n.startPods(v, 2)...)
	}
	for _, p := range pods {
		p.must("hold", files[p.volume])
	}
	for range blackbox.Rounds(2, 3) { // the numbers of the mounts of one volume become those of another's
		n.host.kill()
		n.killHeld()
		for _, p := range pods {
			p.must("held", files[p.volume])
		}
		n.restartPlugin()
		n.startHost()
		n.waitReady()
		for _, p := range pods {
			p.soon("read", files[p.volume])
			p.soon("control", files[p.volume])
			p.must("held", files[p.volume])
		}
		n.mustNotStack(pods)
	}
	n.stopPods(pods)
	for _, v := range volumes {
		n.unstage(v)
	}
	n.mustBeClean()
}

// TestPodsGoWhileTheDriverIsDown: nobody saw the daemons die and the pods end, and yet all of it is taken away.
func TestPodsGoWhileTheDriverIsDown(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	v := n.directoryVolume("corpus", files)
	pods := n.startPods(v, 2)
	n.plugin.kill()
	n.host.kill()
	n.killHeld()
	for _, p := range pods {
		p.kill()
	}
	n.startHost()
	n.startPlugin()
	n.waitReady()
	n.stopPods(pods)
	n.unstage(v)
	n.mustBeClean()
}

// TestDrain ends the host politely while volumes are in use: neither mounts nor daemons care.
func TestDrain(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	v := n.directoryVolume("corpus", files)
	p := n.startPod(v, podOptions{})
	before := n.daemons()
	for _, d := range []*process{n.plugin, n.host} {
		must(t, d.cmd.Process.Signal(syscall.SIGTERM))
		if !within(d.ended) {
			t.Fatalf("%v does not end", d.cmd.Args)
		}
		if code := d.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%v ends with code %d", d.cmd.Args, code)
		}
	}
	p.must("read", files[0])
	p.must("control", files[1])
	if after := n.daemons(); len(after) != len(before) || after[0].pid != before[0].pid {
		t.Errorf("the daemons were %v and are %v", before, after)
	}
	n.startHost()
	n.startPlugin()
	n.waitReady()
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}

// TestReboot: the driver's records and kubelet's directories outlive a reboot, and mounts and processes do not. Kubelet
// publishes again for the pods that it starts again, and takes away the volumes of those that are gone.
func TestReboot(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	v := n.directoryVolume("corpus", files)
	pods := n.startPods(v, 3)
	n.plugin.kill()
	n.host.kill()
	for _, p := range pods {
		p.kill()
	}
	n.killHeld()
	for _, m := range n.mounts() {
		must(t, unix.Unmount(m, unix.MNT_DETACH))
	}
	n.startHost()
	n.startPlugin()
	n.waitReady()
	v.staged = false
	n.stopPods(pods[1:])
	n.stage(v)
	n.publish(v, pods[0].uid)
	again := n.runPod(pods[0].uid, v, podOptions{})
	defer again.kill()
	again.must("read", files[0])
	again.must("control", files[1])
	n.mustNotStack([]*pod{again})
	again.kill()
	n.stopPod(pods[0])
	n.unstage(v)
	n.mustBeClean()
}
