package csi_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/observe/status"
)

// kvVolume is a PersistentVolume of KV blocks, whose pods run as user 1000 with fsGroup 2000. It ends with its last pod. pairs are more
// attributes.
func (n *node) kvVolume(name string, pairs ...string) *volume {
	v := &volume{name: name, fsGroup: "2000", writes: true, attributes: map[string]string{
		"kv": filepath.Join(n.blocks, "default", name), "size": "8MiB", "memory": "4MiB", "keepFor": "0",
	}}
	for i := 0; i < len(pairs); i += 2 {
		if v.attributes[pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
			delete(v.attributes, pairs[i])
		}
	}
	return v
}

// kvStatus is what a pod sees of its KV volume.
func kvStatus(p *pod) *status.KV {
	p.n.t.Helper()
	a, _ := p.soon("status", file{})
	var s status.Status
	must(p.n.t, json.Unmarshal([]byte(a.Text), &s))
	if s.KV == nil || len(s.KV.Namespaces) == 0 {
		p.n.t.Fatalf("the status has no namespace: %s", a.Text)
	}
	return s.KV
}

// holds is how many pins and reservations the volume's first namespace has.
func holds(p *pod) uint64 {
	p.n.t.Helper()
	s := kvStatus(p).Namespaces[0]
	return s.Pins + s.Reservations
}

// mustHold waits until the volume's first namespace has so many pins and reservations.
func mustHold(p *pod, want uint64) {
	p.n.t.Helper()
	began := time.Now()
	if !within(func() bool { return holds(p) == want }) {
		p.n.t.Fatalf("there are %d pins and reservations, want %d", holds(p), want)
	}
	p.n.t.Logf("%d pins and reservations after %v", want, time.Since(began))
}

// TestKVVolumes has pods of one node share blocks past FUSE: as one user with fsGroup, as others by the modes of namespaces, and beside pods
// that only read. They share a daemon, and a pod that is killed gives its pins back.
func TestKVVolumes(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	n := newNode(t)
	v := n.kvVolume("llama")
	inline := v.inlined("inline")
	inline.attributes["memory"] = "4096KiB" // the same
	a, b := n.startPod(v, podOptions{ordinary: true}), n.startPod(inline, podOptions{ordinary: true, propagate: true})
	reads := n.startPod(v.reader(), podOptions{ordinary: true})
	other := n.startPod(inline, podOptions{}) // of another user, without the group
	if d := n.daemons(); len(d) != 1 {
		t.Errorf("pods of one KV volume have %d daemons: %v", len(d), d)
	}
	if said := reads.do("put", block("fp8/early")).Error; !strings.Contains(said, "read-only file system") {
		t.Errorf("a pod that reads has made a namespace: %q", said)
	}
	if said := other.do("put", block("its/own")).Error; !strings.Contains(said, "its mode says") {
		t.Errorf("a pod without the group has made a namespace: %q", said)
	}
	a.must("put", block("fp8/one"))
	if said := b.do("put", block("fp8/one")).Error; !strings.Contains(said, "file exists") {
		t.Errorf("a block was stored twice: %q", said)
	}
	for _, p := range []*pod{a, b} {
		if tier := p.must("get", block("fp8/one")).Text; tier != "memory" {
			t.Errorf("the block is on the %s", tier)
		}
	}
	reads.must("fetch", block("fp8/one"))
	for _, verb := range []string{"put", "get"} { // which opens to write
		if said := reads.do(verb, block("fp8/one")).Error; !strings.Contains(said, "read-only file system") {
			t.Errorf("%s by a pod that reads: %q", verb, said)
		}
	}
	if said := other.do("fetch", block("fp8/one")).Error; !strings.Contains(said, "its mode says") {
		t.Errorf("another user reads a block of a namespace with mode 0640: %q", said)
	}
	must(t, os.Chmod(filepath.Join(v.attributes["kv"], "fp8", "space"), 0o644))
	other.must("fetch", block("fp8/one"))
	if said := other.do("put", block("fp8/two")).Error; !strings.Contains(said, "its mode says") {
		t.Errorf("another user writes to a namespace with mode 0644: %q", said)
	}
	for _, p := range []*pod{b, other} { // of a PID namespace, and of a user namespace
		verb := map[*pod]string{b: "get", other: "fetch"}[p]
		p.must(verb, block("fp8/one"))
	}
	b.must("pin", block("fp8/one"))
	b.must("reserve", block("fp8/never"))
	mustHold(a, 2)
	b.kill()
	mustHold(a, 0)
	a.must("put", block("fp8/never"))
	if r, err := n.stats(v, a.uid); err != nil || r.GetVolumeCondition().GetAbnormal() || r.GetUsage()[0].GetTotal() != 8<<20 {
		t.Errorf("%v, %v", r, err)
	}
	mounts, err := filepath.Glob(filepath.Join(n.state, "volumes", "*", "mnt"))
	must(t, err)
	if out, err := exec.Command(suite.Path(), append([]string{"kv", "clear", "--all"}, mounts...)...).CombinedOutput(); err != nil { // on the node
		t.Errorf("hbmfs kv clear: %v: %s", err, out)
	}
	if said := a.do("get", block("fp8/one")).Error; !strings.Contains(said, "no such file") {
		t.Errorf("a block that was cleared: %q", said)
	}
	n.stopPods([]*pod{a, b, reads, other})
	n.unstage(v)
	n.mustBeClean()
}

