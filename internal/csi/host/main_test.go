package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/mounts"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// insideEnv has the test binary do what hbmfs-csi replace-inside does.
const insideEnv = "HBMFS_TEST_INSIDE"

func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) != "" {
		if err := mounts.Inside(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// patience bounds every wait. It is long, since nothing that works waits for its end.
const patience = 60 * time.Second

// node is a machine with kubelet's directory and the host's state on shared mounts, as a cluster has them: below view every
// mount of dir is seen once more.
type node struct {
	*testing.T
	dir, view string
	hbmfs     string
	data      string // a directory that volumes may show
	*Host
}

func newNode(t *testing.T) *node {
	t.Helper()
	blackbox.NeedRoot(t)
	binary := blackbox.Given(t)
	n := &node{T: t, hbmfs: binary.Path(), data: t.TempDir()}
	top, err := os.MkdirTemp("", "hbmfs-csi-")
	n.must(err)
	n.dir, n.view = filepath.Join(top, "node"), filepath.Join(top, "view")
	n.must(errors.Join(os.Mkdir(n.dir, 0o755), os.Mkdir(n.view, 0o755)))
	n.must(unix.Mount(n.dir, n.dir, "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		n.endHost()
		n.killHeld()
		for range 100 { // whatever is left, in both views
			left, _ := mountinfo.GetMounts(mountinfo.PrefixFilter(top))
			if len(left) == 0 {
				break
			}
			for _, m := range left {
				_ = unix.Unmount(m.Mountpoint, unix.MNT_DETACH)
			}
		}
		if err := os.RemoveAll(top); err != nil {
			t.Error(err)
		}
	})
	n.must(unix.Mount("", n.dir, "", unix.MS_SHARED|unix.MS_REC, ""))
	n.must(unix.Mount(n.dir, n.view, "", unix.MS_BIND, ""))
	n.must(os.MkdirAll(n.kubelet("pods"), 0o755))
	n.startHost()
	return n
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) state() string              { return filepath.Join(n.dir, "state") }
func (n *node) kubelet(path string) string { return filepath.Join(n.dir, "kubelet", path) }

// target is where kubelet wants the volume of a pod.
func (n *node) target(pod string) string {
	dir := n.kubelet("pods/" + pod)
	n.must(os.MkdirAll(dir, 0o755))
	return filepath.Join(dir, "mount")
}

func (n *node) startHost() {
	n.Helper()
	self, err := os.Executable()
	n.must(err)
	n.Host, err = New(n.Context(), Options{
		StateDir: n.state(), CacheDir: filepath.Join(n.state(), "cache"), KubeletDir: n.kubelet(""), HBMFS: n.hbmfs,
		AllowSource: []string{n.data}, AllowAddress: []string{"127.0.0.1"}, Helper: []string{"env", insideEnv + "=1", "GORACE=atexit_sleep_ms=0", self},
		Log: slog.New(slog.NewTextHandler(n.Output(), nil)),
	})
	n.must(err)
	n.must(n.Start())
}

// endHost ends the host as SIGTERM does: what it keeps stays.
func (n *node) endHost() {
	if n.Host != nil {
		n.must(n.Close())
		n.Host = nil
	}
}

func (n *node) service() Service { return Service{Host: n.Host} }

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
	}
}

func (n *node) publish(id, pod string, attributes ...string) error {
	return n.publishAt(patience, id, n.target(pod), attributes...)
}

// publishAt has a volume published, by a kubelet that gives up after a while.
func (n *node) publishAt(limit time.Duration, id, target string, attributes ...string) error {
	ctx, cancel := context.WithTimeout(n.Context(), limit)
	defer cancel()
	_, err := n.service().NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: id, TargetPath: target, VolumeCapability: capability(), VolumeContext: n.attributes(attributes),
	})
	return err
}

func (n *node) unpublish(id, pod string) error { return n.unpublishAt(id, n.target(pod)) }

