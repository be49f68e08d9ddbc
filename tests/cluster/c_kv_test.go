package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// batch is how many blocks of how many bytes an order of a pod is about: see tests/cluster/pod.
const batch, blockBytes = 16, 64 << 10

// Limits of the KV volumes here.
const kvSize, kvMemory = 32 << 20, 8 << 20

// slack is more than the memory that a daemon keeps as state.
const slack = 1 << 20

// kv are the attributes of a KV volume.
func (c *cluster) kv(name, keepFor string) map[string]string {
	return map[string]string{"kv": c.at("kv", "train", name), "size": fmt.Sprint(kvSize), "memory": fmt.Sprint(kvMemory), "keepFor": keepFor}
}

// of has a pod run as a user with an fsGroup; 0 is none.
func of(user, group int) func(spec object) {
	return func(spec object) {
		s := spec["securityContext"].(object)
		if s["runAsUser"], s["fsGroup"] = user, group; group == 0 {
			delete(s, "fsGroup")
		}
	}
}

// blocks has a pod do something with a batch, all of whose blocks must meet with the same.
func blocks(t testing.TB, p *pod, what, file, want string) {
	t.Helper()
	if a := p.do(t, what, file); a.Blocks[want] != batch {
		t.Errorf("%s of %s in %s: %v, want %s", what, file, p.name, a.Blocks, want)
	}
}

// mustNotStart makes a pod that must not get its volume, waits until kubelet says why, and removes it.
func (c *cluster) mustNotStart(t testing.TB, namespace string, volume object, group int, why string) {
	t.Helper()
	p, body := &pod{namespace: namespace, name: "kv-refused"}, podObject("kv-refused", volume, "serve")
	of(1000, group)(body["spec"].(object))
	must(t, c.api("POST", "/api/v1/namespaces/"+namespace+"/pods", body, nil))
	c.await(t, "the pod is refused for "+why, func() error {
		for _, e := range c.events(p) {
			if strings.Contains(e, why) {
				t.Logf("event: %s", e)
				return nil
			}
		}
		return fmt.Errorf("%v", c.events(p))
	})
	c.remove(t, p)
}

// taken is what the files below a directory take of the disk.
func taken(t testing.TB, dir string) (bytes int64) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	}))
	return bytes
}

// hostMemory is the memory of files that the host's pod has, as KV volumes' memory is.
func (c *cluster) hostMemory(t testing.TB) int64 {
	t.Helper()
	return groupStat(t, c.partOf(t, "host")[0].Metadata.UID, "total_shmem")
}

// Pods of ordinary users share the blocks of one KV volume, inline and by a claim, past FUSE and without a privilege. A pod without their group
// gets none. The volume takes no more than it was given.
func TestKVVolume(t *testing.T) {
	c := need(t)
	c.await(t, "the driver is ready", func() error { return c.ready(t, "") })
	attributes, before := c.kv("llama", "0"), c.hostMemory(t)
	c.persistent(t, "llama", attributes)
	a := c.saver(t, "kv-claim", writes(claimed("llama")))
	b := c.saver(t, "kv-inline", writes(inline(attributes, "")), of(1001, fsGroup))
	r := c.saver(t, "kv-reads", inline(attributes, ""), of(1001, fsGroup))
	alone := c.saver(t, "kv-alone", writes(inline(attributes, "")), of(1002, 0))
	all := []*pod{a, b, r, alone}
	if n := keepers(); n != 1 {
		t.Errorf("the pods of one KV volume have %d mounts: %v", n, programs())
	}
	refused(t, alone, "kv-put", "its-own/one")
	blocks(t, a, "kv-put", "fp8/one", "done")
	for _, p := range []*pod{a, b, r} {
		blocks(t, p, "kv-get", "fp8/one", "done")
		blocks(t, p, "kv-get", "fp8/one", "memory")
	}
	blocks(t, b, "kv-put", "fp8/one", "present")
	refused(t, r, "kv-put", "fp8/two")
	refused(t, alone, "kv-get", "fp8/one")
	c.mustNotStart(t, "train", writes(inline(attributes, "")), fsGroup+1, "fsGroup")
	c.mustNotStart(t, "default", inline(attributes, ""), fsGroup, "namespace")
	for _, p := range all {
		who := p.do(t, "who", "").Facts
		for _, fact := range []string{"CapEff 0000000000000000", "NoNewPrivs 1", "Seccomp 2"} {
			if !slices.Contains(who, fact) {
				t.Errorf("%s: %v, want %s", p.name, who, fact)
			}
		}
	}
	c.fill(t, b, a, before)
	c.remove(t, all...)
	c.clean(t)
	c.awaitMemory(t, before)
}

