package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/hbmfs/hbmfs/internal/text/size"
)

func TestPodsShareADaemon(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.must(n.publish("one", "p1"))
	n.must(n.publish("two", "p2")) // another volume of the same content
	n.must(n.publish("one", "p1")) // kubelet tries again
	if d := n.daemons(); len(d) != 1 {
		t.Errorf("daemons %v, want one", d)
	}
	if a, b := n.mounted(n.dir), n.mounted(n.view); a != 3 || b != 3 {
		t.Errorf("%d mounts, %d in the other view, want 3: of the daemon and two pods", a, b)
	}
	for _, pod := range []string{"p1", "p2"} {
		if !n.reads(n.target(pod), "a.bin") {
			t.Errorf("%s does not read the dataset", pod)
		}
		if err := os.WriteFile(filepath.Join(n.target(pod), "new"), nil, 0o644); err == nil {
			t.Error("a pod could write")
		}
	}
	n.must(n.publish("three", "p3", "umask", "027"))
	if d := n.daemons(); len(d) != 2 {
		t.Errorf("daemons %v, want two: the options differ", d)
	}
	n.must(n.unpublish("one", "p1"))
	if !n.reads(n.target("p2"), "a.bin") {
		t.Error("p2 lost its volume with p1")
	}
	n.must(n.unpublish("two", "p2"))
	n.must(n.unpublish("two", "p2"))
	n.must(n.unpublish("three", "p3"))
	n.clean()
}

func TestADaemonThatDies(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	for _, pod := range []string{"p1", "p2", "p3"} {
		n.must(n.publish("v", pod))
	}
	for range 4 { // mounts must not become more with each death
		pid := n.daemons()[0]
		n.must(unix.Kill(pid, unix.SIGKILL))
		n.within("a new daemon serves all pods", func() bool {
			d := n.daemons()
			return len(d) == 1 && d[0] != pid && n.reads(n.target("p1"), "a.bin") && n.reads(n.target("p2"), "a.bin") && n.reads(n.target("p3"), "a.bin")
		})
		n.within("four mounts in both views", func() bool { return n.mounted(n.dir) == 4 && n.mounted(n.view) == 4 })
	}
	for _, pod := range []string{"p1", "p2", "p3"} {
		n.must(n.unpublish("v", pod))
	}
	n.clean()
}

func TestTheNextHostGoesOn(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.must(n.publish("v", "p1"))
	n.must(n.publish("v", "p2", "umask", "027"))
	before := n.daemons()
	n.endHost()
	if !n.reads(n.target("p1"), "a.bin") {
		t.Error("the volume went with the host")
	}
	n.startHost()
	n.must(n.publish("v", "p1"))
	if d := n.daemons(); len(d) != 2 || len(before) != 2 {
		t.Errorf("daemons %v, then %v, want the same two", before, d)
	}
	n.endHost()
	n.killHeld()
	n.within("the daemons are gone", func() bool { return len(n.daemons()) == 0 })
	n.startHost()
	n.within("both are served again", func() bool {
		return n.reads(n.target("p1"), "a.bin") && n.reads(n.target("p2"), "a.bin")
	})
	n.must(n.unpublish("v", "p1"))
	n.endHost()
	n.startHost()
	n.must(n.unpublish("v", "p2"))
	n.clean()
}

// TestASourceThatIsRedirected has somebody who may write beside the dataset put a link in its place, to what volumes may not
// show, before the daemon dies: the next one does not follow it.
func TestASourceThatIsRedirected(t *testing.T) {
	n := newNode(t)
	source, real, outside := filepath.Join(n.data, "set"), filepath.Join(n.data, "real"), t.TempDir()
	n.must(os.Mkdir(source, 0o755))
	n.write("set/a.bin", "some tokens")
	n.must(os.WriteFile(filepath.Join(outside, "a.bin"), []byte("not for pods"), 0o644))
	n.must(n.publish("v", "p", "source", source))
	n.must(os.Rename(source, real))
	n.must(os.Symlink(outside, source))
	n.killHeld()
	n.within("the condition says why it is not served", func() bool {
		c := n.stats("v", "p").GetVolumeCondition()
		return c.GetAbnormal() && strings.Contains(c.GetMessage(), "--allow-source")
	})
	if _, err := os.ReadFile(filepath.Join(n.target("p"), "a.bin")); err == nil {
		t.Error("the pod reads what the link leads to")
	}
	n.must(os.Remove(source))
	n.must(os.Rename(real, source))
	n.within("it is served again", func() bool {
		text, err := os.ReadFile(filepath.Join(n.target("p"), "a.bin"))
		return err == nil && string(text) == "some tokens"
	})
	n.must(n.unpublish("v", "p"))
	n.clean()
}

