package csi_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// checkpointVolume is a PersistentVolume of checkpoints, whose pods run as user 1000 with fsGroup 2000. pairs are more attributes.
func (n *node) checkpointVolume(name string, pairs ...string) *volume {
	v := &volume{name: name, fsGroup: "2000", writes: true, attributes: map[string]string{"source": filepath.Join(n.checkpoints, "default", name), "checkpoints": "true"}}
	for i := 0; i < len(pairs); i += 2 {
		v.attributes[pairs[i]] = pairs[i+1]
	}
	return v
}

// reader is the same volume for pods with readOnly: true.
func (v *volume) reader() *volume {
	w := *v
	w.readOnly = true
	return &w
}

// step is a checkpoint that pods write.
func step(name string) file { return file{name, 1 + uint64(len(name)), 5<<20 + 123} }

// shardOf is the file of a checkpoint, for readers.
func shardOf(f file) file { return file{filepath.Join(f.Name, shard), f.Seed, f.Size} }

// drafts are the hidden names of drafts on the disk.
func (n *node) drafts(v *volume) (found []string) {
	n.t.Helper()
	entries, err := os.ReadDir(v.attributes["source"])
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") && strings.HasSuffix(e.Name(), ".tmp") {
			found = append(found, e.Name())
		}
	}
	return found
}

