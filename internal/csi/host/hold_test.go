package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
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

// TestCopyOfADeadMount asks for the copy of a mount that is dead while the host has one: the kernel says so as soon as the host finds it.
func TestCopyOfADeadMount(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.must(n.publish("v", "p"))
	if n.within("a keeper is there, or none comes", func() bool { return len(n.keepers()) == 1 || !n.passthrough(n.target("p")) }); len(n.keepers()) == 0 {
		t.Skip("no keeper holds the mount")
	}
	one := func() bool { return states(t) == 1 }
	n.within("there is a copy", one)
	n.mu.Lock()
	v, _ := n.published(n.target("p"))
	n.mu.Unlock()
	n.must(v.acquire(t.Context())) // so that no other daemon is started
	busy, err := os.Open(v.mount())
	n.must(err)
	_ = unix.Unmount(v.mount(), unix.MNT_FORCE) // it is busy: it ends and stays
	n.within("the daemon has ended", func() bool { return !v.daemon.alive() })
	for range 200 {
		if c := v.copy(t.Context()); c != nil {
			t.Fatal("a dead mount has a copy to go on with")
		}
	}
	if !blackbox.Within(patience, one) {
		t.Errorf("%d copies are left of one", states(t))
	}
	n.must(busy.Close())
	v.unlock()
	n.must(n.unpublish("v", "p"))
	n.clean()
}

// states counts the copies of mounts that this process has.
func states(t *testing.T) (count int) {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "/memfd:hbmfs-state") {
			count++
		}
	}
	return count
}
