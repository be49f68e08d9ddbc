package cluster_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// version of Kubernetes, as tests/cluster/kubernetes/go.mod has it.
const (
	containerdSocket = "/run/containerd/containerd.sock"
	apiServer        = "https://127.0.0.1:6443"
	podImage         = "hbmfs.test/pod:1"
)

// users of the API server, each with a token that is its name.
const users = `admin,admin,1,"system:masters"
kubelet,system:node:node-1,2,"system:nodes"
scheduler,system:kube-scheduler,3
manager,system:kube-controller-manager,4
`

const containerdConfig = `version = 2
root = "%[1]s/containerd"
state = "/run/containerd"
[grpc]
  address = "` + containerdSocket + `"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + podImage + `"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
featureGates: {CSIVolumeHealth: true}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
containerRuntimeEndpoint: unix://` + containerdSocket + `
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, nodefs.inodesFree: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
resolvConf: %[1]s/resolv.conf
maxPods: 150
`

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "` + apiServer + `", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`

// start starts all programs of the cluster, and waits until its node is ready.
func (c *cluster) start() error {
	if err := c.configure(); err != nil {
		return err
	}
	if _, err := c.run("containerd", "containerd", "--config", c.at("containerd.toml")); err != nil {
		return err
	}
	kubernetes := c.program("kubernetes")
	for _, args := range [][]string{
		{"etcd", "--data-dir", c.at("etcd"), "--unsafe-no-fsync"},
		{
			"kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--cert-dir=" + c.at("certs"), "--token-auth-file=" + c.at("users.csv"),
			"--authorization-mode=Node,RBAC", "--allow-privileged=true", "--advertise-address=" + address, "--service-cluster-ip-range=10.96.0.0/16",
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + c.at("key.pem"),
			"--service-account-signing-key-file=" + c.at("key.pem"), "--kubelet-preferred-address-types=InternalIP",
		},
		{
			"kube-controller-manager", "--kubeconfig=" + c.at("manager.conf"), "--leader-elect=false", "--use-service-account-credentials=true",
			"--service-account-private-key-file=" + c.at("key.pem"), "--root-ca-file=" + c.at("certs", "apiserver.crt"),
		},
		{"kube-scheduler", "--kubeconfig=" + c.at("scheduler.conf"), "--leader-elect=false"},
		{"kubelet", "--config=" + c.at("kubelet.yaml"), "--kubeconfig=" + c.at("kubelet.conf"), "--hostname-override=node-1", "--node-ip=" + address, "--v=2"},
	} {
		if args[0] == "kube-controller-manager" {
			if err := c.until("the API server answers", func() error { return c.api("GET", "/readyz", nil, nil) }); err != nil {
				return err
			}
		}
		if _, err := c.run(args[0], append([]string{kubernetes}, args...)...); err != nil {
			return err
		}
	}
	if err := c.importImages(); err != nil {
		return err
	}
	return c.until("the node is ready", func() error {
		var n struct {
			Status struct {
				Conditions []struct{ Type, Status, Message string }
			}
		}
		if err := c.api("GET", "/api/v1/nodes/node-1", nil, &n); err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" {
				return nil
			}
		}
		return fmt.Errorf("conditions: %v", n.Status.Conditions)
	})
}

// configure writes what the programs are told.
func (c *cluster) configure() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	files := map[string]string{
		"key.pem":         string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		"users.csv":       users,
		"resolv.conf":     "",
		"containerd.toml": fmt.Sprintf(containerdConfig, c.work),
		"kubelet.yaml":    fmt.Sprintf(kubeletConfig, c.work),
	}
	for _, user := range []string{"admin", "kubelet", "scheduler", "manager"} {
		files[user+".conf"] = fmt.Sprintf(kubeconfig, user)
	}
	for name, text := range files {
		if err := os.WriteFile(c.at(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// importImages gives containerd the images of hbmfs and of the pods: nothing is pulled.
func (c *cluster) importImages() (err error) {
	for _, name := range []string{"pod.tar", "hbmfs-0.2.0.tar", "hbmfs-0.2.0-next.tar"} {
		err = errors.Join(err, c.importImage(c.program(name)))
	}
	return err
}

func (c *cluster) importImage(path string) error {
	return c.until("containerd imports "+path, func() error {
		out, err := exec.Command("ctr", "--address", containerdSocket, "--namespace", "k8s.io", "images", "import", path).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// until waits for something, for a limited time. A program of the cluster that ends by itself is told of.
func (c *cluster) until(what string, try func() error) (err error) {
	if blackbox.Within(patience, func() bool {
		if err = try(); err != nil {
			time.Sleep(100 * time.Millisecond)
		}
		return err == nil || c.fallen() != nil
	}) && err == nil {
		return nil
	}
	if p := c.fallen(); p != nil {
		return fmt.Errorf("%s ended by itself:\n%s", p.name, p.tail())
	}
	return fmt.Errorf("waited %v until %s: %w", patience, what, err)
}

// fallen finds a program that has ended by itself.
func (c *cluster) fallen() *process {
	for _, p := range c.processes {
		select {
		case <-p.ended:
			return p
		default:
		}
	}
	return nil
}
