package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginregistration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// unprivileged runs a command as the plugin's container does: the state directory is read-only, mounts only come in, and
// there is no capability and no way to get one.
const unprivileged = `mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"`

// args returns the arguments of a container of the manifests, with paths of this test in them.
func args(t *testing.T, container string, paths *strings.Replacer) (found []string) {
	t.Helper()
	for _, d := range documents(t, deploy("kubernetes", "hbmfs.yaml")) {
		visit(d.body, func(node map[string]any) {
			list, ok := node["args"].([]any)
			if !ok || node["name"] != container {
				return
			}
			for _, arg := range list {
				found = append(found, paths.Replace(arg.(string)))
			}
		})
	}
	if len(found) == 0 {
		t.Fatalf("the manifests have no container %s", container)
	}
	return found
}

// start starts a command, which the end of the test ends.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	log := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
		if t.Failed() {
			t.Logf("%v:\n%s", cmd.Args, log)
		}
	})
}

// The processes of the manifests give a pod a volume, the plugin without any privilege.
func TestPluginNeedsNoPrivilege(t *testing.T) {
	if err := blackbox.CanMount(); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs FUSE and root: %v", err)
	}
	for _, need := range []string{"setpriv", "unshare"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("needs %s: %v", need, err)
		}
	}
	hbmfs := blackbox.Given(t)
	program := driver(t)
	// A socket's path has 107 bytes at most, which the directories of tests nearly have.
	dir, err := os.MkdirTemp("", "hbmfs-deploy-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { takeAway(t, dir) })
	state, kubelet, source := filepath.Join(dir, "state"), filepath.Join(dir, "kubelet"), filepath.Join(dir, "source")
	target := filepath.Join(kubelet, "pods", "1", "volumes", "kubernetes.io~csi", "data", "mount")
	registry := filepath.Join(kubelet, "plugins_registry")
	for _, path := range []string{state, source, filepath.Dir(target), registry} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(source, "data.bin"), []byte("as it is"), 0o644); err != nil {
		t.Fatal(err)
	}
	health := freeAddress(t)
	paths := strings.NewReplacer("/var/lib/hbmfs", state, "/var/lib/kubelet", kubelet, "$(NODE_ID)", "node", ":9809", "127.0.0.1:0", ":9808", health)
	start(t, exec.Command(program, append([]string{"host", "--hbmfs", hbmfs.Path(), "--allow-source", source}, args(t, "host", paths)...)...))
	start(t, exec.Command("unshare", append([]string{"--mount", "--propagation", "slave", "sh", "-c", unprivileged, "sh", state, program}, args(t, "plugin", paths)...)...))

	conn, err := grpc.NewClient("unix://"+register(t, registry, health), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	publish(t, csi.NewIdentityClient(conn), csi.NewNodeClient(conn), source, target)
}

// freeAddress is one at which nobody listens yet.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // for the plugin
	return l.Addr().String()
}

// register does what kubelet does with a driver that is new to it, and returns the path of its CSI socket. The plugin is ready then, and
// not before.
func register(t *testing.T, registry, health string) string {
	t.Helper()
	socket := filepath.Join(registry, "csi.hbmfs.io-reg.sock")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // nothing is lost
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := pluginregistration.NewRegistrationClient(conn)
	var info *pluginregistration.PluginInfo
	if !blackbox.Within(patience, func() bool {
		info, err = client.GetInfo(ctx, &pluginregistration.InfoRequest{})
		return err == nil
	}) {
		t.Fatalf("the plugin does not make itself known: %v", err)
	}
	if info.GetType() != pluginregistration.CSIPlugin || info.GetName() != "csi.hbmfs.io" {
		t.Errorf("kubelet hears of %v", info)
	}
	answers := func(path string, want int) func() bool {
		return func() bool {
			r, err := http.Get("http://" + health + path)
			return err == nil && r.Body.Close() == nil && r.StatusCode == want
		}
	}
	if !blackbox.Within(patience, answers("/healthz", http.StatusOK)) || !answers("/readyz", http.StatusServiceUnavailable)() {
		t.Error("before kubelet knows the driver, the plugin should be healthy and not ready")
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &pluginregistration.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Fatal(err)
	}
	if !answers("/readyz", http.StatusOK)() {
		t.Error("kubelet knows the driver, and the plugin is not ready")
	}
	return info.GetEndpoint()
}

// publish does with a volume what kubelet does with one of a pod.
func publish(t *testing.T, identity csi.IdentityClient, node csi.NodeClient, source, target string) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	if !blackbox.Within(patience, func() bool {
		var probe *csi.ProbeResponse
		probe, err = identity.Probe(ctx, &csi.ProbeRequest{})
		return err == nil && probe.GetReady().GetValue()
	}) {
		t.Fatalf("the driver does not become ready: %v", err)
	}
	_, err = node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: "inline", TargetPath: target, Readonly: true,
		VolumeContext: map[string]string{"source": source, "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.namespace": "default"},
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}, // as kubelet calls inline ones
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if have, err := os.ReadFile(filepath.Join(target, "data.bin")); err != nil || string(have) != "as it is" {
		t.Errorf("%q, %v", have, err)
	}
	if _, err := node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "inline", TargetPath: target}); err != nil {
		t.Error(err)
	}
}

// takeAway removes a directory of a test, in which nothing may be mounted any more. (The host is killed by then; daemons
// end when their mount does.)
func takeAway(t *testing.T, dir string) {
	t.Helper()
	var left []*mountinfo.Info
	var err error
	gone := blackbox.Within(patience, func() bool {
		left, err = mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		return err == nil && len(left) == 0
	})
	for _, m := range left {
		err = errors.Join(err, blackbox.Detach(m.Mountpoint))
	}
	if !gone || err != nil {
		t.Errorf("mounts are left: %v, %v", left, err)
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
