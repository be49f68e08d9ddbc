package cluster_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// size of each file of a dataset here.
const size = 8 << 20

// keys of the S3 server.
const accessKey, secretKey = "AKIDCLUSTER", "secret/of/the/cluster"

// install installs the chart as its documentation says, once.
var install = sync.OnceFunc(func() { node.install() })

// need has the driver running, and namespaces and volumes for pods.
func need(t *testing.T) *cluster {
	t.Helper()
	install()
	if node.failed != nil {
		t.Fatal(node.failed)
	}
	return node
}

func (c *cluster) install() {
	repository, err := filepath.Abs("../..")
	if err != nil {
		c.failed = err
		return
	}
	for _, step := range [][]string{
		{"kubernetes", "kubectl", "apply", "-f", filepath.Join(repository, "deploy", "kubernetes", "namespace.yaml")},
		{"helm", "install", "hbmfs", filepath.Join(repository, "deploy", "helm", "hbmfs"), "--namespace", "hbmfs",
			"--set", "sourceDirs={" + c.at("data") + "}", "--set", "checkpointDirs={" + c.at("checkpoints") + "}", "--set", "cacheMinFree=64MiB",
			"--set", "kvDirs={" + c.at("kv") + "}", "--set", "kvMemory=64MiB"},
		{"kubernetes", "kubectl", "create", "namespace", "train"},
		{"kubernetes", "kubectl", "label", "namespace", "train", "pod-security.kubernetes.io/enforce=restricted"},
		{"kubernetes", "kubectl", "-n", "train", "create", "secret", "generic", "keys",
			"--from-literal=AWS_ACCESS_KEY_ID=" + accessKey, "--from-literal=AWS_SECRET_ACCESS_KEY=" + secretKey},
	} {
		cmd := exec.Command(c.program(step[0]), step[1:]...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.at("admin.conf"), "HOME="+c.work)
		if out, err := cmd.CombinedOutput(); err != nil {
			c.failed = errors.Join(c.failed, fmt.Errorf("%v: %w: %s", step, err, out))
		}
	}
	c.failed = errors.Join(c.failed, c.datasets(), c.startS3())
}

// datasets are a directory of the node and a bucket: data and remote, whose files differ by their names.
func (c *cluster) datasets() (err error) {
	for dir, prefix := range map[string]string{c.at("data", "corpus"): "local", c.at("buckets", "datasets", "corpus"): "remote"} {
		args := []string{"write", dir, fmt.Sprint(size)}
		for i := range 4 {
			args = append(args, fmt.Sprintf("%s-%d.bin", prefix, i))
		}
		err = errors.Join(err, os.MkdirAll(dir, 0o755))
		if out, runErr := exec.Command(c.program("pods/pod"), args...).CombinedOutput(); runErr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %s", runErr, out))
		}
	}
	return err
}

// s3Server is the address of versitygw over the buckets, and what a source or a destination there needs.
const s3Server = "?endpoint=http://" + address + ":9000&region=us-east-1"

// startS3 starts versitygw over the buckets.
func (c *cluster) startS3() error {
	c.s3 = exec.Command(c.program("pods/s3server"), "-root", c.at("buckets"), "-meta", c.at("meta"), "-socket", address+":9000")
	c.s3.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID="+accessKey, "AWS_SECRET_ACCESS_KEY="+secretKey)
	c.s3.Stderr = os.Stderr
	if _, err := c.s3.StdinPipe(); err != nil { // it ends with its standard input
		return err
	}
	out, err := c.s3.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.s3.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it says no more
		return fmt.Errorf("the S3 server says %q: %w", line, err)
	}
	return nil
}

// killS3 has the store be gone.
func (c *cluster) killS3() {
	_ = c.s3.Process.Kill() // it runs until here
	_ = c.s3.Wait()         // killed, which is its error
}

// Sources of volumes.
func (c *cluster) local() map[string]string {
	return map[string]string{"source": c.at("data", "corpus")}
}

func (c *cluster) remote() map[string]string {
	return map[string]string{"source": "s3://datasets/corpus" + s3Server, "authentication": "secret"}
}

// persistent makes a volume and its claim as administrators do.
func (c *cluster) persistent(t testing.TB, name string, attributes map[string]string) {
	t.Helper()
	var lines strings.Builder
	for key, value := range attributes {
		fmt.Fprintf(&lines, "      %s: %q\n", key, value)
	}
	secret, mode, readOnly := "", "ReadOnlyMany", true
	if attributes["checkpoints"] != "" || attributes["kv"] != "" {
		mode, readOnly = "ReadWriteMany", false
	}
	if attributes["authentication"] == "secret" {
		secret = "    nodeStageSecretRef: {namespace: train, name: keys}\n    nodePublishSecretRef: {namespace: train, name: keys}\n"
	}
	c.apply(t, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  accessModes: [%[4]s]
  capacity: {storage: 1Ti}
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: train, name: %[1]s}
  csi:
    driver: csi.hbmfs.io
    volumeHandle: %[1]s
    readOnly: %[5]t
    volumeAttributes:
%[2]s%[3]s---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, namespace: train}
spec:
  accessModes: [%[4]s]
  storageClassName: ""
  volumeName: %[1]s
  resources: {requests: {storage: 1Ti}}
