package csi_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const driverName = "csi.hbmfs.io"

// volume is what a PersistentVolume says, or a pod about an inline volume.
type volume struct {
	name       string
	inline     bool
	attributes map[string]string
	secrets    map[string]string
	fsGroup    string
	staged     bool
	writes     bool // pods change it; it is mounted read-only where readOnly says so
	readOnly   bool
}

// client calls the plugin as kubelet does: over a connection of its own for each call.
func (n *node) client(call func(context.Context, csi.IdentityClient, csi.NodeClient) error) error {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	return errors.Join(call(ctx, csi.NewIdentityClient(conn), csi.NewNodeClient(conn)), conn.Close())
}

// ready asks the plugin whether it and the host can work.
func (n *node) ready() bool {
	n.t.Helper()
	return n.client(func(ctx context.Context, identity csi.IdentityClient, _ csi.NodeClient) error {
		r, err := identity.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && !r.GetReady().GetValue() {
			err = errors.New("it is not ready")
		}
		return err
	}) == nil
}

func (n *node) waitReady() {
	n.t.Helper()
	if !within(func() bool { return n.plugin.ended() || n.host.ended() || n.ready() }) || n.plugin.ended() || n.host.ended() {
		n.t.Fatal("the driver does not come up")
	}
}

// eventually repeats a call until it is answered well, as kubelet does after any error, only sooner.
func (n *node) eventually(what string, call func() error) {
	n.t.Helper()
	wait, end := 20*time.Millisecond, time.Now().Add(patience)
	for {
		err := call()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("%s: after %v of attempts: %v", what, patience, err)
		}
		time.Sleep(wait) // kubelet's own backoff, from half a second to two minutes
		wait = min(2*wait, 500*time.Millisecond)
	}
}

func (v *volume) capability() *csi.VolumeCapability {
	mode := csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	if v.inline {
		mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER // what kubelet says of all inline volumes
	}
	if v.writes && !v.inline {
		mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: v.fsGroup}},
	}
}

// id is the volume's: what a PersistentVolume's volumeHandle says, or what kubelet makes up for an inline volume.
func (v *volume) id(pod string) string {
	if v.inline {
		return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(v.name+pod)))
	}
	return "handle of " + v.name
}

// stagingPath is where kubelet wants the volume staged.
func (n *node) stagingPath(v *volume) string {
	return filepath.Join(n.kubelet, "plugins", "kubernetes.io", "csi", driverName, fmt.Sprintf("%x", sha256.Sum256([]byte(v.id("")))), "globalmount")
}

// targetPath is where kubelet wants a pod's volume.
func (n *node) targetPath(v *volume, pod string) string {
	return filepath.Join(n.podDir(pod), "volumes", "kubernetes.io~csi", v.name, "mount")
}

func (n *node) podDir(pod string) string { return filepath.Join(n.kubelet, "pods", pod) }

func (n *node) stageOnce(v *volume) error {
	if err := os.MkdirAll(n.stagingPath(v), 0o750); err != nil {
		return err
	}
	return n.client(func(ctx context.Context, _ csi.IdentityClient, node csi.NodeClient) error {
		_, err := node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.id(""), StagingTargetPath: n.stagingPath(v), VolumeCapability: v.capability(), VolumeContext: v.attributes, Secrets: v.secrets,
		})
		return err
	})
}

// stage stages a persistent volume, which kubelet does before the first pod that uses it; of an inline one it does not.
func (n *node) stage(v *volume) {
	n.t.Helper()
	if v.inline || v.staged {
		return
	}
	n.eventually("stage "+v.name, func() error { return n.stageOnce(v) })
	v.staged = true
}

// publishRequest is what kubelet asks for a pod, with what podInfoOnMount adds.
func (n *node) publishRequest(v *volume, pod string) *csi.NodePublishVolumeRequest {
	r := &csi.NodePublishVolumeRequest{
		VolumeId: v.id(pod), TargetPath: n.targetPath(v, pod), VolumeCapability: v.capability(), Readonly: v.readOnly || !v.inline && !v.writes, Secrets: v.secrets,
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/pod.name": "pod-" + pod, "csi.storage.k8s.io/pod.namespace": "default", "csi.storage.k8s.io/pod.uid": pod,
			"csi.storage.k8s.io/serviceAccount.name": "trainer", "csi.storage.k8s.io/ephemeral": fmt.Sprint(v.inline),
			"csi.storage.k8s.io/serviceAccount.tokens": `{"sts.amazonaws.com":{"token":"` + podToken + `","expirationTimestamp":"2099-01-01T00:00:00Z"}}`,
		},
	}
	maps.Copy(r.VolumeContext, v.attributes)
	if !v.inline {
		r.StagingTargetPath = n.stagingPath(v)
	}
	return r
}

