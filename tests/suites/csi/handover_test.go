package csi_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// viewVolume is a PersistentVolume of shards with headers, and the view of it that has their tokens.
func (n *node) viewVolume(name string, seed uint64) (*volume, file) {
	n.t.Helper()
	dir := filepath.Join(n.data, name)
	must(n.t, os.MkdirAll(dir, 0o755))
	view := file{".hbmfs/views/tokens.bin", seed, 1 << 20}
	all := content(view)
	const shards = 4
	for i := range shards {
		tokens := all[i*len(all)/shards : (i+1)*len(all)/shards]
		header := make([]byte, 1024)
		for k, v := range []uint32{20240520, 1, uint32(len(tokens) / 2)} {
			binary.LittleEndian.PutUint32(header[4*k:], v)
		}
		must(n.t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("tokens_%06d.bin", i)), append(header, tokens...), 0o644))
	}
	return &volume{name: name, attributes: map[string]string{"source": dir}}, view
}

// handovers is what the status of a volume's mount says of daemons that went on.
func handovers(t testing.TB, p *pod) (s struct {
	Holder         string
	Count, Crashes int64
	Why            string
	Worst          float64 `json:"worst_standstill_seconds"`
}) {
	t.Helper()
	text, _ := p.soon("status", file{})
	all := map[string]json.RawMessage{}
	must(t, json.Unmarshal([]byte(text.Text), &all))
	must(t, json.Unmarshal(all["handover"], &s))
	return s
}

// holds counts the mounts that a process of the driver holds.
func (p *process) holds(t testing.TB) (count int) {
	t.Helper()
	fds, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(p.pid()), "fd", "*"))
	must(t, err)
	for _, fd := range fds {
		if isDevice(fd) {
			count++
		}
	}
	return count
}

// isDevice tells whether a descriptor in /proc is a connection to the kernel, whose name is another once its container is gone.
func isDevice(fd string) bool {
	info, err := os.ReadFile(strings.Replace(fd, "/fd/", "/fdinfo/", 1))
	to, _ := os.Readlink(fd) // it may be closed by now
	return to == "/dev/fuse" || err == nil && bytes.Contains(info, []byte("fuse_connection:"))
}

// nextImage has the next host start another hbmfs: a file of its own. The test ends the host before the daemons, since that host would start
// another daemon of the old image.
func (n *node) nextImage() {
	n.t.Helper()
	program, err := os.ReadFile(suite.Path())
	must(n.t, err)
	n.image = filepath.Join(n.dir, fmt.Sprint("hbmfs-", n.started))
	must(n.t, os.WriteFile(n.image, program, 0o755))
}

// TestNoHostComes has the host's container end for good: what waits for a daemon gets an error in time, and hangs never.
func TestNoHostComes(t *testing.T) {
	t.Parallel() // it waits most of the time
	n := newNode(t)
	v, view := n.viewVolume("local", 5)
	p := n.startPod(v, podOptions{})
	if s := handovers(t, p); s.Holder != "keeper" {
		t.Skip("no keeper holds the mount: ", s.Why)
	}
	if !within(func() bool { return n.plugin.holds(t) == 1 }) {
		t.Fatal("the plugin does not hold the mount")
	}
	n.host.kill()
	n.killHeld()
	began := time.Now() // the keeper gives up after 30 s
	a := p.do("read", view)
	if took := time.Since(began); a.Error == "" || took < 10*time.Second || took > 5*time.Minute {
		t.Errorf("a read without a host ends after %v with %q", took, a.Error)
	}
	if count := n.plugin.holds(t); count != 0 {
		t.Errorf("the plugin still holds %d mounts", count)
	}
	n.startHost()
	n.waitReady()
	p.soon("read", view)
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}

