package host

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCopiesComeWhileAVolumeIsWorkedOn: what works on a volume may take long, and a client waits for a copy of what it has begun.
func TestCopiesComeWhileAVolumeIsWorkedOn(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.must(n.publish("v", "p"))
	if n.within("a keeper is there, or none comes", func() bool { return len(n.keepers()) == 1 || !n.passthrough(n.target("p")) }); len(n.keepers()) == 0 {
		t.Skip("no keeper holds the mount")
	}
	n.mu.Lock()
	v, _ := n.published(n.target("p"))
	n.mu.Unlock()
	has := func() bool {
		n.held.mu.Lock()
		defer n.held.mu.Unlock()
		return n.held.copies[v.key] != nil
	}
	n.within("there is a copy", has)
	n.must(v.acquire(t.Context()))
	n.held.mu.Lock()
	told := n.held.told
	n.held.mu.Unlock()
	n.must(unix.Kill(n.keepers()[0], unix.SIGKILL)) // the daemon has another
	select {
	case <-told:
	case <-time.After(patience):
		t.Error("there is no copy of what the next keeper has")
	}
	v.unlock()
	n.must(n.unpublish("v", "p"))
	if has() {
		t.Error("the copy outlives its volume")
	}
	n.clean()
}