// TestCheckpointVolumes has pods of one node write, publish and read checkpoints: by plain programs and past the kernel, with fsGroup, and
// beside pods that only read. They share a daemon.
func TestCheckpointVolumes(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	n := newNode(t)
	v := n.checkpointVolume("run")
	w := v.inlined("run-too")
	a, b := n.startPod(v, podOptions{ordinary: true}), n.startPod(w, podOptions{ordinary: true, propagate: true})
	reads := n.startPod(v.reader(), podOptions{ordinary: true})
	inline := v.reader().inlined("inline")
	inline.readOnly = true
	alsoReads := n.startPod(inline, podOptions{})
	if d := n.daemons(); len(d) != 1 {
		t.Errorf("pods of one checkpoint volume have %d daemons: %v", len(d), d)
	}
	for i, p := range []*pod{a, b} {
		plain, byHBMFS, past := step([]string{"1", "2"}[i]+"-plain"), step([]string{"1", "2"}[i]+"-hbmfs"), step([]string{"1", "2"}[i]+"-past")
		p.must("begin", plain)
		p.must("publish", plain)
		p.must("begin", byHBMFS)
		p.must("publish by hbmfs", byHBMFS)
		p.must("begin past", past)
		p.must("publish past", past)
		for _, f := range []file{plain, past} {
			for _, q := range []*pod{a, b, reads, alsoReads} {
				q.must("read", shardOf(f))
			}
			if p.must("owner", file{Name: filepath.Join(f.Name, shard), Size: 2000}); p.do("publish", f).Error == "" {
				t.Error("a checkpoint was published twice")
			}
		}
	}
	f := step("1-plain")
	for _, q := range []*pod{reads, alsoReads} {
		q.must("change", f)
	}
	for _, verb := range []string{"begin", "begin past"} {
		if said := reads.do(verb, step("of-a-reader")).Error; !strings.Contains(said, "read-only") {
			t.Errorf("%s by a pod that reads: %q", verb, said)
		}
	}
	a.must("begin", step("open"))
	if said := reads.do("publish by hbmfs", step("open")).Error; said == "" {
		t.Error("a pod that reads has published a draft")
	}
	a.must("publish", step("open"))
	b.must("remove", f)
	if _, err := os.Stat(filepath.Join(v.attributes["source"], f.Name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a checkpoint that was removed is there: %v", err)
	}
	n.endMounts() // pods get another mount in place of the dead one: writable where that was, and nowhere else
	for i, p := range []*pod{a, b} {
		again := step([]string{"3-again", "4-again"}[i])
		p.soon("begin", again)
		p.must("publish", again)
		for _, q := range []*pod{reads, alsoReads} {
			q.soon("read", shardOf(again))
			q.must("change", again)
		}
	}
	n.stopPods([]*pod{a, b, reads, alsoReads})
	n.unstage(v)
	n.mustBeClean()
	c := n.startPod(v, podOptions{ordinary: true}) // on another day
	c.must("read", shardOf(step("2-past")))
	n.stopPod(c)
	n.unstage(v)
	n.mustBeClean()
}

// TestDraftsOfPodsThatDied kills pods with drafts, while each part of the driver is killed and replaced: drafts of a pod that died are gone, and
// those of others, and what was published, stay.
func TestDraftsOfPodsThatDied(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	n := newNode(t)
	v := n.checkpointVolume("run")
	stays := n.startPod(v, podOptions{ordinary: true})
	stays.must("begin", step("stays"))
	stays.must("begin past", step("stays-past"))
	if s := handovers(t, stays); s.Holder != "keeper" {
		t.Skip("no keeper holds the mount: ", s.Why)
	}
	for i, c := range []struct {
		name   string
		before func() // after the drafts were begun, and before the pod dies
		after  func()
	}{
		{"nothing else", func() {}, func() {}},
		{"a daemon before", func() { n.killDaemons(n.daemons()...) }, func() {}},
		{"a daemon after", func() {}, func() { n.killDaemons(n.daemons()...) }},
		{"keepers", func() { n.killDaemons(n.keepers()...) }, func() {}},
		{"the plugin", n.restartPlugin, n.restartPlugin},
		{"the host", n.restartHost, n.restartHost},
		{"the host's container before", func() { n.awaitHeld(v); n.host.kill(); n.killHeld(); n.startHost() }, func() {}},
		{"the host's container after", func() { n.awaitHeld(v) }, func() { n.host.kill(); n.killHeld(); n.startHost() }},
		{"the host's image", func() { n.awaitHeld(v); n.host.kill(); n.killHeld(); n.nextImage(); n.startHost() }, func() {}},
	} {
		p := n.startPod(v, podOptions{ordinary: true})
		done, draft, past := step("done-"+string(rune('a'+i))), step("draft"), step("past")
		p.must("begin", done)
		p.must("publish", done)
		p.soon("begin", draft) // of the pod before nothing is left
		p.soon("begin past", past)
		c.before()
		n.waitReady()
		p.soon("see", file{Name: "/data/draft.tmp/" + shard})
		p.kill()
		c.after()
		n.waitReady()
		n.unpublish(v, p.uid) // also of a pod that was deleted by force, sooner or later
		if !within(func() bool { return len(n.drafts(v)) == 2 }) {
			t.Fatalf("%s: there are drafts %v, want two of the pod that lives", c.name, n.drafts(v))
		}
		q := n.startPod(v, podOptions{ordinary: true})
		q.soon("read", shardOf(done))
		q.soon("begin", draft) // the name is free
		n.stopPod(q)
		n.forgetPod(p)
	}
	stays.must("publish", step("stays"))
	stays.must("publish past", step("stays-past"))
	stays.must("read", shardOf(step("stays")))
	stays.must("read", shardOf(step("stays-past")))
	stays.must("begin", step("left"))
	n.killHeld() // a daemon and its keeper that die with the last pod
	n.stopPod(stays)
	n.unstage(v)
	n.mustBeClean()
	if d := n.drafts(v); len(d) != 0 {
		t.Errorf("drafts are left after the last pod: %v", d)
	}
}

// TestDraftsThatWereJustBegun ends the host's container, with daemon and keeper, in the moment after a draft was begun or renamed. The plugin has it, and
// its writer goes on. So it is where another part of the driver was replaced just before.
func TestDraftsThatWereJustBegun(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	n := newNode(t)
	v := n.checkpointVolume("run")
	p := n.startPod(v, podOptions{ordinary: true})
	if s := handovers(t, p); s.Holder != "keeper" {
		t.Skip("no keeper holds the mount: ", s.Why)
	}
	whole := 0
	for _, before := range []struct {
		name string
		do   func()
	}{
		{"nothing", func() { n.awaitHeld(v) }},
		{"the daemon was killed", func() { n.killDaemons(n.daemons()...) }},
		{"daemon and keeper were killed", n.killHeld},
		{"the keeper was killed", func() { n.killDaemons(n.keepers()...) }},
	} {
		for _, way := range []string{"", " past"} {
			said := n.uncopied()
			before.do()
			f := step(strings.ReplaceAll(before.name+way, " ", "-"))
			p.soon("just begin"+way, f)
			n.host.kill()
			n.killHeld()
			n.startHost()
			n.waitReady()
			if a := p.do("fill"+way, f); a.Error == "" {
				p.must("publish"+way, f)
				p.must("read", shardOf(f))
				whole++
			} else if n.uncopied() == said {
				t.Errorf("after %s, begin%s: %s", before.name, way, a.Error)
			} else {
				t.Logf("after %s, begin%s did not wait longer for a copy: %s", before.name, way, a.Error)
			}
			if !within(func() bool { return len(n.drafts(v)) == 0 }) {
				t.Fatalf("after %s drafts %v are left", before.name, n.drafts(v))
			}
		}
	}
	if whole == 0 {
		t.Error("no draft went on")
	}
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}

// uncopied counts how often daemons have said that there was no copy of a draft in time.
func (n *node) uncopied() (count int) {
	n.t.Helper()
	logs, err := filepath.Glob(filepath.Join(n.state, "volumes", "*", "log*"))
	must(n.t, err)
	for _, name := range logs {
		text, err := os.ReadFile(name)
		must(n.t, err)
		count += strings.Count(string(text), "there is no copy of it outside in time")
	}
	return count
}

// awaitHeld waits until the plugin holds the mount with all drafts of a volume, as the keeper has them by now.
func (n *node) awaitHeld(v *volume) {
	n.t.Helper()
	holds := func() bool {
		kept, inodes := n.plugin.kept(n.t)
		for _, d := range n.drafts(v) {
			name := strings.TrimSuffix(strings.TrimPrefix(d, "."), ".hbmfs.tmp")
			var st unix.Stat_t
			must(n.t, unix.Stat(filepath.Join(v.attributes["source"], "."+name+".hbmfs.lock"), &st))
			if !inodes[st.Ino] || !strings.Contains(kept, `"Name":"`+name+`"`) {
				return false
			}
		}
		return n.host.holds(n.t) == 1 && n.plugin.holds(n.t) == 1
	}
	if !within(holds) {
		n.t.Fatalf("the host holds %d mounts and the plugin %d, or not all drafts", n.host.holds(n.t), n.plugin.holds(n.t))
	}
}

// kept is what a process of the driver has of drafts: the text in memory that it holds, and inodes of files.
func (p *process) kept(t testing.TB) (text string, inodes map[uint64]bool) {
	t.Helper()
	inodes = map[uint64]bool{}
	fds, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(p.pid()), "fd", "*"))
	must(t, err)
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Stat(fd, &st) == nil {
			inodes[st.Ino] = true
		}
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, "/memfd:hbmfs") {
			content, _ := os.ReadFile(fd) // it may be closed by now
			text += string(content)
		}
	}
	return text, inodes
}

