package host

import (
	"errors"
	"fmt"
	"path/filepath"
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

// TestDaemonsThatLingerCount has pods come and go, each with a KV volume of its own that stays. There are never more daemons than may be, of the node and of a
// namespace: the volume ends whose time is over first.
func TestDaemonsThatLingerCount(t *testing.T) {
	for what, c := range map[string]struct{ node, namespace int }{"of the node": {2, 0}, "of the namespace": {9, 2}} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			dir := n.kvDir("")
			n.opt.MaxDaemons, n.opt.MaxOfNamespace = c.node, c.namespace
			publish := func(name string) error {
				return n.publish(name, name, "kv", filepath.Join(dir, name), "size", "1MiB", "keepFor", "10m", "csi.storage.k8s.io/pod.namespace", "team")
			}
			served := func(name string) {
				t.Helper()
				n.within(name+" is served", func() bool {
					err := publish(name)
					if err != nil {
						n.code(err, codes.Unavailable, "try again")
					}
					if d := n.daemons(); len(d) > 2 {
						t.Errorf("daemons %v run, and two may", d)
					}
					return err == nil
				})
			}
			for _, name := range []string{"one", "two", "three"} {
				served(name)
				n.must(n.unpublish(name, name))
			}
			n.must(publish("two")) // which stayed: it needs no place
			served("three")
			n.code(publish("four"), codes.ResourceExhausted, "have")
			n.must(errors.Join(n.unpublish("two", "two"), n.unpublish("three", "three")))
		})
	}
}

// TestARefusalEndsNoVolume: a volume that lingers ends only for one that is not refused for another reason.
func TestARefusalEndsNoVolume(t *testing.T) {
	n := newNode(t)
	dir := n.kvDir("")
	publish := func(pod, path, memory string) error {
		return n.publish(pod, pod, "kv", filepath.Join(dir, path), "size", "1MiB", "memory", memory, "keepFor", "10m")
	}
	n.must(publish("stays", "a/stays", "6MiB"))
	n.mu.Lock()
	v, _ := n.published(n.target("stays"))
	n.mu.Unlock()
	n.must(publish("used", "a/used", "1MiB"))
	n.must(n.unpublish("stays", "stays"))
	for _, limit := range []int{0, 2} { // nor a daemon
		n.opt.MaxDaemons = limit
		n.code(publish("other", "a/used", "4MiB"), codes.FailedPrecondition, "directory") // there is no memory for it either
		n.code(publish("other", "a", "1MiB"), codes.FailedPrecondition, "directory")      // nor is it another one's alone
		n.code(publish("other", "c", "9MiB"), codes.FailedPrecondition, "memory")
	}
	if !n.kept(v) {
		t.Error("a volume ended for one that was refused")
	}
	n.code(publish("other", "c", "4MiB"), codes.Unavailable, "try again")
	if n.kept(v) {
		t.Error("a volume lingers whose place another one needs")
	}
	n.must(n.unpublish("used", "used"))
}
