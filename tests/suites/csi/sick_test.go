package csi_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
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
		must(t, blackbox.Stop(d.pid))
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
	n.killHeld()
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

// TestDaemonKilledAtItsStart kills daemons at every moment of their start, as the out-of-memory killer may. Each ends: one
// that waited for an answer of its own mount would not, and everybody who looks into the mount would wait with it.
func TestDaemonKilledAtItsStart(t *testing.T) {
	needNode(t)
	source, err := filepath.Abs("../../data/testdata")
	must(t, err)
	dir, err := os.MkdirTemp(suite.Dir, "killed-")
	must(t, err)
	defer func() { must(t, os.Remove(dir)) }()
	const times, step = 60, time.Millisecond
	for i := range times {
		cmd := exec.Command(suite.Path(), "mount", "-f", "--allow-other", source, dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		must(t, cmd.Start())
		if i%2 == 0 { // a moment of the whole start
			time.Sleep(time.Duration(i) * step)
		} else { // right after it has mounted, when the control socket is made
			within(func() bool {
				mounted, err := blackbox.IsMounted(dir)
				return err != nil || mounted || blackbox.Ended(cmd.Process.Pid)
			})
		}
		must(t, cmd.Process.Kill())
		ended := make(chan struct{})
		go func() { // ends with the daemon
			_ = cmd.Wait() // killed, which is its error
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Errorf("a daemon that was killed after %d ms does not end", i)
		}
		if mounted, err := blackbox.IsMounted(dir); err != nil || mounted {
			must(t, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH|unix.MNT_FORCE)))
		}
		if t.Failed() {
			return
		}
	}
}