// awaitMemory waits until the host has no more memory than before, but for state of daemons.
func (c *cluster) awaitMemory(t testing.TB, before int64) {
	t.Helper()
	c.await(t, "the memory is free", func() error {
		if n := c.hostMemory(t); n > before+slack {
			return fmt.Errorf("the host has %d bytes, and had %d", n, before)
		}
		return nil
	})
}

// fill has a pod store twice what its volume takes, another one look for all of it, and compares what the volume takes with its limits.
func (c *cluster) fill(t testing.TB, puts, gets *pod, before int64) {
	t.Helper()
	const batches = 2 * kvSize / (batch * blockBytes)
	stored, found := map[string]int64{}, map[string]int64{}
	for _, pass := range []struct {
		p    *pod
		what string
		sum  map[string]int64
	}{{puts, "kv-put", stored}, {gets, "kv-get", found}} {
		for i := range batches {
			for outcome, n := range pass.p.do(t, pass.what, fmt.Sprint("fp8/fill-", i)).Blocks {
				pass.sum[outcome] += n
			}
			disk := int64(0) // room that goes from file to file meanwhile may count twice
			if !blackbox.Within(time.Second, func() bool { disk = taken(t, c.at("kv", "train", "llama")); return disk <= kvSize }) {
				t.Fatalf("the volume takes %d bytes of the disk, and may take %d", disk, kvSize)
			}
		}
	}
	disk, memory := taken(t, c.at("kv", "train", "llama")), c.hostMemory(t)-before
	pods := groupStat(t, c.uid(t, puts), "total_shmem") + groupStat(t, c.uid(t, gets), "total_shmem")
	t.Logf("of %d blocks of 64 KiB: stored %v, found %v; %d bytes on the disk, %d in memory of the host's pod, and %d of the two pods",
		batch*batches, stored, found, disk, memory, pods)
	if stored["done"] == 0 || found["disk"] == 0 || found["memory"] == 0 || found["done"]+found["missing"] != batch*batches {
		t.Errorf("stored %v, found %v", stored, found)
	}
	if memory > kvMemory+slack || pods > 0 {
		t.Errorf("the volume takes %d bytes of memory, and may take %d; pods have %d of it", memory, kvMemory, pods)
	}
	mounts, err := filepath.Glob("/var/lib/hbmfs/volumes/*/mnt")
	must(t, err)
	args := []string{"kubectl", "-n", "hbmfs", "exec", c.partOf(t, "host")[0].Metadata.Name, "--", "hbmfs", "kv", "stats"}
	stats := c.tool(t, "", append(args, mounts...)...)
	if !strings.Contains(stats, "fp8") {
		t.Errorf("hbmfs kv stats in the host's pod says %s", stats)
	}
	t.Log(stats)
}

// uid is that of a pod.
func (c *cluster) uid(t testing.TB, p *pod) string {
	t.Helper()
	var s podStatus
	must(t, c.api("GET", p.path(), nil, &s))
	return s.Metadata.UID
}

// awaitHolds waits until a namespace of the only KV volume has so many pins and reservations.
func (c *cluster) awaitHolds(t testing.TB, namespace string, want uint64) {
	t.Helper()
	c.await(t, fmt.Sprintf("%d pins and reservations", want), func() error {
		found, _ := filepath.Glob("/var/lib/hbmfs/volumes/*/mnt") // of a pattern that is one
		if len(found) != 1 {
			return fmt.Errorf("the volumes are %v", found)
		}
		var s status.Status
		text, err := os.ReadFile(filepath.Join(found[0], ".hbmfs", "status"))
		if err = errors.Join(err, json.Unmarshal(text, &s)); err != nil || s.KV == nil {
			return errors.Join(err, errors.New("that is no KV volume"))
		}
		for _, n := range s.KV.Namespaces {
			if n.Name == namespace && n.Pins+n.Reservations == want {
				return nil
			}
		}
		return fmt.Errorf("there are %v", s.KV.Namespaces)
	})
}