`, name, lines.String(), secret, mode, readOnly))
	c.await(t, "claim "+name+" is bound", func() error {
		var claim struct{ Status struct{ Phase string } }
		if err := c.api("GET", "/api/v1/namespaces/train/persistentvolumeclaims/"+name, nil, &claim); err != nil || claim.Status.Phase != "Bound" {
			return errors.Join(err, fmt.Errorf("its phase is %q", claim.Status.Phase))
		}
		return nil
	})
}

// sum is the hash of a file of a dataset as it lies at its source.
func sum(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:])
}

// The chart comes up without an image that is not hbmfs's own, and kubelet knows the driver.
func TestChart(t *testing.T) {
	c := need(t)
	c.await(t, "the driver is ready", func() error { return c.ready(t, "") })
	for _, part := range []string{"host", "plugin"} {
		for _, p := range c.partOf(t, part) {
			if len(p.Status.ContainerStatuses) != 1 {
				t.Errorf("%s has %d containers, want one", part, len(p.Status.ContainerStatuses))
			}
			t.Logf("%s: %s", p.Metadata.Name, p.Status.ContainerStatuses[0].Image)
		}
	}
	var version struct{ GitVersion, Platform string }
	must(t, c.api("GET", "/version", nil, &version))
	containerd, err := exec.Command("containerd", "--version").Output()
	must(t, err)
	runc, err := exec.Command("runc", "--version").Output()
	must(t, err)
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	must(t, err)
	t.Logf("Kubernetes %s, %s; %s; %s; Linux %s", version.GitVersion, version.Platform, strings.TrimSpace(string(containerd)),
		strings.ReplaceAll(strings.TrimSpace(string(runc)), "\n", ", "), strings.TrimSpace(string(kernel)))
}

// Pods of an ordinary user read volumes of all kinds: the right bytes by read and past FUSE, without a privilege.
func TestVolumes(t *testing.T) {
	c := need(t)
	c.await(t, "the driver is ready", func() error { return c.ready(t, "") })
	c.persistent(t, "local", c.local())
	c.persistent(t, "remote", c.remote())
	var pods []*pod
	for _, v := range []struct {
		name, file, at string
		volume         object
	}{
		{"inline-directory", "local-0.bin", c.at("data", "corpus"), inline(c.local(), "")},
		{"claim-directory", "local-1.bin", c.at("data", "corpus"), claimed("local")},
		{"inline-s3", "remote-0.bin", c.at("buckets", "datasets", "corpus"), inline(c.remote(), "keys")},
		{"claim-s3", "remote-1.bin", c.at("buckets", "datasets", "corpus"), claimed("remote")},
	} {
		p := c.create(t, "train", v.name, v.volume, v.file)
		first := c.started(t, p)
		want, read := sum(t, filepath.Join(v.at, v.file)), p.do(t, "hash", v.file)
		var past answer
		c.await(t, "the cache has all of "+v.file, func() error {
			if past = p.do(t, "past", v.file); past.Past != size {
				return fmt.Errorf("%d bytes past FUSE", past.Past)
			}
			return nil
		})
		if read.SHA256 != want || past.SHA256 != want || read.Bytes != size || past.Past != size {
			t.Errorf("%s: read %v, past FUSE %v, want %s", v.name, read, past, want)
		}
		who := p.do(t, "who", "").Facts
		for _, fact := range []string{"Uid 1000", "CapEff 0000000000000000", "NoNewPrivs 1", "Seccomp 2"} {
			if !slices.Contains(who, fact) {
				t.Errorf("%s: %v, want %s", v.name, who, fact)
			}
		}
		t.Logf("%s: first byte after %.2f s; sha256 %s by read; %d of %d bytes past FUSE with the same hash; %v",
			v.name, float64(first.First-p.asked.UnixNano())/1e9, read.SHA256, past.Past, past.Bytes, who)
		pods = append(pods, p)
	}
	c.scrape(t)
	c.remove(t, pods...)
	c.clean(t)
}

// scrape reads the metrics as Prometheus does, at the plugin's pod.
func (c *cluster) scrape(t testing.TB) {
	t.Helper()
	r, err := client.Get("http://" + c.partOf(t, "plugin")[0].Status.PodIP + ":9809/metrics")
	must(t, err)
	defer func() { _ = r.Body.Close() }() // read to its end
	page, err := io.ReadAll(r.Body)
	must(t, err)
	var mounts int
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "hbmfs_up{") {
			mounts++
		}
	}
	for _, want := range []string{`hbmfs_csi_calls_total{method="GetInfo",code="OK"}`, `hbmfs_csi_calls_total{method="NodePublishVolume",code="OK"}`} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	if r.StatusCode != http.StatusOK || strings.Contains(string(page), "hbmfs_csi_host_up 0") {
		t.Errorf("metrics: %s, and the host is away", r.Status)
	}
	t.Logf("metrics: %d lines, %d mounts", strings.Count(string(page), "\n"), mounts)
}

// The containers of plugin and host have the requests and limits of the chart.
func TestRequestsAndLimits(t *testing.T) {
	c := need(t)
	for part, want := range map[string]map[string]string{
		"plugin": {"memory/memory.limit_in_bytes": fmt.Sprint(256 << 20), "cpu/cpu.shares": "10"},
		"host":   {"cpu/cpu.shares": "512"},
	} {
		p := c.partOf(t, part)[0]
		id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
		for name, value := range want {
			controller, file, _ := strings.Cut(name, "/")
			found, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", controller, "kubepods", "*", "pod"+p.Metadata.UID, id, file))
			if err != nil || len(found) != 1 {
				t.Errorf("%s: control groups %v, %v", part, found, err)
				continue
			}
			have, err := os.ReadFile(found[0])
			if err != nil || strings.TrimSpace(string(have)) != value {
				t.Errorf("%s: %s is %s, %v, want %s", part, name, have, err, value)
			}
			t.Logf("%s: %s is %s", part, name, strings.TrimSpace(string(have)))
		}
	}
}
