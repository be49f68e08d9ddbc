package csi_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestStuckDaemon stops a daemon, so that nothing in its mount answers any more: kubelet is told so, and can take the
// volume away all the same.
func TestStuckDaemon(t *testing.T) {
	t.Parallel() // it waits most of the time
	n := newNode(t)
	files := someFiles(1)
	v, good := n.directoryVolume("stuck", files), n.directoryVolume("good", files)
	p := n.startPod(v, podOptions{})
	for _, d := range n.daemons() {
		must(t, syscall.Kill(d.pid, syscall.SIGSTOP))
	}
	r, err := n.stats(v, p.uid)
	if err != nil || !r.GetVolumeCondition().GetAbnormal() {
		t.Errorf("the stats of a stuck volume: %v, %v", r, err)
	}
	q := n.startPod(good, podOptions{})
	q.must("read", files[0])
	n.stopPod(p)
	n.unstage(v)
	n.stopPod(q)
	n.unstage(good)
	n.mustBeClean()
}

// TestSourceIsGone takes the source away and kills the daemon, which cannot come back: the condition of the volume says
// so until the source is there again, and then the pods read again.
func TestSourceIsGone(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	v := n.directoryVolume("corpus", files)
	p, q := n.startPod(v, podOptions{}), n.startPod(v, podOptions{})
	source := v.attributes["source"]
	must(t, os.Rename(source, source+".away"))
	n.killDaemons(n.daemons()...)
	var message string
	abnormal := within(func() bool {
		r, err := n.stats(v, p.uid)
		message = r.GetVolumeCondition().GetMessage()
		return err == nil && r.GetVolumeCondition().GetAbnormal() && strings.Contains(message, "corpus")
	})
	if !abnormal {
		t.Errorf("the condition of a volume without a source: %q", message)
	}
	if a := p.do("read", files[0]); a.Error == "" {
		t.Error("a pod opens a file of a volume that nobody serves")
	}
	n.stopPod(q) // which has to work in between, too
	must(t, os.Rename(source+".away", source))
	p.soon("read", files[0])
	p.soon("control", files[1])
	healthy := within(func() bool {
		r, err := n.stats(v, p.uid)
		message = r.GetVolumeCondition().GetMessage()
		return err == nil && !r.GetVolumeCondition().GetAbnormal()
	})
	if !healthy {
		t.Errorf("the condition of a volume that is well again: %q", message)
	}
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}

// TestSecondHost: two hosts of one state directory would undo each other's work.
func TestSecondHost(t *testing.T) {
	t.Parallel() // it waits most of the time
	n := newNode(t)
	files := someFiles(1)
	v := n.directoryVolume("corpus", files)
	p := n.startPod(v, podOptions{})
	second := n.start("second", csiProgram, "host", "--state-dir", n.state, "--kubelet-dir", n.kubelet, "--hbmfs", suite.Path())
	if !within(second.ended) {
		second.kill()
		t.Error("a second host runs")
	}
	said, err := os.ReadFile(second.log)
	must(t, err)
	if second.cmd.ProcessState.ExitCode() < 1 || !strings.Contains(string(said), "another hbmfs-csi host") {
		t.Errorf("a second host ends with code %d and says %s", second.cmd.ProcessState.ExitCode(), said)
	}
	n.waitReady()
	p.must("read", files[0])
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}
