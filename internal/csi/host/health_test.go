package host

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// stats asks for the volume of a pod.
func (n *node) stats(id, pod string) *csi.NodeGetVolumeStatsResponse {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	r, err := n.service().NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: n.target(pod)})
	n.must(err)
	return r
}

// TestADaemonThatIsStuck has a daemon answer nothing: neither the stats nor the metrics wait for it, nor does the end of its
// last pod.
func TestADaemonThatIsStuck(t *testing.T) {
	n := newNode(t)
	n.asker.Patience = patience // until the daemon is stuck: on a busy machine an answer may take long
	n.write("a.bin", "some tokens")
	n.must(n.publish("v", "p", "csi.storage.k8s.io/pod.name", `the "pod"`, "csi.storage.k8s.io/pod.namespace", "team"))
	n.within("a sound volume is called so", func() bool {
		r := n.stats("v", "p")
		return !r.GetVolumeCondition().GetAbnormal() && r.GetUsage()[0].GetTotal() == 11 && r.GetUsage()[1].GetTotal() == 1
	})
	var page string
	n.within("the metrics are complete", func() bool {
		page = n.metrics(t.Context())
		return strings.Contains(page, "hbmfs_objects{")
	})
	for _, want := range []string{
		"hbmfs_up{volume=", "} 1\n", "hbmfs_objects{volume=", `,mount="` + n.state() + "/volumes/", `,volume_id="v",namespace="team",pod="the \"pod\""} 1`,
		"hbmfs_csi_host_up 1\n", "hbmfs_csi_starts_total 1\n", "hbmfs_csi_deaths_total 0\n", `authentication="anonymous"`, "hbmfs_opens_total{volume=",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the metrics do not say %s:\n%s", want, page)
		}
	}
	if promtool, err := exec.LookPath("promtool"); err == nil {
		check := exec.Command(promtool, "check", "metrics")
		check.Stdin = strings.NewReader(page)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("promtool: %v: %s", err, out)
		}
	}

	var asking sync.WaitGroup
	for range 4 { // as kubelet does for several pods
		asking.Go(func() {
			if r := n.stats("v", "p"); r.GetVolumeCondition().GetAbnormal() {
				t.Errorf("of several that ask at once, one is told %v", r)
			}
		})
	}
	asking.Wait()

	n.must(blackbox.Stop(n.daemons()[0]))
	n.asker.Patience = time.Second
	for range 2 {
		if r := n.stats("v", "p"); !r.GetVolumeCondition().GetAbnormal() || !strings.Contains(r.GetVolumeCondition().GetMessage(), "stuck") || len(r.GetUsage()) == 0 {
			t.Errorf("a stuck daemon: %v", r)
		}
	}
	if page := n.metrics(t.Context()); !strings.Contains(page, "} 0\n") || strings.Contains(page, "hbmfs_objects{") {
		t.Errorf("the metrics of a stuck daemon:\n%s", page)
	}
	n.must(n.unpublish("v", "p"))
	n.clean()
}

// TestADaemonThatCannotStartAgain has the source go while its volume is in use.
func TestADaemonThatCannotStartAgain(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	gone := n.data + "-gone"
	n.must(n.publish("v", "p"))
	n.must(unix.Rename(n.data, gone))
	n.killHeld()
	n.within("the condition says why", func() bool {
		c := n.stats("v", "p").GetVolumeCondition()
		return c.GetAbnormal() && strings.Contains(c.GetMessage(), "cannot be started again") && strings.Contains(c.GetMessage(), n.data)
	})
	n.must(unix.Rename(gone, n.data))
	n.within("it is served again", func() bool {
		return n.reads(n.target("p"), "a.bin") && !n.stats("v", "p").GetVolumeCondition().GetAbnormal()
	})
	n.must(n.unpublish("v", "p"))
	n.clean()
}

// network is a filesystem of a few directories where volumes may have their source, which hangs once it is told to, until it is
// woken. It goes with the test.
func (n *node) network(names ...string) (dir string, hang func() (wake func())) {
	n.Helper()
	inner, outer := n.TempDir(), filepath.Join(n.data, "network")
	for _, name := range names {
		n.must(os.MkdirAll(filepath.Join(inner, name), 0o755))
		n.must(os.WriteFile(filepath.Join(inner, name, "a.bin"), []byte("some tokens"), 0o644))
	}
	n.must(os.Mkdir(outer, 0o755))
	if out, err := exec.Command(n.hbmfs, "mount", inner, outer).CombinedOutput(); err != nil {
		n.Fatalf("%v: %s", err, out)
	}
	var network struct{ PID int }
	text, err := os.ReadFile(filepath.Join(outer, ".hbmfs/status"))
	n.must(err)
	n.must(json.Unmarshal(text, &network))
	wake := func() { n.must(unix.Kill(network.PID, unix.SIGCONT)) }
	n.Cleanup(func() {
		wake()
		n.must(unix.Unmount(outer, unix.MNT_DETACH))
	})
	return outer, func() func() { n.must(blackbox.Stop(network.PID)); return wake }
}