// TestKVVolumesOverFaults kills and replaces each part of the driver under pods that hold blocks: what was in memory stays there, pins hold,
// and those of a pod that was killed meanwhile come back.
func TestKVVolumesOverFaults(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	n := newNode(t)
	v := n.kvVolume("llama")
	stays := n.startPod(v, podOptions{ordinary: true})
	stays.must("put", block("fp8/held"))
	if s := handovers(t, stays); s.Holder != "keeper" {
		t.Skip("no keeper holds the mount: ", s.Why)
	}
	for _, c := range []struct {
		name          string
		before, after func() // the pod dies
	}{
		{"a daemon before", func() { n.killDaemons(n.daemons()...) }, func() {}},
		{"a daemon after", func() {}, func() { n.killDaemons(n.daemons()...) }},
		{"keepers", func() { n.killDaemons(n.keepers()...) }, func() {}},
		{"the plugin", n.restartPlugin, n.restartPlugin},
		{"the host", n.restartHost, n.restartHost},
		{"the host's container at once", func() { n.host.kill(); n.killHeld(); n.startHost() }, func() {}}, // nobody else has the process yet
		{"the host's container before", func() { n.awaitBlocks(2); n.host.kill(); n.killHeld(); n.startHost() }, func() {}},
		{"the host's container after", func() { n.awaitBlocks(2) }, func() { n.host.kill(); n.killHeld(); n.startHost() }},
		{"the host's image", func() { n.awaitBlocks(2); n.host.kill(); n.killHeld(); n.nextImage(); n.startHost() }, func() {}},
	} {
		t.Log(c.name)
		stays.soon("pin", block("fp8/held"))
		p := n.startPod(v, podOptions{ordinary: true})
		p.must("pin", block("fp8/held"))
		p.must("reserve", block("fp8/half"))
		c.before()
		n.waitReady()
		mustHold(stays, 3)
		p.kill()
		c.after()
		n.waitReady()
		mustHold(stays, 1)
		n.unpublish(v, p.uid)
		if a, _ := stays.soon("get", block("fp8/held")); a.Text != "memory" {
			t.Errorf("%s: the block is on the %s", c.name, a.Text)
		}
		stays.must("unpin", block("fp8/held"))
		mustHold(stays, 0)
		n.forgetPod(p)
	}
	n.killHeld() // a daemon and its keeper that die with the last pod
	n.stopPod(stays)
	n.unstage(v)
	n.mustBeClean()
}

// awaitBlocks waits until the plugin holds a mount with the processes that have blocks, as the keeper has them by now.
func (n *node) awaitBlocks(processes int) {
	n.t.Helper()
	if !within(func() bool {
		pidfds := func(p *process) (count int) {
			fds, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(p.pid()), "fd", "*")) // the pattern is good
			for _, fd := range fds {
				if to, _ := os.Readlink(fd); strings.Contains(to, "pidfd") {
					count++
				}
			}
			return count
		}
		return n.host.holds(n.t) == 1 && n.plugin.holds(n.t) == 1 && pidfds(n.plugin) >= processes
	}) {
		n.t.Fatalf("the host holds %d mounts and the plugin %d, or not all processes", n.host.holds(n.t), n.plugin.holds(n.t))
	}
}

// TestAServingPodThatStartsAgain: a KV volume stays for a time after its last pod, with what is in memory. It goes on with the next host, and
// gives way to a volume that needs its memory or its directory. Later the disk has what was there.
func TestAServingPodThatStartsAgain(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	n := newNode(t)
	v := n.kvVolume("llama", "keepFor", "", "memory", "40MiB", "size", "8MiB") // ten minutes
	p := n.startPod(v, podOptions{ordinary: true})
	p.must("put", block("fp8/one"))
	n.stopPod(p)
	n.unstage(v)
	n.restartHost()
	n.waitReady()
	p = n.startPod(v, podOptions{ordinary: true})
	if tier := p.must("get", block("fp8/one")).Text; tier != "memory" {
		t.Errorf("the block is on the %s", tier)
	}
	large := n.kvVolume("large", "memory", "30MiB")
	mustRefuse(t, "more memory than there is", n.stageOnce(large), "ResourceExhausted", "--kv-memory")
	n.stopPod(p)
	n.unstage(v)
	q := n.startPod(large, podOptions{ordinary: true}) // for which that one ends
	if d := n.daemons(); len(d) != 1 {
		t.Errorf("a volume that nobody uses does not give way: %v", d)
	}
	n.stopPod(q)
	n.unstage(large)
	n.mustBeClean()

	disk := n.kvVolume("disk", "memory", "", "keepFor", "24h")
	p = n.startPod(disk, podOptions{ordinary: true})
	p.must("put", block("fp8/two"))
	n.stopPod(p)
	n.unstage(disk)
	again := n.kvVolume("disk", "memory", "", "keepFor", "1s") // with other attributes: it takes the directory
	p = n.startPod(again, podOptions{ordinary: true})
	if tier := p.must("get", block("fp8/two")).Text; tier != "disk" {
		t.Errorf("the block is in %s", tier)
	}
	n.stopPod(p)
	n.unstage(again)
	n.mustBeClean() // after a second
}

