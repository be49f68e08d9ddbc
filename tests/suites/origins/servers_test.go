package origins_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// The keys of the S3 server's one account. Mounts find them in the environment, as with AWS.
const (
	accessKey = "hbmfs-test"
	secretKey = "not a secret"
)

func startServers() (err error) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "", "AWS_REGION": "us-east-1",
		"AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_CONFIG_FILE": "/dev/null", // and none of this machine
		"AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "", "NO_PROXY": "*",
	} {
		err = errors.Join(err, os.Setenv(name, value))
	}
	switch s3server, minio := os.Getenv("HBMFS_S3SERVER"), os.Getenv("HBMFS_MINIO"); {
	case err != nil:
	case minio != "":
		s3, err = startMinIO(minio)
	case s3server != "":
		s3, err = startS3(s3server)
	}
	if path, look := blackbox.Nginx(); look == nil && err == nil && os.Getenv("HBMFS_MINIO") == "" { // make test has these tests
		nginx, err = startNginx(path, filepath.Join(suite.Dir, "nginx"), nginxConfig)
	}
	return err
}

func stopServers() error {
	var err error
	if s3 != nil {
		err = s3.stop()
	}
	if nginx != nil {
		err = errors.Join(err, nginx.stop())
	}
	return err
}

func needS3(t *testing.T) {
	t.Helper()
	if s3 == nil {
		t.Skip("needs HBMFS_S3SERVER, a built tests/suites/origins/s3server (make test builds it), or HBMFS_MINIO (make minio)")
	}
}

func needNginx(t *testing.T) {
	t.Helper()
	if nginx == nil {
		t.Skip("needs nginx (make test installs it, or names the package), and no HBMFS_MINIO")
	}
}

// s3Server is a running s3server, or MinIO.
type s3Server struct {
	cmd     *exec.Cmd
	stdin   io.Closer // s3server ends with it; nil for MinIO
	socket  string    // or the address and port
	root    string    // of the buckets, where files may be placed, too: all of one ETag; "" where they may not
	client  *minio.Client
	buckets atomic.Int64
}

func startS3(path string) (*s3Server, error) {
	dir := filepath.Join(suite.Dir, "s3")
	root, meta := filepath.Join(dir, "buckets"), filepath.Join(dir, "meta")
	if err := errors.Join(os.MkdirAll(root, 0o755), os.Mkdir(meta, 0o755)); err != nil {
		return nil, err
	}
	s := &s3Server{socket: filepath.Join(dir, "socket"), root: root}
	s.cmd = exec.Command(path, "-root", root, "-meta", meta, "-socket", s.socket)
	s.cmd.Stderr = os.Stderr
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	s.stdin = stdin
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the S3 server: %w", err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return nil, fmt.Errorf("the S3 server says %q instead of ready: %w", line, errors.Join(err, s.stop()))
	}
	s.client, err = s.newClient()
	return s, err
}

func (s *s3Server) newClient() (*minio.Client, error) {
	return minio.New("s3.test", &minio.Options{
		Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Region: "us-east-1", BucketLookup: minio.BucketLookupPath, Transport: toServer(s.socket),
	})
}

// startMinIO starts a MinIO that somebody has built. It has no sockets with a name, so a port is sought for it.
func startMinIO(path string) (*s3Server, error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &s3Server{socket: free.Addr().String()}
	dir := filepath.Join(suite.Dir, "minio")
	s.cmd = exec.Command(path, "server", "--quiet", "--address", s.socket, dir)
	s.cmd.Env = append(os.Environ(), "MINIO_ROOT_USER="+accessKey, "MINIO_ROOT_PASSWORD="+secretKey, "MINIO_BROWSER=off", "MINIO_UPDATE=off")
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive the tests
	if s.client, err = s.newClient(); err != nil {
		return nil, err
	}
	if err := errors.Join(free.Close(), os.Mkdir(dir, 0o755), s.cmd.Start()); err != nil {
		return nil, fmt.Errorf("start MinIO: %w", err)
	}
	if !blackbox.Within(patience, func() bool { _, err = s.client.ListBuckets(context.Background()); return err == nil }) {
		return nil, fmt.Errorf("MinIO does not answer: %w", errors.Join(err, s.stop()))
	}
	return s, nil
}

func (s *s3Server) stop() error {
	if s.stdin == nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by now, which Wait says
		return s.cmd.Wait()
	}
	return errors.Join(s.stdin.Close(), s.cmd.Wait())
}