// looking is how many threads look at directories.
func looking() int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*Host).look(")
}

// TestLooksOfOneNamespace has a namespace ask for directory upon directory of a filesystem that hangs. Each look costs a thread
// for as long as that lasts, so the namespace has a few of them, and others have theirs.
func TestLooksOfOneNamespace(t *testing.T) {
	n := newNode(t)
	well := filepath.Join(n.data, "well")
	n.must(os.Mkdir(well, 0o755))
	var names []string // nothing is there, which only the filesystem could tell
	for i := range 3 * looksOfNamespace {
		names = append(names, fmt.Sprintf("d%d", i))
	}
	outer, hang := n.network("one")
	hang()
	publish := func(namespace, pod, source string) error {
		return n.publishAt(500*time.Millisecond, pod, n.target(pod), "source", source, "csi.storage.k8s.io/pod.namespace", namespace)
	}
	refused := 0
	for _, name := range names {
		err := publish("greedy", name, filepath.Join(outer, name))
		if status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "namespace greedy") {
			refused++
			continue
		}
		n.code(err, codes.DeadlineExceeded)
	}
	if refused != 2*looksOfNamespace || looking() != looksOfNamespace {
		t.Errorf("%d looks of %d were refused, %d wait, and %d may", refused, len(names), looking(), looksOfNamespace)
	}
	n.code(publish("modest", "m", filepath.Join(outer, "other")), codes.DeadlineExceeded)
	n.within("another namespace is served", func() bool { return publish("modest", "m2", well) == nil })
	for _, pod := range append(names, "m", "m2") {
		n.within("the pods go", func() bool { return n.unpublish(pod, pod) == nil })
	}
	n.clean()
}

// TestASourceThatHangs has the directory lie in a filesystem that answers nothing, as a network filesystem does whose server
// is gone. Nobody can say whether it may be shown, and the pod goes all the same, now and where its daemon died.
func TestASourceThatHangs(t *testing.T) {
	n := newNode(t)
	outer, hang := n.network("one", "two")
	n.must(n.publish("v", "p1", "source", outer+"/one"))
	n.within("its daemon reads nothing any more, or it could not be killed", func() bool {
		text, err := os.ReadFile(filepath.Join(n.target("p1"), ".hbmfs/status"))
		return err == nil && strings.Contains(string(text), `"indexing": false`)
	})
	hang()
	for _, p := range []string{"p2", "p3", "p4"} {
		n.code(n.publishAt(500*time.Millisecond, "w", n.target(p), "source", outer+"/two"), codes.DeadlineExceeded)
	}
	if waiting := looking(); waiting != 1 {
		t.Errorf("%d threads wait for the filesystem, want 1", waiting)
	}
	n.within("the pods that wait for it go", func() bool {
		return n.unpublish("w", "p2") == nil && n.unpublish("w", "p3") == nil && n.unpublish("w", "p4") == nil
	})
	n.must(unix.Kill(n.daemons()[0], unix.SIGKILL))
	n.within("the pod that had it goes", func() bool { return n.unpublish("v", "p1") == nil })
	n.within("all of it is gone", func() bool { return n.mounted(n.kubelet("")) == 0 && len(n.daemons()) == 0 })
}

// TestTheLastUserOfAStartThatHangs has a volume whose source never answers, and the pod go meanwhile: nobody waits for the
// start any more, and nothing is left of it.
func TestTheLastUserOfAStartThatHangs(t *testing.T) {
	n := newNode(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections and says nothing
	n.must(err)
	defer func() { _ = silent.Close() }()
	source := "http://" + silent.Addr().String() + "/data/"

	ctx, cancel := context.WithCancel(t.Context())
	staged := make(chan error, 1)
	go func() { // kubelet gives up; the start goes on
		staged <- n.stageAt(ctx, "v", n.kubelet("staging"), "source", source, "patience", "1h")
	}()
	n.within("a daemon tries", func() bool { return len(n.daemons()) == 1 })
	cancel()
	n.code(<-staged, codes.Canceled)
	n.within("it can be unstaged", func() bool { // aborted until the work for the call that was given up has ended
		err := n.unstage("v", n.kubelet("staging"))
		if err != nil {
			n.code(err, codes.Aborted)
		}
		return err == nil
	})
	n.clean()
}
