package host

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// TestPodsLeaveAStartThatHangs has pods share a volume whose daemon never comes up, since its source hangs: each of them can go
// while the others still wait.
func TestPodsLeaveAStartThatHangs(t *testing.T) {
	n := newNode(t)
	outer, hang := n.network("one")
	source := filepath.Join(outer, "one")
	_, err := os.Stat(source) // so that the kernel knows it, and the daemon is the first to ask
	n.must(err)
	hang()
	pods := []string{"p1", "p2", "p3"}
	for _, p := range pods {
		n.code(n.publishAt(500*time.Millisecond, "v", n.target(p), "source", source), codes.DeadlineExceeded)
	}
	n.within("a daemon tries", func() bool { return len(n.daemons()) > 0 })
	for _, p := range pods {
		n.within(p+" goes", func() bool { return n.unpublish("v", p) == nil })
	}
	n.within("all of it is gone", func() bool { return n.mounted(n.kubelet("")) == 0 && len(n.daemons()) == 0 })
}

// TestPodsLeaveWhileADaemonStartsAgain has pods share a volume whose daemon died, and whose next one hangs: one pod goes, and
// stays gone when the daemon comes up for the others.
func TestPodsLeaveWhileADaemonStartsAgain(t *testing.T) {
	n := newNode(t)
	outer, hang := n.network("one")
	source := filepath.Join(outer, "one")
	n.must(n.publish("v", "gone", "source", source))
	n.must(n.publish("v", "stays", "source", source))
	before := n.daemons()[0]
	awake := hang()
	n.must(unix.Kill(before, unix.SIGKILL))
	n.within("the next daemon tries", func() bool { d := n.daemons(); return len(d) == 1 && d[0] != before })
	n.within("a pod goes", func() bool { return n.unpublish("v", "gone") == nil })
	if n.mounted(n.target("gone")) != 0 || missingPath(n.target("stays")) {
		t.Error("the volume is where it should not be, or not where it should")
	}
	awake()
	n.within("the other pod is served again", func() bool {
		text, err := os.ReadFile(filepath.Join(n.target("stays"), "a.bin"))
		return err == nil && string(text) == "some tokens"
	})
	if !missingPath(n.target("gone")) {
		t.Error("the volume came back to a pod that is gone")
	}
	n.must(n.unpublish("v", "stays"))
	n.within("all of it is gone", func() bool { return n.mounted(n.kubelet("")) == 0 && len(n.daemons()) == 0 })
}

// TestAPodThatLeavesStaysAway has a pod leave while a daemon comes up: once it has left, it does not see the volume for a moment.
func TestAPodThatLeavesStaysAway(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.must(n.publish("v", "stays"))
	n.must(n.publish("v", "gone"))
	target := n.target("gone")
	n.mu.Lock()
	v, _ := n.published(target)
	n.mu.Unlock()
	n.must(v.acquire(t.Context())) // as a start does that others wait for
	_, end := v.begin(t.Context())
	n.must(n.unpublish("v", "gone"))
	over, seen := make(chan struct{}), make(chan int)
	go func() {
		count := 0
		for {
			select {
			case <-over:
				seen <- count
				return
			default:
				if !missingPath(target) {
					count++
				}
			}
		}
	}()
	var err error
	for range 20 {
		err = errors.Join(err, v.showStill(target))
	}
	close(over)
	n.must(err)
	if count := <-seen; count > 0 {
		t.Errorf("a pod that has left sees the volume %d times", count)
	}
	end()
	v.unlock()
	n.must(n.unpublish("v", "stays"))
	n.clean()
}

// TestNoDaemonStartsForAVolumeThatIsGone has a volume end, and begin anew, between two attempts to start its daemon again.
func TestNoDaemonStartsForAVolumeThatIsGone(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.must(n.publish("v", "p"))
	n.mu.Lock()
	gone, _ := n.published(n.target("p"))
	n.mu.Unlock()
	n.must(n.unpublish("v", "p"))
	n.must(n.publish("v", "next"))
	before := n.daemons()
	gone.revive(t.Context(), 1)
	if after := n.daemons(); !slices.Equal(after, before) {
		t.Errorf("daemons %v serve, and %v did before", after, before)
	}
	n.must(n.unpublish("v", "next"))
	n.clean()
}
