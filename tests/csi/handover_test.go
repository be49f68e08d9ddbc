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
	"testing"
	"time"
)

// viewVolume is a PersistentVolume of shards with headers, and the view of it that has their tokens.
func (n *node) viewVolume(name string, seed uint64) (*volume, file) {
	n.t.Helper()
	dir := filepath.Join(n.data, name)
	must(n.t, os.MkdirAll(dir, 0o755))
	view := file{".hbmfs/views/tokens.bin", seed, 6 << 20}
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
		if to, _ := os.Readlink(fd); to == "/dev/fuse" { // some are closed by now
			count++
		}
	}
	return count
}

// TestPodsSeeNoHandover has pods read what they have open and mapped at full speed, while each part of the driver is killed and
// upgraded, alone and with others: no read fails, and no byte is wrong.
func TestPodsSeeNoHandover(t *testing.T) {
	n := newNode(t)
	key := s3Key{"AKIDHANDOVER", "secret/of/the/handover", ""}
	store := newS3Store(t, key)
	files := someFiles(7)
	store.put("corpus", files)
	local, view := n.viewVolume("local", 77)
	remote := s3Volume("remote", store, "corpus", key)
	pods := []*pod{n.startPod(local, podOptions{}), n.startPod(local, podOptions{propagate: true}), n.startPod(remote, podOptions{})}
	read := map[*volume]file{local: view, remote: files[0]}
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
		{"the host's container ends before it starts", func() { n.killHeld(); n.host.kill(); n.startHost() }},
	}
	for round := range 2 {
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
		if a.Errors > 0 || s.Count < int64(2*5) {
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
