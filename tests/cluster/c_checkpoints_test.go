package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// fsGroup is that of pods whose volumes are written to.
const fsGroup = 2000

// checkpoints are the attributes of a checkpoint volume. pairs are more of them.
func (c *cluster) checkpoints(name string, pairs ...string) map[string]string {
	attributes := map[string]string{"checkpoints": "true", "source": c.at("checkpoints", "train", name)}
	for i := 0; i < len(pairs); i += 2 {
		attributes[pairs[i]] = pairs[i+1]
	}
	return attributes
}

// shardOf is the file of a checkpoint.
func shardOf(name string) string { return name + "/shard.bin" }

// saver starts a pod of an ordinary user's with a volume that pods write to. change changes its specification.
func (c *cluster) saver(t testing.TB, name string, volume object, change ...func(spec object)) *pod {
	t.Helper()
	body := podObject(name, volume, "serve")
	spec := body["spec"].(object)
	spec["securityContext"].(object)["fsGroup"] = fsGroup
	for _, do := range change {
		do(spec)
	}
	p := &pod{namespace: "train", name: name, asked: time.Now()}
	must(t, c.api("POST", "/api/v1/namespaces/train/pods", body, nil))
	c.started(t, p)
	return p
}

// soon is do for what may fail for a while after a fault.
func (c *cluster) soon(t testing.TB, p *pod, what, file string) (a answer) {
	t.Helper()
	c.await(t, what+" of "+file+" in "+p.name, func() (err error) {
		if a, err = p.try(what, file); a.Wrong != "" {
			t.Fatalf("%s of %s in %s gives wrong bytes: %s", what, file, p.name, a.Wrong)
		}
		return err
	})
	return a
}

// refused has a pod do what must fail.
func refused(t testing.TB, p *pod, what, file string) {
	t.Helper()
	if _, err := p.try(what, file); err == nil {
		t.Errorf("%s: %s of %s was not refused", p.name, what, file)
	} else {
		t.Logf("%s: %s of %s is refused: %v", p.name, what, file, err)
	}
}

// reads has pods read a checkpoint, by the kernel and past it, and compares it with what is on the node's disk.
func reads(t testing.TB, dir, name string, all ...*pod) {
	t.Helper()
	want := sum(t, filepath.Join(dir, shardOf(name)))
	for _, p := range all {
		read, past := p.do(t, "hash", shardOf(name)), p.do(t, "past", shardOf(name))
		if read.SHA256 != want || past.SHA256 != want || past.Past != read.Bytes {
			t.Errorf("%s in %s: read %v, past FUSE %v, want %s", name, p.name, read, past, want)
		}
	}
}

// drafts are the hidden names of drafts in a directory of the node.
func drafts(t testing.TB, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && strings.HasSuffix(e.Name(), ".tmp") {
			found = append(found, e.Name())
		}
	}
	return found
}

// awaitDrafts waits until a directory has so many drafts, and says how long.
func (c *cluster) awaitDrafts(t testing.TB, dir string, count int, after string) time.Duration {
	t.Helper()
	began := time.Now()
	c.await(t, fmt.Sprintf("%d drafts are there after %s", count, after), func() error {
		if found := drafts(t, dir); len(found) != count {
			return fmt.Errorf("there are %v", found)
		}
		return nil
	})
	return time.Since(began)
}

// awaitHeld waits until the plugin holds a draft, and says how long: a draft of this moment ends with the container of the host, where its
// daemon and its keeper are.
func (c *cluster) awaitHeld(t testing.TB, dir, name string) time.Duration {
	t.Helper()
	began := time.Now()
	c.await(t, "the plugin holds the draft "+name, func() error {
		var lock unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, "."+name+".hbmfs.lock"), &lock); err != nil {
			return err
		}
		locked, told := false, false
		for _, pid := range processesOf(c.partOf(t, "plugin")[0]) {
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // of a pattern that is one
			for _, fd := range fds {
				var st unix.Stat_t
				locked = locked || unix.Stat(fd, &st) == nil && st.Dev == lock.Dev && st.Ino == lock.Ino
				if to, _ := os.Readlink(fd); strings.HasPrefix(to, "/memfd:hbmfs") { // it may be closed by now
					text, _ := os.ReadFile(fd)
					told = told || strings.Contains(string(text), `"Name":"`+name+`"`)
				}
			}
		}
		if !locked || !told {
			return fmt.Errorf("it has the lock: %v, the record: %v", locked, told)
		}
		return nil
	})
	return time.Since(began)
}

// keepers counts those of all mounts.
func keepers() (n int) {
	for _, p := range programs() {
		if p.isKeeper() {
			n++
		}
	}
	return n
}