// place has many small objects in a bucket, fast.
func (s *s3Server) place(t testing.TB, bucket string, names []string) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for _, name := range names {
		g.Go(func() error {
			if s.root == "" {
				s.put(t, bucket, name, []byte(name))
				return nil
			}
			path := filepath.Join(s.root, bucket, filepath.FromSlash(name))
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name), 0o644))
		})
	}
	must(t, g.Wait())
}

// bucket makes an empty bucket.
func (s *s3Server) bucket(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("bucket-%d", s.buckets.Add(1))
	must(t, s.client.MakeBucket(context.Background(), name, minio.MakeBucketOptions{}))
	return name
}

func (s *s3Server) put(t testing.TB, bucket, name string, data []byte) {
	t.Helper()
	if _, err := s.client.PutObject(context.Background(), bucket, name, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{DisableContentSha256: len(data) == 0}); err != nil {
		t.Errorf("put %q: %v", name, err)
	}
}

// nginxServer is a running nginx over a directory.
type nginxServer struct {
	cmd          *exec.Cmd
	root, socket string
	log          string
	places       atomic.Int64
}

// nginxConfig is an nginx of one process, which writes nowhere but below the directory it is started in.
const nginxConfig = `
daemon off;
master_process off;
pid pid;
error_log log warn;
events { worker_connections 1024; }
http {
  access_log off;
  gzip on;
  gzip_min_length 1;
  gzip_types *;
  client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
  server {
    listen unix:socket;
    root root;
  }
}
`

// startNginx starts nginx below dir with a configuration, whose sockets and root lie there.
func startNginx(path, dir, config string) (*nginxServer, error) {
	s := &nginxServer{root: filepath.Join(dir, "root"), socket: filepath.Join(dir, "socket"), log: filepath.Join(dir, "log")}
	config = strings.NewReplacer("unix:socket", "unix:"+s.socket, "root root", "root "+s.root).Replace(config)
	if err := errors.Join(os.MkdirAll(s.root, 0o755), os.Mkdir(filepath.Join(dir, "temp"), 0o700), os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o644)); err != nil {
		return nil, err
	}
	s.cmd = exec.Command(path, "-p", dir, "-e", "log", "-c", "nginx.conf")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive the tests
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start nginx: %w", err)
	}
	up := blackbox.Within(patience, func() bool {
		c, err := net.Dial("unix", s.socket)
		if err == nil {
			_ = c.Close() // nothing was sent
		}
		return err == nil
	})
	if !up {
		said, _ := os.ReadFile(s.log) // the error stands without it
		return nil, errors.Join(fmt.Errorf("nginx does not listen: %s", said), s.stop())
	}
	return s, nil
}

// stop asks again and again: a signal that comes just before nginx waits for events is not seen until the next one.
func (s *nginxServer) stop() error {
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	for {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by now, which Wait says
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Second):
		}
	}
}

// place makes an empty directory and gives its name below the root.
func (s *nginxServer) place(t testing.TB) string {
	t.Helper()
	name := fmt.Sprint("place-", s.places.Add(1))
	must(t, os.Mkdir(filepath.Join(s.root, name), 0o755))
	return name
}

// put writes a file with a date of its own: what nginx makes of a file's date and size is its ETag, in whole seconds, so
// that it cannot tell two files of the same size that are written within one.
func (s *nginxServer) put(t testing.TB, place, name string, data []byte, date int64) {
	t.Helper()
	path := filepath.Join(s.root, place, filepath.FromSlash(name))
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path+".new", data, 0o644))
	at := time.Unix(1_700_000_000+date, 0)
	must(t, os.Chtimes(path+".new", at, at))
	must(t, os.Rename(path+".new", path))
}

// toServer is a transport that takes every address for one: a socket's path, or an address and port.
func toServer(address string) *http.Transport {
	network := "tcp"
	if filepath.IsAbs(address) {
		network = "unix"
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		DisableCompression: true, MaxIdleConnsPerHost: 64,
	}
}

// parts counts the parts that have arrived of an object that is being uploaded.
func (s *s3Server) parts(t testing.TB, bucket, name string) (n int) {
	t.Helper()
	core := minio.Core{Client: s.client}
	all, err := core.ListMultipartUploads(t.Context(), bucket, name, "", "", "", 100)
	must(t, err)
	for _, u := range all.Uploads {
		parts, err := core.ListObjectParts(t.Context(), bucket, name, u.UploadID, 0, 1000)
		must(t, err)
		n += len(parts.ObjectParts)
	}
	return n
}