func (n *node) unpublishAt(id, target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := n.service().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return err
}

func (n *node) stageAt(ctx context.Context, id, path string, attributes ...string) error {
	_, err := n.service().NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: path, VolumeCapability: capability(), VolumeContext: n.attributes(attributes),
	})
	return err
}

func (n *node) attributes(pairs []string) map[string]string {
	a := map[string]string{"source": n.data}
	for i := 0; i < len(pairs); i += 2 {
		a[pairs[i]] = pairs[i+1]
	}
	if a["kv"] != "" {
		delete(a, "source")
	}
	return a
}

// within waits for a condition.
func (n *node) within(what string, ok func() bool) {
	n.Helper()
	if !blackbox.Within(patience, ok) {
		n.Fatalf("not within %v: %s", patience, what)
	}
}

// reads tells whether a file of the dataset is seen at a pod's target as it is.
func (n *node) reads(target, name string) bool {
	want, err := os.ReadFile(filepath.Join(n.data, name))
	n.must(err)
	got, err := os.ReadFile(filepath.Join(target, name))
	return err == nil && bytes.Equal(got, want)
}

func (n *node) write(name, text string) {
	n.must(os.WriteFile(filepath.Join(n.data, name), []byte(text), 0o644))
}

// mounted counts mounts of hbmfs below a directory.
func (n *node) mounted(dir string) int {
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	n.must(err)
	count := 0
	for _, m := range all {
		if m.FSType == mounts.FSType {
			count++
		}
	}
	return count
}

// daemons are the processes that serve mounts of this node.
func (n *node) daemons() []int {
	found, err := (&Host{opt: Options{StateDir: n.state()}}).findDaemons()
	n.must(err)
	var all []int
	for _, pids := range found {
		all = append(all, pids...)
	}
	return all
}

// keepers are the processes that hold mounts of this node.
func (n *node) keepers() (all []int) {
	all, err := keepersBelow(n.state())
	n.must(err)
	return all
}

// killHeld kills all daemons with their keepers, and forgets what the host has of those, so that no other goes on with their mounts.
func (n *node) killHeld() {
	if n.Host != nil {
		n.held.mu.Lock()
		keys := slices.Collect(maps.Keys(n.held.serves))
		n.held.mu.Unlock()
		for _, key := range keys {
			n.held.end(key) // a copy that is being made is not taken any more
		}
		n.held.close()
	}
	daemons := n.daemons()
	for _, pid := range daemons {
		_ = unix.Kill(pid, unix.SIGSTOP) // else it has another keeper
	}
	for _, pid := range append(n.keepers(), daemons...) {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
	}
}

// clean tells what is left when nothing should be.
func (n *node) clean() {
	n.Helper()
	if n.mounted(n.dir) != 0 || n.mounted(n.view) != 0 || len(n.daemons()) != 0 {
		n.Errorf("%d mounts, %d in the other view and daemons %v are left", n.mounted(n.dir), n.mounted(n.view), n.daemons())
	}
	if !blackbox.Within(patience, func() bool { return len(n.keepers()) == 0 }) { // a keeper ends by itself, after its daemon
		n.Errorf("keepers %v are left", n.keepers())
	}
	for _, dir := range []string{filepath.Join(n.state(), "volumes"), n.kubelet("pods")} {
		for _, f := range n.files(dir) {
			n.Errorf("%s is left", f)
		}
	}
}

// files lists what is two or more levels below a directory, or is no directory.
func (n *node) files(dir string) (all []string) {
	n.must(filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && path != dir && (!d.IsDir() || strings.Count(strings.TrimPrefix(path, dir), "/") > 1) {
			all = append(all, path)
		}
		return err
	}))
	return all
}

func (n *node) code(err error, want codes.Code, words ...string) {
	n.Helper()
	text := fmt.Sprint(err)
	if status.Code(err) != want {
		n.Errorf("%v, want %v", err, want)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			n.Errorf("%q does not say %q", text, w)
		}
	}
}