// kill kills all processes of a pod.
func (c *cluster) kill(t testing.TB, p *pod) {
	t.Helper()
	var s podStatus
	must(t, c.api("GET", p.path(), nil, &s))
	for _, pid := range processesOf(s) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

// Pods of an ordinary user write, publish and read checkpoints of one volume, inline and by a claim, by the kernel and past it, without a
// privilege. Their files are the fsGroup's. What is published is seen as a whole, and never changes.
func TestCheckpointVolume(t *testing.T) {
	c := need(t)
	c.await(t, "the driver is ready", func() error { return c.ready(t, "") })
	attributes, dir := c.checkpoints("run"), c.at("checkpoints", "train", "run")
	c.persistent(t, "run", attributes)
	a := c.saver(t, "claim-writes", writes(claimed("run")))
	b := c.saver(t, "inline-writes", writes(inline(attributes, "")))
	r := c.saver(t, "claim-reads", claimed("run"))
	s := c.saver(t, "inline-reads", inline(attributes, ""), func(spec object) { spec["securityContext"].(object)["runAsUser"] = 1001 })
	all := []*pod{a, b, r, s}
	if n := keepers(); n != 1 {
		t.Errorf("the pods of one checkpoint volume have %d mounts: %v", n, programs())
	}
	for i, p := range []*pod{a, b} {
		plain, past := fmt.Sprint("plain-", i), fmt.Sprint("past-", i)
		p.do(t, "begin", plain)
		p.do(t, "begin-past", past)
		for _, q := range []*pod{r, s} {
			for _, name := range q.do(t, "list", "").Facts {
				if name == plain || name == past {
					t.Errorf("%s sees %s, which is not published", q.name, name)
				}
			}
		}
		refused(t, s, "list", plain+".tmp") // another user's
		p.do(t, "publish", plain)
		p.do(t, "publish-past", past)
		for _, name := range []string{plain, past} {
			reads(t, dir, name, all...)
			want := []string{"Uid 1000", fmt.Sprint("Gid ", fsGroup), "Mode 444"}
			if have := p.do(t, "owner", shardOf(name)).Facts; !slices.Equal(have, want) {
				t.Errorf("%s has %v, want %v", name, have, want)
			}
			for _, q := range all {
				q.do(t, "change", name)
			}
			refused(t, p, "begin", name)
			refused(t, p, "begin-past", name)
		}
	}
	for _, q := range []*pod{r, s} {
		refused(t, q, "begin", "of-a-reader")
		refused(t, q, "begin-past", "of-a-reader")
		refused(t, q, "remove", "plain-0")
	}
	t.Logf("%s: %v", a.name, a.do(t, "who", "").Facts)
	b.do(t, "remove", "plain-0")
	if _, err := os.Stat(filepath.Join(dir, "plain-0")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a checkpoint that was removed is there: %v", err)
	}
	c.volumeStats(t, a)
	c.remove(t, all...)
	c.clean(t)
	again := c.saver(t, "on-another-day", claimed("run"))
	reads(t, dir, "past-1", again)
	c.remove(t, again)
	c.clean(t)
}

// volumeStats waits until kubelet says how full a pod's volume is.
func (c *cluster) volumeStats(t testing.TB, p *pod) (used, capacity int64) {
	t.Helper()
	c.await(t, "kubelet has statistics of the volume", func() error {
		var summary struct {
			Pods []struct {
				PodRef  struct{ Name string }
				Volumes []struct {
					Name                                     string
					UsedBytes, AvailableBytes, CapacityBytes int64
				} `json:"volume"`
			}
		}
		if err := c.api("GET", "/api/v1/nodes/node-1/proxy/stats/summary", nil, &summary); err != nil {
			return err
		}
		for _, q := range summary.Pods {
			for _, v := range q.Volumes {
				if q.PodRef.Name == p.name && v.Name == "data" && v.UsedBytes > 0 {
					t.Logf("kubelet: the volume of %s uses %d bytes, and %d are free", p.name, v.UsedBytes, v.AvailableBytes)
					used, capacity = v.UsedBytes, v.CapacityBytes
					return nil
				}
			}
		}
		return fmt.Errorf("none in %v", summary)
	})
	return used, capacity
}

// Drafts of a pod that is killed, deleted by force or started again are gone, whatever part of the driver ends beside it. Those of another
// pod, and what is published, stay.
func TestDraftsOfPods(t *testing.T) {
	c := need(t)
	ready := func() { c.await(t, "the driver is ready", func() error { return c.ready(t, "") }) }
	ready()
	dir := c.at("checkpoints", "train", "drafts")
	c.persistent(t, "drafts", c.checkpoints("drafts"))
	stays := c.saver(t, "stays", writes(claimed("drafts")))
	stays.do(t, "begin", "stays")
	stays.do(t, "begin-past", "stays-past")
	killed := func(p *pod) { c.kill(t, p) }
	for i, fault := range []struct {
		name string
		do   func()
		end  func(p *pod)
	}{
		{"nothing", func() {}, killed},
		{"every daemon was killed", func() { killPrograms(false) }, killed},
		{"every keeper was killed", func() { killPrograms(true) }, killed},
		{"the plugin's pod was deleted", func() { c.deletePart(t, "plugin") }, killed},
		{"the host's pod was deleted", func() { c.deletePart(t, "host") }, killed},
		{"the host was killed", func() { c.killPart(t, "host") }, killed},
		{"kubelet was killed, and the pod deleted by force", func() { must(t, c.processes["kubelet"].restart()) }, func(p *pod) {
			must(t, c.api("DELETE", p.path()+"?gracePeriodSeconds=0", nil, nil))
		}},
	} {
		p, done := c.saver(t, fmt.Sprint("dies-", i), writes(claimed("drafts"))), fmt.Sprint("done-", i)
		p.do(t, "begin", done)
		p.do(t, "publish", done)
		p.do(t, "begin", "draft") // of the pod before nothing is left
		p.do(t, "begin-past", "past")
		held := c.awaitHeld(t, dir, "draft") + c.awaitHeld(t, dir, "past")
		fault.do()
		ready()
		c.soon(t, p, "see", shardOf("draft.tmp"))
		c.awaitDrafts(t, dir, 4, fault.name)
		fault.end(p)
		took := c.awaitDrafts(t, dir, 2, fault.name+" and the pod died")
		t.Logf("%s: the plugin held the drafts after %.1f s, and those of the pod that died are gone after %.1f s", fault.name, held.Seconds(), took.Seconds())
		c.remove(t, p)
		reads(t, dir, done, stays)
	}
	c.containerAgain(t, dir)
	stays.do(t, "publish", "stays")
	stays.do(t, "publish-past", "stays-past")
	reads(t, dir, "stays", stays)
	reads(t, dir, "stays-past", stays)
	stays.do(t, "begin", "left")
	c.remove(t, stays)
	c.clean(t)
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || strings.HasPrefix(e.Name(), "left") {
			t.Errorf("after the last pod there is %s", e.Name())
		}
	}
}