// podToken is in every request to publish, and may be nowhere else.
const podToken = "eyJ.service.account.token.of.the.pod"

func (n *node) publishOnce(r *csi.NodePublishVolumeRequest) error {
	if err := os.MkdirAll(filepath.Dir(r.GetTargetPath()), 0o750); err != nil {
		return err
	}
	return n.client(func(ctx context.Context, _ csi.IdentityClient, node csi.NodeClient) error {
		_, err := node.NodePublishVolume(ctx, r)
		return err
	})
}

func (n *node) publish(v *volume, pod string) {
	n.t.Helper()
	n.eventually("publish "+v.name, func() error { return n.publishOnce(n.publishRequest(v, pod)) })
}

// unpublish takes a pod's volume away, and the directories that kubelet has made; it removes the target if the driver
// left it, and never what is mounted.
func (n *node) unpublish(v *volume, pod string) {
	n.t.Helper()
	n.eventually("unpublish "+v.name, func() error {
		if err := n.unpublishOnce(v, pod); err != nil {
			return err
		}
		return removeDirectory(n.targetPath(v, pod))
	})
	if err := os.RemoveAll(n.podDir(pod)); err != nil {
		n.t.Errorf("kubelet cannot remove the directory of a pod: %v", err)
	}
}

func (n *node) unpublishOnce(v *volume, pod string) error {
	return n.client(func(ctx context.Context, _ csi.IdentityClient, node csi.NodeClient) error {
		_, err := node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.id(pod), TargetPath: n.targetPath(v, pod)})
		return err
	})
}

func (n *node) unstage(v *volume) {
	n.t.Helper()
	if !v.staged {
		return
	}
	path := n.stagingPath(v)
	n.eventually("unstage "+v.name, func() error {
		err := n.client(func(ctx context.Context, _ csi.IdentityClient, node csi.NodeClient) error {
			_, err := node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.id(""), StagingTargetPath: path})
			return err
		})
		if err != nil {
			return err
		}
		return errors.Join(removeDirectory(path), os.Remove(filepath.Dir(path)))
	})
	v.staged = false
}

// removeDirectory is kubelet's: an empty directory that nothing is mounted on, or nothing.
func removeDirectory(path string) error {
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("%s is still mounted after it was taken away", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// stats are what kubelet asks once a minute for each volume of a pod.
func (n *node) stats(v *volume, pod string) (r *csi.NodeGetVolumeStatsResponse, err error) {
	err = n.client(func(ctx context.Context, _ csi.IdentityClient, node csi.NodeClient) error {
		var err error
		r, err = node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.id(pod), VolumePath: n.targetPath(v, pod)})
		return err
	})
	return r, err
}

// code is that of an error of a call.
func code(err error) codes.Code {
	var s interface{ GRPCStatus() *status.Status }
	if err == nil {
		return codes.OK
	}
	if errors.As(err, &s) {
		return s.GRPCStatus().Code()
	}
	return codes.Unknown
}

// podOptions say how a pod is started.
type podOptions struct {
	propagate bool   // mountPropagation: HostToContainer, instead of None
	subPath   string // what of the volume is mounted
	ordinary  bool   // the pod has no user namespace: user 1000, whom the pod's fsGroup makes a member of a group
}

// startPod does all that kubelet does for a pod with one volume, and starts it.
func (n *node) startPod(v *volume, opt podOptions) *pod {
	n.t.Helper()
	n.stage(v)
	uid := n.newUID()
	n.publish(v, uid)
	p := n.runPod(uid, v, opt)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = append(n.pods, p)
	return p
}

func (n *node) newUID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.number++
	return fmt.Sprintf("pod-%04d", n.number)
}

// startPods starts many, a few at a time; every second one has HostToContainer.
func (n *node) startPods(v *volume, count int) []*pod {
	n.t.Helper()
	n.stage(v)
	pods := make([]*pod, count)
	n.parallel(count, func(i int) { pods[i] = n.startPod(v, podOptions{propagate: i%2 == 1}) })
	return pods
}

// parallel does a few of many things at a time. One that fails the test fails it here.
func (n *node) parallel(count int, do func(i int)) {
	n.t.Helper()
	var wait sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range count {
		slots <- struct{}{}
		wait.Add(1)
		go func() { // ends with what it does
			defer func() {
				<-slots
				wait.Done()
			}()
			do(i)
		}()
	}
	wait.Wait()
	if n.t.Failed() {
		n.t.FailNow()
	}
}

// stopPod ends a pod and takes its volume away.
func (n *node) stopPod(p *pod) {
	n.t.Helper()
	p.kill()
	n.unpublish(p.volume, p.uid)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = slices.DeleteFunc(n.pods, func(q *pod) bool { return q == p })
}

func (n *node) stopPods(pods []*pod) {
	n.t.Helper()
	n.parallel(len(pods), func(i int) { n.stopPod(pods[i]) })
}