// forgetPod is for a pod that was killed and whose volume is gone.
func (n *node) forgetPod(p *pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, q := range n.pods {
		if q == p {
			n.pods = append(n.pods[:i], n.pods[i+1:]...)
			return
		}
	}
}

// TestCheckpointVolumesThatAreRefused: hostile and wrong attributes, directories of other namespaces, volumes that would meet.
func TestCheckpointVolumesThatAreRefused(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	n := newNode(t)
	in := func(name string) string { return filepath.Join(n.checkpoints, name) }
	must(t, errors.Join(os.Mkdir(in("default"), 0o755), os.Symlink("/etc", in("default/link")), os.MkdirAll(in("plain"), 0o755)))
	v := n.checkpointVolume("run")
	p := n.startPod(v, podOptions{ordinary: true})
	p.must("begin", step("one"))
	p.must("publish", step("one"))
	for _, c := range []struct {
		what        string
		source      string
		pairs       []string
		want, names string
	}{
		{"a directory outside", n.data, nil, "FailedPrecondition", "--allow-checkpoints"},
		{"a path that climbs", n.checkpoints + "/default/../../state", nil, "InvalidArgument", "source"},
		{"the directory of all", n.checkpoints, nil, "FailedPrecondition", "--allow-checkpoints"},
		{"another namespace's", in("team/run"), nil, "FailedPrecondition", "namespace"},
		{"the namespace's own", in("default"), nil, "FailedPrecondition", "namespace"},
		{"a link", in("default/link"), nil, "FailedPrecondition", "link"},
		{"hidden", in("default/.run"), nil, "InvalidArgument", "dot"},
		{"in a checkpoint", in("default/run/one"), nil, "FailedPrecondition", "checkpoint"},
		{"in a volume", in("default/run/new"), nil, "FailedPrecondition", "two volumes"},
		{"the same with other attributes", in("default/run"), []string{"showViews", "true"}, "FailedPrecondition", "two volumes"},
		{"an address", "s3://bucket/run", nil, "InvalidArgument", "directory"},
		{"a dataset's attribute", in("default/new"), []string{"format", "mds"}, "InvalidArgument", "format"},
		{"another owner", in("default/new"), []string{"uid", "0"}, "InvalidArgument", "uid"},
		{"keep without a drain", in("default/new"), []string{"keep", "1"}, "InvalidArgument", "drain"},
		{"a drain without rights", in("default/new"), []string{"drain", "s3://bucket/run"}, "InvalidArgument", "rights"},
		{"a drain to the web", in("default/new"), []string{"drain", "https://bucket/run"}, "InvalidArgument", "drain"},
		{"a password in the drain", in("default/new"), []string{"drain", "s3://me:secret@bucket/run"}, "InvalidArgument", "credentials"},
		{"no truth", in("default/new"), []string{"checkpoints", "yes"}, "InvalidArgument", "checkpoints"},
		{"a drain of a dataset", n.data, []string{"checkpoints", "false", "drain", "s3://bucket/run"}, "InvalidArgument", "checkpoints"},
	} {
		w := n.checkpointVolume("new", append([]string{"source", c.source}, c.pairs...)...).inlined("x")
		mustRefuse(t, c.what, n.publishOnce(n.publishRequest(w, "pod-9000")), c.want, c.names)
		must(t, os.RemoveAll(n.podDir("pod-9000")))
	}
	other := v.inlined("group")
	other.fsGroup = "3000"
	mustRefuse(t, "another fsGroup", n.publishOnce(n.publishRequest(other, "pod-9001")), "FailedPrecondition", "fsGroup")
	other.readOnly = true
	n.publish(other, "pod-9001")
	n.unpublish(other, "pod-9001")
	r := n.publishRequest(v, p.uid)
	r.Readonly = true
	mustRefuse(t, "a target that was writable", n.publishOnce(r), "AlreadyExists", "")
	var st unix.Stat_t
	must(t, unix.Stat(v.attributes["source"], &st))
	if st.Gid != 2000 || st.Mode&0o7777 != unix.S_ISGID|0o775 {
		t.Errorf("the volume's directory has group %d and mode %o", st.Gid, st.Mode)
	}
	for _, dir := range []string{in("team"), in("default/new"), "/etc/hbmfs"} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", dir, err)
		}
	}
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}

