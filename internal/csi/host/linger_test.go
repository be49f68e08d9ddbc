package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// kvDir allows KV volumes, and names the directory of one.
func (n *node) kvDir(name string) string {
	n.opt.AllowKV, n.opt.KVMemory, n.opt.CacheMinFree = []string{filepath.Join(n.data, "kv")}, 8<<20, 1
	n.must(os.MkdirAll(n.opt.AllowKV[0], 0o755))
	return filepath.Join(n.opt.AllowKV[0], name)
}

// kept tells whether a volume that nobody uses lingers.
func (n *node) kept(v *nodeVolume) bool {
	n.mu.Lock()
	known := n.volumes[v.key] == v
	n.mu.Unlock()
	return known && v.lingers()
}

// lingering publishes a KV volume that lingers after its last pod. It returns the volume as a host has it that is starting another daemon: the lock is
// taken, and resuming ends when the start is called off.
func (n *node) lingering(pods ...string) (v *nodeVolume, resuming context.Context, end func()) {
	dir := n.kvDir("blocks")
	for _, p := range pods {
		n.must(n.publish("v", p, "kv", dir, "size", "8MiB", "keepFor", "10m"))
	}
	n.mu.Lock()
	v, _ = n.published(n.target(pods[0]))
	n.mu.Unlock()
	n.must(v.acquire(n.Context()))
	v.daemon = nil
	resuming, end = v.begin(n.Context())
	return v, resuming, end
}

// TestTheLastPodLeavesWhileADaemonIsResumed: the volume lingers, although no daemon serves it at that moment.
func TestTheLastPodLeavesWhileADaemonIsResumed(t *testing.T) {
	n := newNode(t)
	v, resuming, end := n.lingering("p")
	left := make(chan error)
	go func() { left <- n.unpublish("v", "p") }()
	<-resuming.Done() // it is called off
	end()
	v.unlock()
	n.must(<-left)
	if !n.kept(v) {
		t.Error("the volume does not linger")
	}
	v.endLingering()
	n.clean()
}

// TestTwoPodsLeaveWhileADaemonIsResumed has the last pods leave at once. Neither takes the lock, since each believes that the other still waits for the
// daemon.
func TestTwoPodsLeaveWhileADaemonIsResumed(t *testing.T) {
	n := newNode(t)
	v, _, end := n.lingering("p", "q")
	v.showing.Lock()
	left := make(chan error)
	for _, pod := range []string{"p", "q"} {
		go func() { left <- n.unpublish("v", pod) }()
	}
	n.within("both are about to leave", func() bool { return hiding() == 2 })
	v.showing.Unlock()
	n.must(errors.Join(<-left, <-left))
	if !n.kept(v) {
		t.Error("the volume does not linger")
	}
	end()
	v.unlock()
	v.endLingering()
	n.clean()
}

// hiding is how many pods are about to lose sight of their volume.
func hiding() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*nodeVolume).hide(")
}