// awaitKnown waits until the plugin has the process of each pod: what they hold outlives the host's container from now on.
func (c *cluster) awaitKnown(t testing.TB, pods ...*pod) {
	t.Helper()
	c.await(t, "the plugin knows the pods' processes", func() error {
		var known strings.Builder
		for _, pid := range processesOf(c.partOf(t, "plugin")[0]) {
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid)) // of a pattern that is one
			for _, fd := range fds {
				text, _ := os.ReadFile(fd) // it may be closed by now
				known.Write(text)
			}
		}
		for _, p := range pods {
			var s podStatus
			must(t, c.api("GET", p.path(), nil, &s))
			for _, pid := range processesOf(s) {
				if !strings.Contains(known.String(), fmt.Sprintf("\nPid:\t%d\n", pid)) {
					return fmt.Errorf("that of %s, %d, is not among them", p.name, pid)
				}
			}
		}
		return nil
	})
}

// Pods go on with a KV volume, and what they hold stays, whatever part of the driver ends. What a pod held that is killed comes back, and nothing
// is found that it has not stored wholly.
func TestKVVolumeOverFaults(t *testing.T) {
	c := need(t)
	ready := func() { c.await(t, "the driver is ready", func() error { return c.ready(t, "") }) }
	ready()
	c.persistent(t, "serving", c.kv("serving", "0"))
	stays := c.saver(t, "kv-stays", writes(claimed("serving")))
	shares := c.saver(t, "kv-shares", writes(claimed("serving")), of(1001, fsGroup))
	blocks(t, stays, "kv-put", "held/all", "done")
	blocks(t, stays, "kv-pin", "held/all", "done")
	all := []reader{{stays, "fp8/stays"}, {shares, "fp8/shares"}}
	for _, r := range all {
		blocks(t, r.pod, "kv-put", r.file, "done")
		r.do(t, "kv-loop", r.file)
	}
	c.goOn(t, "their start", all)
	var dead []*pod
	for i, fault := range []struct {
		name string
		do   func()
	}{
		{"nothing", func() {}},
		{"every daemon was killed", func() { killPrograms(false) }},
		{"every keeper was killed", func() { killPrograms(true) }},
		{"every daemon and keeper was killed", func() { killPrograms(false); killPrograms(true) }},
		{"the plugin's pod was deleted", func() { c.deletePart(t, "plugin") }},
		{"the host's pod was deleted", func() { c.deletePart(t, "host") }},
		{"the host was killed", func() { c.killPart(t, "host") }},
	} {
		p := c.saver(t, fmt.Sprint("kv-dies-", i), writes(claimed("serving")), of(1001, fsGroup))
		loop, half := fmt.Sprint("fp8/dies-", i), fmt.Sprint("held/half-", i)
		blocks(t, p, "kv-put", loop, "done")
		p.do(t, "kv-loop", loop)
		blocks(t, p, "kv-pin", "held/all", "done")
		p.do(t, "kv-half", half)
		c.awaitKnown(t, stays, shares, p)
		fault.do()
		ready()
		c.goOn(t, fault.name, append([]reader{{p, loop}}, all...))
		c.awaitHolds(t, "held", 3*batch)
		passes, began := p.do(t, "so-far", "").Passes, time.Now()
		c.kill(t, p)
		c.awaitHolds(t, "held", batch)
		t.Logf("%s: what the pod that died had held was back after %.2f s", fault.name, time.Since(began).Seconds())
		blocks(t, stays, "kv-get", half, "missing")
		blocks(t, stays, "kv-put", half, "done")
		blocks(t, stays, "kv-get", half, "done")
		for n := range int64(20) { // of the last passes every byte is right, or the block is not there
			stays.do(t, "kv-get", fmt.Sprint(loop, "-pass-", passes+n))
		}
		must(t, c.api("DELETE", p.path(), nil, nil))
		dead = append(dead, p)
	}
	blocks(t, stays, "kv-unpin", "held/all", "done")
	blocks(t, shares, "kv-get", "held/all", "memory")
	c.awaitHolds(t, "held", 0)
	if used, capacity := c.volumeStats(t, stays); used > kvSize || capacity != kvSize {
		t.Errorf("kubelet says that the volume uses %d of %d bytes", used, capacity)
	}
	c.remove(t, append(dead, pods(all)...)...)
	c.clean(t)
}

