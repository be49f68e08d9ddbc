package host

import (
	"fmt"
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

// TestOneNamespaceLeavesRoom has a namespace ask for as many daemons as it can, one for each mask. Others still get theirs,
// and the namespace gets what needs none.
func TestOneNamespaceLeavesRoom(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.opt.MaxDaemons, n.opt.MaxOfNamespace = 6, 3
	publish := func(namespace, pod string, more ...string) error {
		return n.publish("volume of "+pod, pod, append(more, "csi.storage.k8s.io/pod.namespace", namespace)...)
	}
	for i, mask := range []string{"001", "002", "003"} {
		n.must(publish("greedy", fmt.Sprint("g", i), "umask", mask))
	}
	for i, mask := range []string{"004", "005"} {
		n.code(publish("greedy", fmt.Sprint("more", i), "umask", mask), codes.ResourceExhausted, "namespace greedy", "3 daemons", "--max-daemons-per-namespace", "maxDaemonsPerNamespace")
	}
	n.must(publish("greedy", "again", "umask", "001")) // shares one
	n.must(publish("greedy", "g0", "umask", "001"))    // kubelet asks again
	n.must(publish("modest", "m0", "umask", "006"))
	n.must(publish("modest", "m1", "umask", "001")) // one of greedy's, of whose daemons it is still
	n.code(publish("greedy", "last", "umask", "007"), codes.ResourceExhausted, "namespace greedy")
	n.stage("staged", "umask", "007") // by an administrator's volume, in no namespace
	n.must(publish("greedy", "ofStaged", "umask", "007"))
	n.must(n.unpublish("volume of g1", "g1"))
	n.must(publish("greedy", "more0", "umask", "004"))
	for _, pod := range []string{"g0", "again", "g2", "more0", "m0", "m1", "ofStaged"} {
		if !n.reads(n.target(pod), "a.bin") {
			t.Errorf("%s does not read its volume", pod)
		}
	}
	if page := n.metrics(t.Context()); !strings.Contains(page, "hbmfs_csi_refused_daemons_total 3\n") {
		t.Errorf("the metrics do not tell of it:\n%s", page)
	}
}
