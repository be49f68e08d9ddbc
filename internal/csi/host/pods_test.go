package host

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/csi/mounts"
)

// namespace is a process with a mount namespace of its own, as a pod's: flags are those of unshare, and script is what the
// container runtime does there.
func (n *node) namespace(script string, flags ...string) (root string) {
	n.Helper()
	if _, err := exec.LookPath("unshare"); err != nil {
		n.Skip("needs unshare of util-linux")
	}
	return n.start(append(append([]string{"unshare", "--mount"}, flags...), "sh", "-ec", script+"\necho there\nexec sleep 1000000")...)
}

// start starts a process that says when it is there, and returns its root.
func (n *node) start(args ...string) (root string) {
	n.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	n.must(err)
	cmd.Stderr = os.Stderr
	n.must(cmd.Start())
	n.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "there\n" {
		n.Fatalf("the namespace is not there: %q, %v", line, err)
	}
	return fmt.Sprintf("/proc/%d/root", cmd.Process.Pid)
}

// TestPodsSeeTheNextDaemon kills daemons under pods that have copies of the mount which nothing on the node reaches: of the
// whole volume and a directory and a file of it, with either propagation, and where the copies are locked since a user
// namespace lies between.
func TestPodsSeeTheNextDaemon(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.must(os.Mkdir(filepath.Join(n.data, "sub"), 0o755))
	n.write("sub/b.bin", "more tokens")
	n.must(n.publish("v", "p"))
	target := n.target("p")
	at := n.dir + "/at"
	n.must(os.MkdirAll(at+"/sub", 0o755))
	n.must(os.WriteFile(at+"/file", nil, 0o644))
	binds := fmt.Sprintf("mount --bind %s/sub %s/sub; mount --bind %s/a.bin %s/file", target, at, target, at)
	pods := map[string]string{
		"private": n.namespace(binds, "--propagation", "private"),
		"slave":   n.namespace(binds, "--propagation", "slave"),
	}
	if out, err := exec.Command("unshare", "--user", "--map-root-user", "true").CombinedOutput(); err != nil {
		t.Logf("without user namespaces, which this system does not have: %v: %s", err, out)
	} else {
		pods["user"] = n.namespace("", "--user", "--map-root-user", "--propagation", "private")
		pods["user, own"] = n.namespace(binds, "--user", "--map-root-user", "--propagation", "slave")
	}
	held, err := os.Open(pods["private"] + target + "/a.bin") // with passthrough, where the kernel has it
	n.must(err)
	defer func() { _ = held.Close() }()
	passthrough := n.passthrough(target)
	for range 2 {
		n.killHeld()
		if passthrough {
			if _, err := held.ReadAt(make([]byte, 4), 0); err != nil {
				t.Errorf("a file that is open with passthrough: %v", err)
			}
		}
		for name, root := range pods {
			n.within(name+" reads again", func() bool { return n.reads(root+target, "a.bin") && n.reads(root+target, "sub/b.bin") })
			if name != "user" {
				n.within(name+" reads its directory and file again", func() bool {
					b, err := os.ReadFile(root + at + "/sub/b.bin")
					a, err2 := os.ReadFile(root + at + "/file")
					return err == nil && err2 == nil && string(a) == "some tokens" && string(b) == "more tokens"
				})
			}
		}
		n.within("no mount was stacked upon another where it need not be", func() bool { return n.mounted(n.dir) == 2 && n.mounted(n.view) == 2 })
	}
	for name, root := range pods {
		table, err := os.ReadFile(strings.TrimSuffix(root, "root") + "mountinfo")
		n.must(err)
		if at := strings.Count(string(table), " "+target+" "); at > 2 || (at > 1 && !strings.HasPrefix(name, "user")) {
			t.Errorf("%s has %d mounts at the target:\n%s", name, at, table)
		}
	}
	n.must(n.unpublish("v", "p"))
}