// A pod that has just come holds its slots over the end of all of the host's container, though only its keeper knew the pod. What the pod writes
// afterwards is in no block of another pod's.
func TestKVVolumeOfTheLastMoment(t *testing.T) {
	c := need(t)
	ready := func() { c.await(t, "the driver is ready", func() error { return c.ready(t, "") }) }
	ready()
	attributes := c.kv("moment", "0")
	stays := c.saver(t, "kv-waits", writes(inline(attributes, "")))
	blocks(t, stays, "kv-put", "fp8/all", "done")
	c.awaitKnown(t, stays)
	late := c.saver(t, "kv-late", writes(inline(attributes, "")), of(1001, fsGroup))
	pids := processesOf(c.partOf(t, "host")[0])
	began := time.Now()
	late.do(t, "kv-half", "fp8/late")
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	t.Logf("all of the host's container was killed %v after the pod was told to reserve slots", time.Since(began))
	c.await(t, "the host's end is seen", func() error { return c.hostSeen(t, pids) })
	ready()
	c.awaitHolds(t, "fp8", batch)
	const batches = (kvSize + kvMemory) / (batch * blockBytes)
	for i := range batches { // all other slots
		c.soon(t, stays, "kv-put", fmt.Sprint("fp8/others-", i))
	}
	late.do(t, "kv-rest", "fp8/late")
	for i := range batches {
		stays.do(t, "kv-get", fmt.Sprint("fp8/others-", i))
	}
	c.kill(t, late)
	c.awaitHolds(t, "fp8", 0)
	c.remove(t, late, stays)
	c.clean(t)
	c.deletePart(t, "host") // whose container would wait before its next start
	ready()
}

// A KV volume stays for a time after its last pod: the next one finds blocks in memory, over the end of the host. A volume with other attributes
// takes its directory, and finds what is on the disk. After its time nothing is left but that.
func TestKVVolumeIsKept(t *testing.T) {
	c := need(t)
	ready := func() { c.await(t, "the driver is ready", func() error { return c.ready(t, "") }) }
	ready()
	long, short := c.kv("kept", "10m"), c.kv("kept", "2s")
	const batches = 2 * kvMemory / (batch * blockBytes)
	look := func(name string, attributes map[string]string) (found map[string]int64) {
		p := c.saver(t, name, writes(inline(attributes, "")))
		found = map[string]int64{}
		for i := range batches {
			for outcome, n := range p.do(t, "kv-get", fmt.Sprint("fp8/kept-", i)).Blocks {
				found[outcome] += n
			}
		}
		t.Logf("%s with keepFor %s: %v", name, attributes["keepFor"], found)
		c.remove(t, p)
		return found
	}
	p := c.saver(t, "kv-first", writes(inline(long, "")))
	for i := range batches {
		blocks(t, p, "kv-put", fmt.Sprint("fp8/kept-", i), "done")
	}
	c.awaitKnown(t, p)
	c.remove(t, p)
	if found := look("kv-again", long); found["done"] != batches*batch || found["memory"] == 0 {
		t.Errorf("a pod that comes again finds %v", found)
	}
	c.deletePart(t, "host")
	ready()
	if found := look("kv-after-host", long); found["done"] != batches*batch || found["memory"] == 0 {
		t.Errorf("after the host's pod was deleted a pod finds %v", found)
	}
	if found := look("kv-short", short); found["disk"] == 0 || found["done"]+found["missing"] != batches*batch {
		t.Errorf("a volume with other attributes finds %v", found)
	}
	c.clean(t)
	c.awaitMemory(t, 0)
	if found := look("kv-another-day", short); found["disk"] == 0 {
		t.Errorf("on another day a pod finds %v", found)
	}
	c.clean(t)
}
