package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// upgrade changes a release as its documentation says, and waits until its plugin is replaced.
func (c *cluster) upgrade(t testing.TB, values ...string) {
	t.Helper()
	chart, err := filepath.Abs("../../deploy/helm/hbmfs")
	must(t, err)
	args := []string{"helm", "upgrade", "hbmfs", chart, "--namespace", "hbmfs", "--reset-then-reuse-values"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	c.tool(t, "", args...)
	c.tool(t, "", "kubectl", "-n", "hbmfs", "rollout", "status", "daemonset/hbmfs-plugin", "--timeout="+patience.String())
}

// containers counts those of the plugin's pod, as many as there were to be.
func (c *cluster) containers(t testing.TB, want int) {
	t.Helper()
	c.await(t, fmt.Sprint("the plugin's pod has containers: ", want), func() error {
		if found := c.partOf(t, "plugin"); len(found) != 1 || len(found[0].Status.ContainerStatuses) != want {
			return fmt.Errorf("pods: %v", found)
		}
		return c.ready(t, "")
	})
}

// The chart is upgraded under readers: to sidecars, as earlier versions had them, and then from these to another version without. Then it
// is removed, and nothing of it is left but its directories of state. The sidecars are stand-ins: nothing here comes from a registry.
func TestUpgradeAndRemoval(t *testing.T) {
	c := need(t)
	c.await(t, "the driver is ready", func() error { return c.ready(t, ":0.2.0") })
	all := c.readers(t, "upgraded")
	c.goOn(t, "their start", all)
	host := c.partOf(t, "host")[0].Metadata.UID
	c.upgrade(t, "sidecars.enabled=true", "sidecars.registrar.image="+podImage, "sidecars.livenessProbe.image="+podImage)
	c.containers(t, 3)
	c.goOn(t, "the plugin got sidecars", all)
	c.upgrade(t, "sidecars.enabled=false", "image.tag=0.2.0-next")
	c.containers(t, 1)
	if c.partOf(t, "host")[0].Metadata.UID != host {
		t.Error("the upgrade replaced the host by itself")
	}
	c.goOn(t, "the plugin was upgraded", all)
	c.tool(t, "", "kubectl", "-n", "hbmfs", "delete", "pod", "--field-selector", "spec.nodeName=node-1", "-l", "app.kubernetes.io/component=host")
	c.await(t, "all of it is the next version", func() error { return c.ready(t, ":0.2.0-next") })
	c.goOn(t, "the host was upgraded", all)
	c.remove(t, pods(all)...)
	c.clean(t)
	c.uninstall(t)
}

// The chart and the programs of an earlier commit are upgraded to these under readers, after what the test above has removed.
// HBMFS_CLUSTER_EARLIER has both.
func TestUpgradeFromEarlier(t *testing.T) {
	earlier := os.Getenv("HBMFS_CLUSTER_EARLIER")
	if earlier == "" {
		t.Skip("git has no earlier commit here: make test-cluster EARLIER=COMMIT names one")
	}
	c := need(t)
	const tag, next = "0.1.0-earlier", "0.2.0"
	must(t, c.importImage(filepath.Join(earlier, "bin", "image.tar")))
	c.tool(t, "", "helm", "install", "hbmfs", filepath.Join(earlier, "deploy", "helm", "hbmfs"), "--namespace", "hbmfs", "--set", "image.tag="+tag,
		"--set", "sourceDirs={"+c.at("data")+"}", "--set", "cacheMinFree=64MiB",
		"--set", "sidecars.registrar.image="+podImage, "--set", "sidecars.livenessProbe.image="+podImage)
	c.containers(t, 3)
	all := c.readers(t, "earlier")
	c.goOn(t, "their start", all)
	c.upgrade(t, "image.tag="+next, "checkpointDirs={"+c.at("checkpoints")+"}")
	c.containers(t, 1)
	c.goOn(t, "the plugin was upgraded", all)
	c.deletePart(t, "host")
	c.await(t, "all of it is this version", func() error { return c.ready(t, ":"+next) })
	c.goOn(t, "the host was upgraded", all)
	p := c.saver(t, "saves-after-upgrade", writes(inline(c.checkpoints("upgraded"), "")))
	p.do(t, "begin", "step-1")
	p.do(t, "publish", "step-1")
	c.remove(t, append(pods(all), p)...)
	c.clean(t)
	c.uninstall(t)
}

// uninstall removes the chart, and waits until nothing of it is left.
func (c *cluster) uninstall(t testing.TB) {
	t.Helper()
	c.tool(t, "", "helm", "uninstall", "hbmfs", "--namespace", "hbmfs", "--wait")
	c.await(t, "nothing is left", func() error { return c.removed() })
}

// removed says what is left of the chart.
func (c *cluster) removed() (left error) {
	for _, pattern := range []string{"/var/lib/kubelet/plugins/" + driver + "/*", "/var/lib/kubelet/plugins_registry/*", "/var/lib/hbmfs/*.sock"} {
		found, err := filepath.Glob(pattern)
		if left = errors.Join(left, err); len(found) > 0 {
			left = errors.Join(left, fmt.Errorf("files %v", found))
		}
	}
	var csi struct {
		Spec struct{ Drivers []struct{ Name string } }
	}
	if err := c.api("GET", "/apis/storage.k8s.io/v1/csinodes/node-1", nil, &csi); err != nil || len(csi.Spec.Drivers) > 0 {
		left = errors.Join(left, err, fmt.Errorf("kubelet knows %v", csi.Spec.Drivers))
	}
	for _, path := range []string{"/api/v1/namespaces/hbmfs/pods", "/apis/apps/v1/namespaces/hbmfs/daemonsets", "/apis/storage.k8s.io/v1/csidrivers"} {
		var list struct {
			Items []struct{ Metadata struct{ Name string } }
		}
		if err := c.api("GET", path, nil, &list); err != nil || len(list.Items) > 0 {
			left = errors.Join(left, err, fmt.Errorf("%s: %v", path, list.Items))
		}
	}
	for _, text := range c.leftovers() {
		left = errors.Join(left, errors.New(text))
	}
	if entries, err := os.ReadDir("/var/lib/kubelet/pods"); err == nil && len(entries) > 0 {
		left = errors.Join(left, fmt.Errorf("%d directories of pods", len(entries)))
	}
	return left
}
