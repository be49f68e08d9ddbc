package csi_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
)

// bucketServer is a real S3 server at an address, which can be shut.
type bucketServer struct {
	*httptest.Server
	root string // of the objects: BUCKET/NAME
	shut atomic.Bool
}

// Credentials of the server.
const (
	drainKey    = "hbmfs-test"
	drainSecret = "not-a-secret"
)

// newBucketServer starts the server that HBMFS_S3SERVER names, with one bucket "ckpt".
func newBucketServer(t *testing.T) *bucketServer {
	t.Helper()
	program := os.Getenv("HBMFS_S3SERVER")
	if program == "" {
		t.Skip("needs HBMFS_S3SERVER, a built tests/suites/origins/s3server (make test builds it)")
	}
	dir, err := os.MkdirTemp(suite.Dir, "s3-")
	must(t, err)
	s := &bucketServer{root: filepath.Join(dir, "buckets")}
	socket, meta := filepath.Join(dir, "socket"), filepath.Join(dir, "meta")
	must(t, os.MkdirAll(filepath.Join(s.root, "ckpt"), 0o755))
	must(t, os.Mkdir(meta, 0o755))
	cmd := exec.Command(program, "-root", s.root, "-meta", meta, "-socket", socket)
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID="+drainKey, "AWS_SECRET_ACCESS_KEY="+drainSecret)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close() // which ends it
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the S3 server says %q instead of ready: %v", line, err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { // the host is signed, and stays
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "socket", r.In.Host
		},
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.shut.Load() {
			http.Error(w, "shut", http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// has tells whether a checkpoint is complete at a run.
func (s *bucketServer) has(run string, f file) bool {
	_, err := os.Stat(filepath.Join(s.root, "ckpt", run, f.Name, ".hbmfs-manifest.json"))
	info, sizeErr := os.Stat(filepath.Join(s.root, "ckpt", run, f.Name, shard))
	return err == nil && sizeErr == nil && info.Size() == int64(f.Size)
}

// drainedVolume makes a checkpoint volume that drains there.
func (n *node) drainedVolume(s *bucketServer, name, run string) *volume {
	v := n.checkpointVolume(name, "drain", "s3://ckpt/"+run+"?region=us-east-1&path_style=true&endpoint="+s.URL)
	v.secrets = s3Key{drainKey, drainSecret, ""}.secret()
	return v
}

// TestCheckpointsDrain: what pods publish goes to S3, also after the last pod has left, and over kills of each part. Two volumes do not
// drain to one place.
func TestCheckpointsDrain(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	s := newBucketServer(t)
	n := newNode(t)
	v := n.drainedVolume(s, "run", "run-1")
	p := n.startPod(v, podOptions{ordinary: true})
	p.must("begin", step("first"))
	p.must("publish", step("first"))
	if !within(func() bool { return s.has("run-1", step("first")) }) {
		t.Fatalf("a checkpoint is not at the destination: %s", p.must("status", file{}).Text)
	}
	for what, w := range map[string]*volume{"the same place": n.drainedVolume(s, "other", "run-1"), "a place in it": n.drainedVolume(s, "other", "run-1/more")} {
		mustRefuse(t, what, n.publishOnce(n.publishRequest(w.inlined("other"), "pod-9000")), "FailedPrecondition", "destination")
	}
	must(t, os.RemoveAll(n.podDir("pod-9000")))
	s.shut.Store(true)
	p.must("begin past", step("last"))
	p.must("publish past", step("last"))
	p.must("begin", step("never"))
	n.stopPod(p)
	n.unstage(v)
	if !within(func() bool { return len(n.drafts(v)) == 0 }) {
		t.Errorf("drafts %v are left of a pod that died", n.drafts(v))
	}
	n.restartHost()
	n.restartPlugin()
	n.waitReady()
	n.killHeld()
	if !within(func() bool { return len(n.daemons()) == 1 }) {
		t.Fatalf("a volume that has something to drain has daemons %v", n.daemons())
	}
	if s.has("run-1", step("last")) {
		t.Fatal("the store was not shut")
	}
	q := n.startPod(v, podOptions{ordinary: true}) // it is used again meanwhile
	q.must("read", shardOf(step("last")))
	n.stopPod(q)
	n.unstage(v)
	s.shut.Store(false)
	if !within(func() bool { return s.has("run-1", step("last")) }) {
		t.Error("the last checkpoint does not reach the destination once the last pod has left")
	}
	n.mustBeClean()
	if s.has("run-1", step("never")) {
		t.Error("a draft was drained")
	}
}

// TestADrainGivesUp: a volume that no pod uses any more ends although its store never answers, and nothing is lost.
func TestADrainGivesUp(t *testing.T) {
	t.Parallel() // beside TestNoHostComes, which waits
	s := newBucketServer(t)
	n := newNode(t, "--drain-patience=2s")
	s.shut.Store(true)
	v := n.drainedVolume(s, "run", "run-1")
	p := n.startPod(v, podOptions{ordinary: true})
	p.must("begin", step("one"))
	p.must("publish", step("one"))
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
	s.shut.Store(false)
	q := n.startPod(v, podOptions{ordinary: true})
	if !within(func() bool { return s.has("run-1", step("one")) }) {
		t.Error("the next pod's daemon does not drain what was left")
	}
	n.stopPod(q)
	n.unstage(v)
	n.mustBeClean()
}