// TestCheckpointVolumeOnAFullDisk: a pod gets the disk's error, its draft goes with it, and others publish once there is room.
func TestCheckpointVolumeOnAFullDisk(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	n := newNode(t)
	must(t, os.MkdirAll(filepath.Join(n.checkpoints, "default"), 0o755))
	must(t, unix.Mount("none", n.checkpoints, "tmpfs", 0, "size=24m,mode=755"))
	v := n.checkpointVolume("run")
	a, b := n.startPod(v, podOptions{ordinary: true}), n.startPod(v, podOptions{ordinary: true})
	for verb, name := range map[string]string{"begin": "big", "begin past": "past"} {
		if said := a.do(verb, file{name, 3, 64 << 20}).Error; !strings.Contains(said, syscall.ENOSPC.Error()) {
			t.Errorf("%s on a full disk: %q", verb, said)
		}
	}
	n.stopPod(a)
	if !within(func() bool { return len(n.drafts(v)) == 0 }) {
		t.Fatalf("drafts %v are left of a pod that died on a full disk", n.drafts(v))
	}
	b.must("begin", step("small"))
	b.must("publish", step("small"))
	b.must("read", shardOf(step("small")))
	n.stopPod(b)
	n.unstage(v)
	must(t, unix.Unmount(n.checkpoints, 0))
	n.mustBeClean()
}