// containerAgain ends the container of a pod that kubelet starts again: the next container finds no draft of it.
func (c *cluster) containerAgain(t testing.TB, dir string) {
	t.Helper()
	p := c.saver(t, "again", writes(claimed("drafts")), func(spec object) { spec["restartPolicy"] = "Always" })
	p.do(t, "begin", "draft")
	c.kill(t, p)
	c.awaitDrafts(t, dir, 2, "the container's end")
	c.await(t, "the container is started again", func() error {
		var s podStatus
		if err := c.api("GET", p.path(), nil, &s); err != nil || s.Status.ContainerStatuses[0].RestartCount == 0 {
			return errors.Join(err, errors.New("it was not yet"))
		}
		return nil
	})
	c.soon(t, p, "begin", "draft")
	p.do(t, "publish", "draft")
	reads(t, dir, "draft", p)
	c.remove(t, p)
}

// Published checkpoints go to S3, from where other nodes read them. The volume outlives its last pod while the store is gone, over the end of
// the host, until all is there. What is on its way stays on the node, and drafts never leave it.
func TestCheckpointsDrain(t *testing.T) {
	c := need(t)
	ready := func() { c.await(t, "the driver is ready", func() error { return c.ready(t, "") }) }
	ready()
	must(t, os.MkdirAll(c.at("buckets", "ckpt"), 0o755))
	dir := c.at("checkpoints", "train", "drained")
	c.persistent(t, "drained", c.checkpoints("drained", "drain", "s3://ckpt/run-1"+s3Server, "keep", "2", "authentication", "secret"))
	p := c.saver(t, "saves", writes(claimed("drained")))
	for i, way := range []string{"", "-past", ""} {
		name := fmt.Sprint("step-", i+1)
		p.do(t, "begin"+way, name)
		p.do(t, "publish"+way, name)
	}
	for i := range 3 {
		c.awaitRemote(t, fmt.Sprint("step-", i+1))
	}
	c.await(t, "the node keeps the newest two", func() error {
		if _, err := os.Stat(filepath.Join(dir, "step-1")); err == nil {
			return errors.New("step-1 is there")
		}
		return nil
	})
	c.killS3()
	p.do(t, "begin-past", "step-4")
	p.do(t, "publish-past", "step-4")
	p.do(t, "begin", "never")
	c.await(t, "kubelet says that the drain fails", func() error {
		events := c.events(p)
		i := slices.IndexFunc(events, func(e string) bool { return strings.Contains(e, "the drain to s3://ckpt/run-1") })
		if i < 0 {
			return fmt.Errorf("%v", events)
		}
		t.Logf("event: %s", events[i])
		return nil
	})
	c.kill(t, p)
	c.remove(t, p)
	c.await(t, "kubelet has taken the volume back", func() error {
		if staged, _ := filepath.Glob("/var/lib/kubelet/plugins/kubernetes.io/csi/" + driver + "/*"); len(staged) > 0 { // of a pattern that is one
			return fmt.Errorf("there is %v", staged)
		}
		return nil
	})
	c.awaitDrafts(t, dir, 0, "the pod died")
	c.deletePart(t, "host")
	ready()
	if blackbox.Within(5*time.Second, func() bool { return keepers() != 1 }) {
		t.Errorf("a volume that has something to drain is served by %v", programs())
	}
	q := c.saver(t, "reads-meanwhile", claimed("drained"))
	reads(t, dir, "step-4", q)
	c.remove(t, q)
	if c.isRemote("step-4") {
		t.Fatal("the store was not gone")
	}
	must(t, c.startS3())
	began := time.Now()
	c.awaitRemote(t, "step-4")
	t.Logf("the last checkpoint is at the destination %.1f s after the store came back, without a pod", time.Since(began).Seconds())
	c.clean(t)
	if entries, _ := filepath.Glob(c.at("buckets", "ckpt", "run-1", "never*")); len(entries) > 0 { // of a pattern that is one
		t.Errorf("a draft was drained: %v", entries)
	}
	c.readDrained(t)
}