// TestTheCacheLeavesKubeletRoom has the cache on kubelet's disk: whatever a volume says, so much stays free there that
// kubelet evicts nobody.
func TestTheCacheLeavesKubeletRoom(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	var st unix.Statfs_t
	n.must(unix.Statfs(n.kubelet(""), &st))
	disk := int64(st.Blocks) * st.Bsize
	most := strconv.FormatInt(disk, 10)
	for pod, c := range map[string]struct {
		attributes []string
		want       int64
	}{
		"p1": {[]string{"cacheSize", "1GiB"}, disk / 5},
		"p2": {[]string{"cacheMinFree", "1MiB"}, disk / 5},
		"p3": {[]string{"cacheMinFree", most}, disk},
	} {
		n.must(n.publish("v", pod, c.attributes...))
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n.daemons()[0]))
		n.must(err)
		var said int64
		for _, arg := range strings.Split(string(line), "\x00") {
			if text, ok := strings.CutPrefix(arg, "--cache-min-free="); ok {
				said, err = size.Parse(text)
				n.must(err)
			}
		}
		if said != c.want {
			t.Errorf("%v: %d bytes stay free, want %d", c.attributes, said, c.want)
		}
		n.must(n.unpublish("v", pod))
	}
	n.clean()
}

// TestLeaves says what the cache leaves free on other disks, and where somebody has said it.
func TestLeaves(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		opt     Options
		bytes   int64
		watched bool
	}{
		{Options{CacheDir: dir + "/not/yet", KubeletDir: dir, CacheMinFree: 7}, 7, true},
		{Options{CacheDir: "/proc", KubeletDir: dir}, 0, false},
		{Options{CacheDir: "/proc", KubeletDir: dir, CacheMinFree: 7}, 7, false},
	} {
		h := &Host{opt: c.opt}
		if bytes, watched, err := h.minFree(); err != nil || bytes != c.bytes || watched != c.watched {
			t.Errorf("%+v: %d, %v, %v", c.opt, bytes, watched, err)
		}
	}
}

// TestStateThatOthersCanForge starts no host upon records that others could have written.
func TestStateThatOthersCanForge(t *testing.T) {
	for name, says := range map[string]string{".": "chmod go-w", "volumes": "may be written to by others"} {
		dir := t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "volumes"), 0o755), os.Chmod(filepath.Join(dir, name), 0o777)); err != nil {
			t.Fatal(err)
		}
		h, err := New(t.Context(), Options{StateDir: dir})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s open to all: %v", name, err)
		}
		if err == nil {
			_ = h.Close() // it should not be there
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "volumes")); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), Options{StateDir: dir}); err == nil || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("a link in place of the volumes: %v", err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	n.code(n.publish("v", "p", "source", "/etc"), codes.FailedPrecondition, "source", "--allow-source")
	n.code(n.publish("v", "p", "source", n.data+"/missing"), codes.NotFound, "source")
	n.code(n.publish("v", "p", "colour", "red"), codes.InvalidArgument, "colour")
	n.code(n.publish("v", "p", "format", "no-such"), codes.InvalidArgument, "format")
	n.must(os.Symlink("/etc", filepath.Join(n.data, "out")))
	n.code(n.publish("v", "p", "source", n.data+"/out"), codes.FailedPrecondition, "source")

	n.must(os.WriteFile(n.target("file"), nil, 0o644))
	n.code(n.publish("v", "file"), codes.InvalidArgument, "a file")
	n.must(os.Remove(n.target("file")))
	n.must(os.Symlink(n.data, n.target("link")))
	n.code(n.publish("v", "link"), codes.InvalidArgument, "a symbolic link")
	n.must(os.Remove(n.target("link")))
	n.must(n.publish("v", "p"))
	n.code(n.publish("other", "p"), codes.AlreadyExists)
	n.code(n.unpublish("other", "p"), codes.NotFound)
	n.must(n.unpublish("v", "p"))
	n.clean()
}
