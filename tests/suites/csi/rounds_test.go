package csi_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// rounds is how many random things happen where HBMFS_CSI_ROUNDS does not say.
const rounds = 30

// maxPods run at once in the random test.
const maxPods = 6

// chaos is a node on which random things happen to random pods.
type chaos struct {
	*node
	mu      sync.Mutex
	random  *rand.Rand // guarded by mu
	store   *s3Store
	volumes []*volume
	files   map[*volume][]file // those of each source differ from those of all others
	pods    []*pod
	counts  map[string]int
	errors  [2]int   // of the pods that read all the time
	last    []string // rounds
}

// TestRandomRounds does what happens on a node in a year in random order: pods come and go and read, and the plugin, the
// host, daemons and the disk of the cache fail meanwhile. Every read ends well after its fault, no byte is ever wrong, and
// in the end nothing is left. HBMFS_CSI_ROUNDS=1000 takes longer; HBMFS_SEED has it do others.
func TestRandomRounds(t *testing.T) {
	count := fromEnv(t, "HBMFS_CSI_ROUNDS", rounds)
	c := newChaos(t, blackbox.Seed(t))
	for range 2 { // these read all the time, through all of the faults, whatever comes of it
		p := c.startAny()
		p.must("loop", c.files[p.volume][0])
	}
	for i := range count {
		c.round(i)
		if t.Failed() {
			t.Fatalf("in round %d", i)
		}
	}
	t.Logf("what happened: %v", c.counts)
	for _, p := range c.pods[:2] {
		a := p.must("end loop", c.files[p.volume][0])
		t.Logf("a reader through all faults: %d passes, %d errors (first: %s), the longest wait %v", a.Passes, a.Errors, a.Text, a.Longest)
		if a.Passes == 0 {
			t.Error("a reader has read nothing in all that time")
		}
	}
	c.unfill()
	for _, p := range c.pods {
		c.stopPod(p)
	}
	for _, v := range c.volumes {
		c.unstage(v)
	}
	c.mustBeClean()
}

