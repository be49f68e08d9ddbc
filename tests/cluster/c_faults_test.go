package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// reader is a pod that reads a file which stays open and mapped, and its backing files.
type reader struct {
	*pod
	file string
}

// readers are pods with volumes of all kinds, which read all the time.
func (c *cluster) readers(t testing.TB, prefix string) (all []reader) {
	t.Helper()
	c.persistent(t, "local", c.local())
	c.persistent(t, "remote", c.remote())
	views := c.local()
	views["umask"] = "0022"
	for _, v := range []struct {
		name, file string
		volume     object
	}{
		{"inline", "local-0.bin", inline(views, "")},
		{"claim", "local-1.bin", claimed("local")},
		{"s3", "remote-2.bin", claimed("remote")},
	} {
		p := c.create(t, "train", prefix+"-"+v.name, v.volume, v.file)
		c.started(t, p)
		p.do(t, "past", v.file) // the cache has all of it
		p.do(t, "loop", v.file)
		all = append(all, reader{p, v.file})
	}
	return all
}

// goOn waits until every reader has read its file twice more, and fails the test where one met an error.
func (c *cluster) goOn(t testing.TB, after string, all []reader) {
	t.Helper()
	var said []string
	for _, r := range all {
		before := r.do(t, "so-far", r.file)
		var a answer
		c.await(t, r.name+" goes on after "+after, func() error {
			if a = r.do(t, "so-far", r.file); a.Passes < before.Passes+2 {
				return fmt.Errorf("%d passes, %d errors: %v", a.Passes, a.Errors, a.Facts)
			}
			return nil
		})
		if a.Errors > 0 {
			t.Errorf("%s: after %s it has met %d errors: %v", r.name, after, a.Errors, a.Facts)
		}
		said = append(said, fmt.Sprintf("%s waited %v at most", r.name, time.Duration(a.Longest).Round(time.Millisecond)))
	}
	t.Logf("after %s: %s", after, strings.Join(said, "; "))
}

func pods(all []reader) (list []*pod) {
	for _, r := range all {
		list = append(list, r.pod)
	}
	return list
}

// processesOf are those of a pod's containers, the pause container's left out.
func processesOf(s podStatus) (pids []int) {
	for _, container := range s.Status.ContainerStatuses {
		id := strings.TrimPrefix(container.ContainerID, "containerd://")
		found, _ := filepath.Glob("/sys/fs/cgroup/pids/kubepods/*/pod" + s.Metadata.UID + "/" + id + "/cgroup.procs") // of a pattern that is one
		for _, file := range found {
			text, _ := os.ReadFile(file) // the container may have ended
			for line := range strings.Lines(string(text)) {
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}

// killPart kills the first process of a part of hbmfs, which ends its container. kubelet starts it again at once only the first time: a pod
// whose container was started again is deleted instead, as people do.
func (c *cluster) killPart(t testing.TB, part string) (how string) {
	t.Helper()
	p := c.partOf(t, part)[0]
	pids := processesOf(p)
	if len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].RestartCount > 0 || len(pids) == 0 {
		c.deletePart(t, part)
		return "the " + part + "'s pod was deleted"
	}
	must(t, syscall.Kill(pids[0], syscall.SIGKILL))
	c.await(t, "the "+part+" is started again", func() error {
		for _, q := range c.partOf(t, part) {
			if q.Metadata.UID == p.Metadata.UID && q.Status.ContainerStatuses[0].RestartCount > 0 {
				return nil
			}
		}
		return fmt.Errorf("kubelet has not seen it")
	})
	return "the " + part + " was killed"
}

// killPrograms kills all keepers, or all daemons, whose spares end with them.
func killPrograms(keepers bool) {
	for _, p := range programs() {
		if p.isKeeper() == keepers {
			_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// deletePart deletes the pod of a part of hbmfs, and waits for another.
func (c *cluster) deletePart(t testing.TB, part string) {
	t.Helper()
	p := c.partOf(t, part)[0]
	must(t, c.api("DELETE", "/api/v1/namespaces/hbmfs/pods/"+p.Metadata.Name, nil, nil))
	c.await(t, "another pod of the "+part, func() error {
		found := c.partOf(t, part)
		if len(found) != 1 || found[0].Metadata.UID == p.Metadata.UID {
			return fmt.Errorf("%d pods", len(found))
		}
		return nil
	})
}

// The plugin, the host, daemons, keepers and kubelet are replaced or killed under readers, whose open files and mappings go on.
func TestReplacedUnderReaders(t *testing.T) {
	c := need(t)
	ready := func() { c.await(t, "the driver is ready", func() error { return c.ready(t, "") }) }
	ready()
	all := c.readers(t, "replaced")
	c.goOn(t, "their start", all)
	for _, fault := range []struct {
		name string
		do   func()
	}{
		{"the plugin's pod was deleted", func() { c.deletePart(t, "plugin") }},
		{"the plugin was killed", func() { c.killPart(t, "plugin") }},
		{"every daemon was killed", func() { killPrograms(false) }},
		{"every keeper was killed", func() { killPrograms(true) }},
		{"the host's pod was deleted", func() { c.deletePart(t, "host") }},
		{"the host was killed", func() { c.killPart(t, "host") }},
		{"kubelet was killed", func() { must(t, c.processes["kubelet"].restart()) }},
	} {
		fault.do()
		ready()
		c.goOn(t, fault.name, all)
		p := c.create(t, "train", "after", claimed("local"), "local-3.bin") // new pods have volumes as before
		c.started(t, p)
		p.do(t, "hash", "local-3.bin")
		c.remove(t, p)
	}
	c.remove(t, pods(all)...)
	c.clean(t)
}

// A pod that the kernel kills for its memory leaves nothing.
func TestOutOfMemory(t *testing.T) {
	c := need(t)
	c.await(t, "the driver is ready", func() error { return c.ready(t, "") })
	body := podObject("eater", inline(c.local(), ""), "eat", "200")
	body["spec"].(object)["containers"].([]any)[0].(object)["resources"] = object{"limits": object{"memory": "64Mi"}}
	p := &pod{namespace: "train", name: "eater"}
	must(t, c.api("POST", "/api/v1/namespaces/train/pods", body, nil))
	c.await(t, "the pod is killed", func() error {
		var s podStatus
		if err := c.api("GET", p.path(), nil, &s); err != nil {
			return err
		}
		for _, container := range s.Status.ContainerStatuses {
			if ended, ok := container.State["terminated"].(object); ok && ended["reason"] == "OOMKilled" {
				return nil
			}
		}
		return fmt.Errorf("%s %v", s.Status.Phase, s.Status.ContainerStatuses)
	})
	c.remove(t, p)
	c.clean(t)
}

// A node that is drained keeps no volume, and has volumes again afterwards.
func TestDrain(t *testing.T) {
	c := need(t)
	c.await(t, "the driver is ready", func() error { return c.ready(t, "") })
	all := c.readers(t, "drained")
	t.Log(c.tool(t, "", "kubectl", "drain", "node-1", "--ignore-daemonsets", "--force", "--timeout="+patience.String()))
	c.remove(t, pods(all)...)
	c.clean(t)
	c.tool(t, "", "kubectl", "uncordon", "node-1")
	p := c.create(t, "train", "after-drain", claimed("local"), "local-3.bin")
	c.started(t, p)
	p.do(t, "hash", "local-3.bin")
	c.remove(t, p)
	c.clean(t)
}