// TestKVVolumesThatAreRefused: hostile and wrong attributes, directories of other namespaces, volumes that would meet, more than there is.
func TestKVVolumesThatAreRefused(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	n := newNode(t)
	in := func(name string) string { return filepath.Join(n.blocks, name) }
	must(t, errors.Join(os.Mkdir(in("default"), 0o755), os.Symlink("/etc", in("default/link"))))
	v := n.kvVolume("llama").inlined("first")
	p := n.startPod(v, podOptions{ordinary: true})
	p.must("put", block("fp8/one"))
	for _, c := range []struct {
		what        string
		pairs       []string
		want, names string
	}{
		{"a directory outside", []string{"kv", n.checkpoints + "/default/x"}, "FailedPrecondition", "--allow-kv"},
		{"a path that climbs", []string{"kv", n.blocks + "/default/../../state"}, "InvalidArgument", "kv"},
		{"no path", []string{"kv", "blocks"}, "InvalidArgument", "absolute directory"},
		{"the directory of all", []string{"kv", n.blocks}, "FailedPrecondition", "--allow-kv"},
		{"another namespace's", []string{"kv", in("team/llama")}, "FailedPrecondition", "namespace"},
		{"the namespace's own", []string{"kv", in("default")}, "FailedPrecondition", "namespace"},
		{"a link", []string{"kv", in("default/link")}, "FailedPrecondition", "link"},
		{"in a volume", []string{"kv", in("default/llama/fp8")}, "FailedPrecondition", "a KV volume's directory"},
		{"the same with other attributes", []string{"kv", in("default/llama"), "size", "16MiB"}, "FailedPrecondition", "two volumes"},
		{"no size", []string{"size", ""}, "InvalidArgument", "size is missing"},
		{"a size that is none", []string{"size", "much"}, "InvalidArgument", "size"},
		{"too small", []string{"size", "4KiB"}, "InvalidArgument", "at least 1MiB"},
		{"more than the disk has", []string{"size", "800PiB"}, "ResourceExhausted", "name less"},
		{"memory that is none", []string{"memory", "-1"}, "InvalidArgument", "memory"},
		{"more memory than KV volumes have", []string{"memory", "65MiB"}, "FailedPrecondition", "--kv-memory"},
		{"more than a namespace's half", []string{"memory", "33MiB"}, "FailedPrecondition", "half of"},
		{"half of it, beside others", []string{"memory", "29MiB"}, "ResourceExhausted", "namespace default"},
		{"a time that is none", []string{"keepFor", "long"}, "InvalidArgument", "keepFor"},
		{"for ever", []string{"keepFor", "9999h"}, "InvalidArgument", "24h"},
		{"a source", []string{"source", n.data}, "InvalidArgument", "contradict"},
		{"checkpoints", []string{"checkpoints", "true"}, "InvalidArgument", "checkpoints"},
		{"a dataset's attribute", []string{"uid", "0"}, "InvalidArgument", "uid"},
		{"an option that looks like a flag", []string{"size", "--memory=1G"}, "InvalidArgument", "size"},
		{"memory of a dataset", []string{"kv", "", "source", n.data, "size", "", "keepFor", ""}, "InvalidArgument", "KV volumes"},
	} {
		w := n.kvVolume("new", c.pairs...).inlined("x")
		mustRefuse(t, c.what, n.publishOnce(n.publishRequest(w, "pod-9000")), c.want, c.names)
		must(t, os.RemoveAll(n.podDir("pod-9000")))
	}
	w := n.kvVolume("new").inlined("x")
	w.secrets = s3Key{"AKIDGOOD", "hush", ""}.secret()
	mustRefuse(t, "a secret", n.publishOnce(n.publishRequest(w, "pod-9000")), "InvalidArgument", "secret")
	other := v.inlined("group")
	other.fsGroup = "3000"
	mustRefuse(t, "another fsGroup", n.publishOnce(n.publishRequest(other, "pod-9001")), "FailedPrecondition", "fsGroup")
	for _, uid := range []string{"pod-9000", "pod-9001"} {
		must(t, os.RemoveAll(n.podDir(uid)))
	}
	var st unix.Stat_t
	must(t, unix.Stat(v.attributes["kv"], &st))
	if st.Gid != 2000 || st.Mode&0o7777 != unix.S_ISGID|0o775 {
		t.Errorf("the volume's directory has group %d and mode %o", st.Gid, st.Mode)
	}
	for _, dir := range []string{in("team"), "/etc/hbmfs"} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", dir, err)
		}
	}
	n.stopPod(p)
	n.mustBeClean()
}