// isRemote tells whether a checkpoint is complete at the destination.
func (c *cluster) isRemote(name string) bool {
	_, err := os.Stat(c.at("buckets", "ckpt", "run-1", name, ".hbmfs-manifest.json"))
	return err == nil
}

func (c *cluster) awaitRemote(t testing.TB, name string) {
	t.Helper()
	c.await(t, name+" is at the destination", func() error {
		if !c.isRemote(name) {
			return errors.New("it has no manifest there")
		}
		return nil
	})
}

// readDrained has a pod read what was drained as pods of other nodes do, which is more than this node keeps.
func (c *cluster) readDrained(t testing.TB) {
	t.Helper()
	source := map[string]string{"source": "s3://ckpt/run-1" + s3Server, "authentication": "secret"}
	p := c.saver(t, "on-another-node", inline(source, "keys"))
	names := p.do(t, "list", "").Facts
	for i := range 4 {
		if name := fmt.Sprint("step-", i+1); !slices.Contains(names, name) {
			t.Errorf("the volume of the bucket has no %s: %v", name, names)
		} else {
			p.do(t, "hash", shardOf(name))
		}
	}
	c.remove(t, p)
	c.clean(t)
}

// A draft of the moment in which the host's container ends is either published as a whole, or its writer gets an error, nothing of it is left,
// and its name is free.
func TestDraftsOfTheLastMoment(t *testing.T) {
	c := need(t)
	ready := func() { c.await(t, "the driver is ready", func() error { return c.ready(t, "") }) }
	ready()
	dir := c.at("checkpoints", "train", "moment")
	p := c.saver(t, "moment", writes(inline(c.checkpoints("moment"), "")))
	for i, way := range []string{"", "-past", "", "-past"} {
		name := fmt.Sprint("step-", i)
		killPrograms(false) // the host has only begun to follow the next daemon
		killPrograms(true)
		c.soon(t, p, "begin"+way, name)
		pids := processesOf(c.partOf(t, "host")[0])
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		c.await(t, "the host's end is seen", func() error { return c.hostSeen(t, pids) })
		ready()
		c.soon(t, p, "list", "")
		_, err := p.try("publish"+way, name)
		t.Logf("%s%s: %v", name, way, err)
		c.awaitDrafts(t, dir, 0, "the host's end")
		if err != nil {
			p.do(t, "begin"+way, name)
			p.do(t, "publish"+way, name)
		}
		reads(t, dir, name, p)
		c.deletePart(t, "host") // whose container would wait before its next start
		ready()
	}
	c.remove(t, p)
	c.clean(t)
}

// hostSeen says whether kubelet has started the host's container again.
func (c *cluster) hostSeen(t testing.TB, before []int) error {
	t.Helper()
	now := processesOf(c.partOf(t, "host")[0])
	if len(now) == 0 || slices.Contains(now, before[0]) {
		return fmt.Errorf("it has the processes %v, and had %v", now, before)
	}
	return nil
}