// TestPodsSeeNoHandover has pods read what they have open and mapped at full speed, while each part of the driver is killed and
// upgraded, alone and with others: no read fails, and no byte is wrong. HBMFS_CSI_HANDOVERS=5 does all of that five times.
func TestPodsSeeNoHandover(t *testing.T) {
	n := newNode(t)
	key := s3Key{"AKIDHANDOVER", "secret/of/the/handover", ""}
	store := newS3Store(t, key)
	files := someFiles(7)
	store.put("corpus", files)
	local, view := n.viewVolume("local", 77)
	remote := s3Volume("remote", store, "corpus", key)
	pods := []*pod{n.startPod(local, podOptions{}), n.startPod(local, podOptions{propagate: true}), n.startPod(remote, podOptions{})}
	read := map[*volume]file{local: view, remote: files[2]}
	if s := handovers(t, pods[0]); s.Holder != "keeper" {
		t.Skip("no keeper holds the mount: ", s.Why)
	}
	// pods[0] and the remote one keep what they read open and mapped; pods[1] opens it again and again.
	for i, p := range pods {
		p.must([]string{"loop held", "loop", "loop held"}[i], read[p.volume])
	}
	kept := func() bool { return n.host.holds(t) == 2 && n.plugin.holds(t) == 2 }
	upgrade := func() {
		for _, m := range n.mounts() {
			if filepath.Base(m) != "mnt" {
				continue
			}
			if out, err := exec.Command(suite.Path(), "upgrade", m).CombinedOutput(); err != nil {
				t.Fatalf("upgrade %s: %v: %s", m, err, bytes.TrimSpace(out))
			}
		}
	}
	faults := []struct {
		name string
		do   func()
	}{
		{"daemons are killed", func() { n.killDaemons(n.daemons()...) }},
		{"daemons are upgraded", upgrade},
		{"keepers are killed", func() { n.killDaemons(n.keepers()...) }},
		{"daemons and keepers are killed", n.killHeld},
		{"the plugin is replaced", n.restartPlugin},
		{"the host is replaced", n.restartHost},
		{"the host is replaced, and daemons are killed", func() { n.host.kill(); n.killDaemons(n.daemons()...); n.startHost() }},
		{"the host's container is replaced", func() { n.host.kill(); n.killHeld(); n.startHost() }},
		{"the host's image is replaced", func() { n.host.kill(); n.killHeld(); n.nextImage(); n.startHost() }},
		{"the host's container ends daemons first", func() { n.killHeld(); n.host.kill(); n.startHost() }},
	}
	rounds := fromEnv(t, "HBMFS_CSI_HANDOVERS", 1)
	for round := range rounds {
		for _, f := range faults {
			if !within(kept) {
				t.Fatalf("before %s: the host holds %d mounts and the plugin %d, want 2", f.name, n.host.holds(t), n.plugin.holds(t))
			}
			began := time.Now()
			f.do()
			n.waitReady()
			for _, p := range pods {
				now := p.must("loop so far", file{}).Passes
				if !within(func() bool { return p.must("loop so far", file{}).Passes > now+1 }) {
					t.Fatalf("a reader of %s does not go on after %s", p.volume.name, f.name)
				}
				if a := p.must("loop so far", file{}); a.Errors > 0 {
					t.Fatalf("round %d, %s: a reader of %s has %d errors (%s)", round, f.name, p.volume.name, a.Errors, a.Text)
				}
			}
			t.Logf("round %d, %s: all read on after %v", round, f.name, time.Since(began).Round(time.Millisecond))
			for _, d := range n.daemons() {
				if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", d.pid)); strings.HasPrefix(f.name, "the host's image") && (err != nil || exe != n.image) {
					t.Errorf("the daemon is %s after %s, want %s (%v)", exe, f.name, n.image, err)
				}
			}
			if !within(func() bool { return len(n.daemons()) == 2 && len(n.keepers()) == 2 }) {
				t.Fatalf("after %s there are daemons %v and keepers %v, want two of each", f.name, n.daemons(), n.keepers())
			}
		}
	}
	n.mustNotStack(pods)
	for _, p := range pods {
		s := handovers(t, p)
		a := p.must("end loop", file{})
		t.Logf("%s: %d MB in %d passes, the longest wait %v; %d hand-overs, %d after crashes, the longest %.0f ms", p.volume.name, a.Bytes>>20, a.Passes, a.Longest, s.Count, s.Crashes, 1000*s.Worst)
		if a.Errors > 0 || s.Count < int64(6*rounds) {
			t.Errorf("a reader of %s has %d errors (%s), after %d hand-overs", p.volume.name, a.Errors, a.Text, s.Count)
		}
		q := n.startPod(p.volume, podOptions{})
		q.must("read", read[p.volume])
		n.stopPod(q)
	}
	n.stopPods(pods)
	n.unstage(local)
	n.unstage(remote)
	n.mustBeClean()
}