func fromEnv(t testing.TB, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

func newChaos(t testing.TB, seed uint64) *chaos {
	t.Helper()
	needNode(t)
	key := s3Key{"AKIDRANDOM", "secret/of/chance", ""}
	c := &chaos{random: rand.New(rand.NewPCG(seed, 1)), store: newS3Store(t, key), counts: map[string]int{}, files: map[*volume][]file{}}
	c.node = newNodeWithDisk(t, 24<<20)
	c.store.put("corpus", someFiles(300))
	local, other, remote := c.directoryVolume("local", someFiles(100)), c.directoryVolume("other", someFiles(200)), s3Volume("remote", c.store, "corpus", key)
	remote.attributes["cacheSize"], remote.attributes["cacheSegment"], remote.attributes["cacheMinFree"] = "12MiB", "1MiB", "1MiB"
	local.attributes["showViews"] = "true"
	for i, v := range []*volume{local, other, remote} {
		inline := v.inlined(v.name + "-inline")
		c.volumes = append(c.volumes, v, inline)
		c.files[v] = someFiles(uint64(100 * (i + 1)))
		c.files[inline] = c.files[v]
	}
	return c
}

func (c *chaos) chance(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.IntN(n)
}

// round does one random thing.
func (c *chaos) round(i int) {
	c.t.Helper()
	what := []struct {
		weight int
		name   string
		do     func()
	}{
		{20, "start a pod", func() { c.startAny() }},
		{16, "stop a pod", c.stopAny},
		{24, "read", c.readAny},
		{5, "republish", c.republishAny},
		{3, "stats", c.statsAny},
		{5, "kill the plugin", func() { c.restartPlugin() }},
		{4, "kill the host", func() { c.restartHost() }},
		{3, "kill the host and all daemons", func() { c.host.kill(); c.killHeld(); c.startHost() }},
		{6, "kill a daemon", c.killAnyDaemon},
		{2, "kill all daemons and keepers", func() { c.killHeld() }},
		{5, "kill the plugin in a call", func() { c.during(c.restartPlugin) }},
		{4, "kill the host in a call", func() { c.during(c.restartHost) }},
		{3, "kill daemons in a call", func() { c.during(c.killAnyDaemon) }},
		{2, "end all mounts", c.endMounts},
		{3, "wrong attributes", c.wrong},
		{2, "fill the disk", c.fill},
		{2, "free the disk", c.unfill},
		{1, "copy the mount table", c.bystander},
	}
	all := 0
	for _, w := range what {
		all += w.weight
	}
	k := c.chance(all)
	for _, w := range what {
		if k -= w.weight; k < 0 {
			c.counts[w.name]++
			began := time.Now()
			w.do()
			if took := time.Since(began); took > 5*time.Second {
				c.t.Logf("round %d: %s took %v", i, w.name, took)
			}
			for k, p := range c.pods[:2] {
				if now := p.must("loop so far", file{}).Errors; now > c.errors[k] {
					c.t.Logf("round %d: %s, after %q: reader %d had %d errors more, of %s", i, w.name, c.last, k, now-c.errors[k], p.volume.name)
					c.errors[k] = now
				}
			}
			c.last = append(c.last[max(0, len(c.last)-2):], fmt.Sprintf("%s %v ago", w.name, time.Since(began).Round(time.Millisecond)))
			return
		}
	}
}

func (c *chaos) startAny() *pod {
	c.t.Helper()
	if len(c.pods) >= maxPods {
		c.stopAny()
	}
	p := c.startPod(c.volumes[c.chance(len(c.volumes))], podOptions{propagate: c.chance(2) == 1})
	c.pods = append(c.pods, p)
	return p
}

// stopAny stops a pod, but neither of the first two, which read all the time.
func (c *chaos) stopAny() {
	c.t.Helper()
	if len(c.pods) <= 2 {
		return
	}
	i := 2 + c.chance(len(c.pods)-2)
	p := c.pods[i]
	c.pods = append(c.pods[:i], c.pods[i+1:]...)
	c.stopPod(p)
	for _, q := range c.pods {
		if q.volume == p.volume {
			return
		}
	}
	c.unstage(p.volume)
}

func (c *chaos) anyPod() *pod { return c.pods[c.chance(len(c.pods))] }

// readAny reads in a pod, in one of the ways that there are. Calls that fail because of a fault succeed a little later.
func (c *chaos) readAny() {
	c.t.Helper()
	p := c.anyPod()
	f := c.files[p.volume][c.chance(len(c.files[p.volume]))]
	ways := []string{"read", "read", "control", "map"}
	way := ways[c.chance(len(ways))]
	if way == "map" && strings.HasPrefix(p.volume.name, "remote") {
		way = "read" // a fault within a mapping of what comes from elsewhere is a signal, which is the pod's end
	}
	p.soon(way, f)
}

func (c *chaos) republishAny() {
	c.t.Helper()
	p := c.anyPod()
	c.publish(p.volume, p.uid)
}

func (c *chaos) statsAny() {
	c.t.Helper()
	p := c.anyPod()
	c.eventually("ask for the stats of "+p.volume.name, func() error {
		_, err := c.stats(p.volume, p.uid)
		return err
	})
}

func (c *chaos) killAnyDaemon() {
	c.t.Helper()
	if daemons := c.daemons(); len(daemons) > 0 {
		c.killDaemons(daemons[c.chance(len(daemons))])
	}
}

// during breaks something while a call is under way, which kubelet then repeats.
func (c *chaos) during(fault func()) {
	c.t.Helper()
	wait := time.Duration(c.chance(30)) * time.Millisecond
	call := []func(){func() { c.startAny() }, c.stopAny, c.republishAny}[c.chance(3)]
	done := make(chan struct{})
	go func() { // ends with the call
		defer close(done)
		call()
	}()
	time.Sleep(wait) // so that the fault comes at a random moment
	fault()
	<-done
}

// wrong asks for what there is not, in a pod that then goes away.
func (c *chaos) wrong() {
	c.t.Helper()
	v := &volume{name: "wrong", inline: true, attributes: map[string]string{"source": c.data + "/nothing"}}
	if c.chance(2) == 0 {
		v.attributes["cacheSiz"] = "1GiB"
	}
	uid := c.newUID()
	if err := c.publishOnce(c.publishRequest(v, uid)); err == nil {
		c.t.Error("what there is not was published")
	}
	c.unpublish(v, uid)
}

// bystander is a process with a private copy of the mount table, which keeps every mount alive for a while: what some
// container runtimes leave behind.
func (c *chaos) bystander() {
	c.t.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sleep", "2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(c.t, cmd.Start())
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()         // killed, which is its error
	})
}

// newNodeWithDisk makes a node whose cache has a disk of its own.
func newNodeWithDisk(t testing.TB, size int64) *node {
	t.Helper()
	dir, err := os.MkdirTemp(suite.Dir, "disk-")
	must(t, err)
	must(t, unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)))
	t.Cleanup(func() { must(t, errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir))) })
	n := newNode(t, "--cache-dir", filepath.Join(dir, "cache"))
	n.disk = dir
	return n
}

// fill takes all that is left of the disk.
func (c *chaos) fill() {
	c.t.Helper()
	f, err := os.OpenFile(filepath.Join(c.disk, "somebody's"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(c.t, err)
	defer func() { _ = f.Close() }() // that not all of it was written is the point
	for {
		if _, err := io.CopyN(f, zeros{}, 1<<20); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				c.t.Fatal(err)
			}
			return
		}
	}
}

func (c *chaos) unfill() {
	c.t.Helper()
	if err := os.Remove(filepath.Join(c.disk, "somebody's")); err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