// TestAMountThatOnlyPretends has a user of the node make a dead mount with the name of a volume's, in a namespace of his own.
// He gets no copy of the volume for it: the kernel does not tell root that a filesystem of another user namespace is dead.
func TestAMountThatOnlyPretends(t *testing.T) {
	n := newNode(t)
	for _, tool := range []string{"setpriv", "unshare", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s of util-linux", tool)
		}
	}
	user := []string{"setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "unshare", "--user", "--map-root-user", "--mount", "--propagation", "slave", "sh", "-ec"}
	if out, err := exec.Command(user[0], append(user[1:], "exec 3<>/dev/fuse")...).CombinedOutput(); err != nil {
		t.Skipf("needs user namespaces, and FUSE in them: %v: %s", err, out)
	}
	n.write("a.bin", "some tokens")
	n.must(n.publish("v", "p"))
	n.mu.Lock()
	v, _ := n.published(n.target("p"))
	n.mu.Unlock()
	at := filepath.Join(n.dir, "at")
	n.must(os.Mkdir(at, 0o755))
	n.must(os.Chmod(filepath.Dir(n.dir), 0o755))
	root := n.start(append(user, fmt.Sprintf("exec 3<>/dev/fuse; mount -i -t fuse.hbmfs -o fd=3,rootmode=40000,user_id=0,group_id=0 '%s' %s; exec 3<&-; echo there; exec sleep 1000000", v.name(), at))...)
	seen := func() (here []string) {
		table, err := os.ReadFile(strings.TrimSuffix(root, "root") + "mountinfo")
		n.must(err)
		for line := range strings.Lines(string(table)) {
			if strings.Contains(line, n.dir) { // others come and go
				here = append(here, line)
			}
		}
		return here
	}
	before := seen()
	if !slices.ContainsFunc(before, func(line string) bool { return strings.Contains(line, " "+at+" ") && strings.Contains(line, v.name()) }) {
		t.Fatalf("there is no such mount:\n%s", before)
	}
	n.must(v.acquire(t.Context()))
	v.replaceDead()
	v.unlock()
	if after := seen(); !slices.Equal(after, before) {
		t.Errorf("the mounts were\n%s\nand are\n%s", before, after)
	}
	n.must(n.unpublish("v", "p"))
	n.clean()
}

// TestALinkAboveADeadMount has root of a pod put a link in the place of the directory that a dead mount is in, once the host has seen it there. By the
// link the host would replace a mount at another place.
func TestALinkAboveADeadMount(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.must(n.publish("dead", "p"))
	n.mu.Lock()
	v, _ := n.published(n.target("p"))
	n.mu.Unlock()
	real, link := n.dir+"/real", n.dir+"/link"
	n.must(os.MkdirAll(real+"/at", 0o755))
	n.must(os.Symlink(real, link))
	root := n.namespace(fmt.Sprintf("mount --bind %s %s/at", n.target("p"), real), "--propagation", "private")
	n.must(v.acquire(t.Context())) // so that no other daemon is started
	n.killHeld()
	n.must(n.publish("alive", "q", "umask", "027"))
	n.mu.Lock()
	alive, _ := n.published(n.target("q"))
	n.mu.Unlock()
	device, err := alive.device()
	n.must(err)
	table := func() string {
		text, err := os.ReadFile(strings.TrimSuffix(root, "root") + "mountinfo")
		n.must(err)
		return string(text)
	}
	replace := func(place string) (int, error) {
		var pid int
		_, err := fmt.Sscanf(root, "/proc/%d/root", &pid)
		n.must(err)
		return mounts.ReplaceIn(t.Context(), mounts.Namespace{PID: pid, Places: []mounts.Sighting{{Path: place, Root: "/"}}}, alive.mount(), device, false, n.opt.Helper)
	}
	before := table()
	if count, err := replace(link + "/at"); err == nil || count != 0 || table() != before {
		t.Errorf("by a link %d mounts were replaced, %v; the mounts were\n%s\nand are\n%s", count, err, before, table())
	}
	if count, err := replace(n.dir + "/gone/at"); err != nil || count != 0 {
		t.Errorf("of a directory that is gone %d mounts were replaced, %v", count, err)
	}
	if count, err := replace(real + "/at"); err != nil || count != 1 || !n.reads(root+real+"/at", "a.bin") {
		t.Errorf("by its own path %d mounts were replaced, %v", count, err)
	}
	v.unlock()
	n.must(errors.Join(n.unpublish("dead", "p"), n.unpublish("alive", "q")))
	n.clean()
}

// passthrough tells whether the kernel reads the files of a mount itself.
func (n *node) passthrough(target string) bool {
	text, err := os.ReadFile(filepath.Join(target, ".hbmfs/status"))
	n.must(err)
	var t told
	n.must(json.Unmarshal(text, &t))
	return t.Passthrough.On
}
