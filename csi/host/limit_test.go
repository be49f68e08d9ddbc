package host

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

// TestAsManyDaemonsAsMayBe has a node refuse a daemon too many, and nobody who needs none.
func TestAsManyDaemonsAsMayBe(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.opt.MaxDaemons = 2
	n.must(n.publish("one", "p1"))
	n.must(n.publish("two", "p2", "umask", "027"))
	n.code(n.publish("three", "p3", "umask", "007"), codes.ResourceExhausted, "2 daemons", "--max-daemons", "maxDaemons")
	n.must(n.publish("four", "p4")) // shares the first one's
	n.must(n.publish("one", "p1"))  // kubelet asks again
	n.endHost()
	n.startHost()
	n.opt.MaxDaemons = 1 // lowered meanwhile
	n.must(n.publish("two", "p2", "umask", "027"))
	n.code(n.publish("three", "p3", "umask", "007"), codes.ResourceExhausted)
	for _, pod := range []string{"p1", "p2", "p4"} {
		if !n.reads(n.target(pod), "a.bin") {
			t.Errorf("%s does not read its volume", pod)
		}
	}
	if page := n.metrics(t.Context()); !strings.Contains(page, "hbmfs_csi_refused_daemons_total 1\n") || !strings.Contains(page, "hbmfs_csi_max_daemons 1\n") {
		t.Errorf("the metrics do not tell of it:\n%s", page)
	}
	n.must(n.unpublish("two", "p2"))
	n.must(n.unpublish("one", "p1"))
	n.must(n.unpublish("four", "p4"))
	n.must(n.publish("three", "p3", "umask", "007"))
	n.must(n.unpublish("three", "p3"))
	n.clean()
}
