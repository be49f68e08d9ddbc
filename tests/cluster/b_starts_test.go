package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fromEnv is a number that a variable gives, or another one.
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

// spread says what is in the middle of times, and the worst.
func spread(times []time.Duration) string {
	slices.Sort(times)
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
	return fmt.Sprintf("median %v, worst %v of %d", round(times[len(times)/2]), round(times[len(times)-1]), len(times))
}

// firstByte starts a pod and returns how long it took from the request for it to its first byte.
func (c *cluster) firstByte(t testing.TB, name string, volume object, file string) (*pod, time.Duration) {
	t.Helper()
	p := c.create(t, "train", name, volume, file)
	a := c.started(t, p)
	return p, time.Duration(a.First - p.asked.UnixNano())
}

// From the request for a pod to its first byte, with a daemon that has to be started for it, and with one that runs. Pods without a
// volume show what of that is Kubernetes' own. HBMFS_CLUSTER_STARTS is how many of each.
func TestTimeToFirstByte(t *testing.T) {
	c := need(t)
	c.await(t, "the driver is ready", func() error { return c.ready(t, "") })
	count := fromEnv(t, "HBMFS_CLUSTER_STARTS", 50)
	keeper, _ := c.firstByte(t, "keeper", inline(c.local(), ""), "local-0.bin") // its daemon runs all the time
	var cold, warm, none []time.Duration
	for i := range count {
		other := c.local()
		other["readAhead"] = fmt.Sprintf("%dKiB", 256+4*i) // another daemon than any before
		p, took := c.firstByte(t, fmt.Sprint("cold-", i), inline(other, ""), "local-0.bin")
		cold = append(cold, took)
		q, took := c.firstByte(t, fmt.Sprint("warm-", i), inline(c.local(), ""), "local-0.bin")
		warm = append(warm, took)
		began := time.Now()
		r := c.create(t, "train", fmt.Sprint("none-", i), object{"name": "data", "emptyDir": object{}}, "")
		c.started(t, r)
		none = append(none, time.Since(began))
		c.remove(t, p, q, r)
	}
	load, err := os.ReadFile("/proc/loadavg")
	must(t, err)
	t.Logf("from the request for a pod to its first byte: cold daemon %s; warm daemon %s; a pod without a volume that answers: %s; load at the end %s",
		spread(cold), spread(warm), spread(none), strings.TrimSpace(string(load)))
	c.remove(t, keeper)
	c.clean(t)
}

// A hundred pods of one node have one dataset: half of them by a claim, half inline. HBMFS_CLUSTER_PODS is how many.
func TestHundredPods(t *testing.T) {
	c := need(t)
	c.await(t, "the driver is ready", func() error { return c.ready(t, "") })
	count := fromEnv(t, "HBMFS_CLUSTER_PODS", 100)
	before, began := memory(t, c, "host"), time.Now()
	var pods []*pod
	for i := range count {
		volume := inline(c.local(), "")
		if i%2 == 1 {
			volume = claimed("local")
		}
		pods = append(pods, c.create(t, "train", fmt.Sprint("many-", i), volume, fmt.Sprintf("local-%d.bin", i%4)))
	}
	var times []time.Duration
	want := map[string]string{}
	for i := range 4 {
		name := fmt.Sprintf("local-%d.bin", i)
		want[name] = sum(t, c.at("data", "corpus", name))
	}
	for _, p := range pods {
		a := c.started(t, p)
		times = append(times, time.Duration(a.First-p.asked.UnixNano()))
	}
	all := time.Since(began)
	var used int64
	for i, p := range pods {
		name := fmt.Sprintf("local-%d.bin", i%4)
		if a := p.do(t, "past", name); a.SHA256 != want[name] || a.Past != size {
			t.Errorf("%s: %v", p.name, a)
		}
		used += podMemory(t, c, p)
	}
	t.Logf("%d pods in %.1f s; from the request to the first byte: %s; %d daemons and spares; the host's memory (without page cache) %d MiB, before %d MiB; a pod has %d KiB",
		count, all.Seconds(), spread(times), len(daemons()), memory(t, c, "host")>>20, before>>20, used/int64(count)>>10)
	began = time.Now()
	c.remove(t, pods...)
	t.Logf("they are gone after %.1f s", time.Since(began).Seconds())
	c.clean(t)
}

// memory is what the container of a part of hbmfs has, without page cache.
func memory(t testing.TB, c *cluster, part string) int64 {
	t.Helper()
	return groupMemory(t, c.partOf(t, part)[0].Metadata.UID)
}

func podMemory(t testing.TB, c *cluster, p *pod) int64 {
	t.Helper()
	var s podStatus
	must(t, c.api("GET", p.path(), nil, &s))
	return groupMemory(t, s.Metadata.UID)
}

// groupMemory is what a pod's control groups have, without page cache.
func groupMemory(t testing.TB, uid string) int64 {
	t.Helper()
	n := groupStat(t, uid, "total_rss")
	if n == 0 {
		t.Errorf("pod %s has no memory", uid)
	}
	return n
}

// groupStat is a number of memory.stat, in all control groups of a pod.
func groupStat(t testing.TB, uid, name string) (n int64) {
	t.Helper()
	found, err := filepath.Glob("/sys/fs/cgroup/memory/kubepods/*/pod" + uid + "/memory.stat")
	if err == nil && len(found) == 0 { // guaranteed pods
		found, err = filepath.Glob("/sys/fs/cgroup/memory/kubepods/pod" + uid + "/memory.stat")
	}
	must(t, err)
	for _, file := range found {
		text, err := os.ReadFile(file)
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
				bytes, err := strconv.ParseInt(value, 10, 64)
				must(t, err)
				n += bytes
			}
		}
	}
	if len(found) == 0 {
		t.Errorf("pod %s has no control group of memory", uid)
	}
	return n
}
