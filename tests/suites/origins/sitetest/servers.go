// Package sitetest is shared by the suites over real servers: versitygw's S3 (s3server, a module of its own, which HBMFS_S3SERVER names
// built) and nginx. Between them and hbmfs stands a proxy of the test, which counts what is asked for and breaks what a test wants broken.
package sitetest

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
	AccessKey = "hbmfs-test"
	SecretKey = "not a secret"
)

// Servers are the servers that tests of a package share.
type Servers struct {
	Suite *blackbox.Suite
	S3    *S3Server    // nil where HBMFS_S3SERVER is not set
	Nginx *NginxServer // nil where there is no nginx
}

// Main runs tests, which is Run of testing.M, beside servers, which it has them know by given. It returns the exit code.
func Main(name string, given func(*Servers), tests func() int) int {
	s := &Servers{}
	return blackbox.Main(name, &s.Suite, func() int {
		code := 1
		err := s.start()
		if err == nil {
			given(s)
			code = tests()
		}
		if err := errors.Join(err, s.stop()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	})
}

func (s *Servers) start() (err error) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": AccessKey, "AWS_SECRET_ACCESS_KEY": SecretKey, "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "", "AWS_REGION": "us-east-1",
		"AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_CONFIG_FILE": "/dev/null", // and none of this machine
		"AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "", "NO_PROXY": "*",
	} {
		err = errors.Join(err, os.Setenv(name, value))
	}
	switch s3server, minio := os.Getenv("HBMFS_S3SERVER"), os.Getenv("HBMFS_MINIO"); {
	case err != nil:
	case minio != "":
		s.S3, err = startMinIO(s.Suite, minio)
	case s3server != "":
		s.S3, err = startS3(s.Suite, s3server)
	}
	if _, look := blackbox.Nginx(); look == nil && err == nil && os.Getenv("HBMFS_MINIO") == "" { // make test has these tests
		s.Nginx, err = StartNginx(filepath.Join(s.Suite.Dir, "nginx"), NginxConfig)
	}
	return err
}

func (s *Servers) stop() error {
	var err error
	if s.S3 != nil {
		err = s.S3.Stop()
	}
	if s.Nginx != nil {
		err = errors.Join(err, s.Nginx.Stop())
	}
	return err
}

// NeedS3 skips where there is no S3 server.
func (s *Servers) NeedS3(t *testing.T) {
	t.Helper()
	if s.S3 == nil {
		t.Skip("needs HBMFS_S3SERVER, a built tests/suites/origins/s3server (make test builds it), or HBMFS_MINIO (make minio)")
	}
}

// NeedNginx skips where there is no nginx.
func (s *Servers) NeedNginx(t *testing.T) {
	t.Helper()
	if s.Nginx == nil {
		t.Skip("needs nginx (make test installs it, or names the package), and no HBMFS_MINIO")
	}
}

// S3Server is a running s3server, or MinIO.
type S3Server struct {
	cmd     *exec.Cmd
	stdin   io.Closer // s3server ends with it; nil for MinIO
	Socket  string    // or the address and port
	Root    string    // of the buckets, where files may be placed, too: all of one ETag; "" where they may not
	Client  *minio.Client
	buckets atomic.Int64
}

func startS3(suite *blackbox.Suite, path string) (*S3Server, error) {
	dir := filepath.Join(suite.Dir, "s3")
	root, meta := filepath.Join(dir, "buckets"), filepath.Join(dir, "meta")
	if err := errors.Join(os.MkdirAll(root, 0o755), os.Mkdir(meta, 0o755)); err != nil {
		return nil, err
	}
	s := &S3Server{Socket: filepath.Join(dir, "socket"), Root: root}
	s.cmd = exec.Command(path, "-root", root, "-meta", meta, "-socket", s.Socket)
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
		return nil, fmt.Errorf("the S3 server says %q instead of ready: %w", line, errors.Join(err, s.Stop()))
	}
	s.Client, err = s.NewClient()
	return s, err
}

// NewClient is a client of the S3 server, with its account.
func (s *S3Server) NewClient() (*minio.Client, error) {
	return minio.New("s3.test", &minio.Options{
		Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Region: "us-east-1", BucketLookup: minio.BucketLookupPath, Transport: ToServer(s.Socket),
	})
}

// startMinIO starts a MinIO that somebody has built. It has no sockets with a name, so a port is sought for it.
func startMinIO(suite *blackbox.Suite, path string) (*S3Server, error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &S3Server{Socket: free.Addr().String()}
	dir := filepath.Join(suite.Dir, "minio")
	s.cmd = exec.Command(path, "server", "--quiet", "--address", s.Socket, dir)
	s.cmd.Env = append(os.Environ(), "MINIO_ROOT_USER="+AccessKey, "MINIO_ROOT_PASSWORD="+SecretKey, "MINIO_BROWSER=off", "MINIO_UPDATE=off")
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive the tests
	if s.Client, err = s.NewClient(); err != nil {
		return nil, err
	}
	if err := errors.Join(free.Close(), os.Mkdir(dir, 0o755), s.cmd.Start()); err != nil {
		return nil, fmt.Errorf("start MinIO: %w", err)
	}
	if !blackbox.Within(blackbox.Patience, func() bool { _, err = s.Client.ListBuckets(context.Background()); return err == nil }) {
		return nil, fmt.Errorf("MinIO does not answer: %w", errors.Join(err, s.Stop()))
	}
	return s, nil
}

// Stop ends the server.
func (s *S3Server) Stop() error {
	if s.stdin == nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by now, which Wait says
		return s.cmd.Wait()
	}
	return errors.Join(s.stdin.Close(), s.cmd.Wait())
}

// Place has many small objects in a bucket, fast.
func (s *S3Server) Place(t testing.TB, bucket string, names []string) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for _, name := range names {
		g.Go(func() error {
			if s.Root == "" {
				s.Put(t, bucket, name, []byte(name))
				return nil
			}
			path := filepath.Join(s.Root, bucket, filepath.FromSlash(name))
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name), 0o644))
		})
	}
	blackbox.Must(t, g.Wait())
}

// Bucket makes an empty bucket.
func (s *S3Server) Bucket(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("bucket-%d", s.buckets.Add(1))
	blackbox.Must(t, s.Client.MakeBucket(context.Background(), name, minio.MakeBucketOptions{}))
	return name
}

// Put makes an object.
func (s *S3Server) Put(t testing.TB, bucket, name string, data []byte) {
	t.Helper()
	if _, err := s.Client.PutObject(context.Background(), bucket, name, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{DisableContentSha256: len(data) == 0}); err != nil {
		t.Errorf("put %q: %v", name, err)
	}
}

// NginxServer is a running nginx over a directory.
type NginxServer struct {
	cmd          *exec.Cmd
	Root, Socket string
	log          string
	places       atomic.Int64
}

// NginxConfig is an nginx of one process, which writes nowhere but below the directory it is started in.
const NginxConfig = `
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

// StartNginx starts nginx below dir with a configuration, whose sockets and root lie there.
func StartNginx(dir, config string) (*NginxServer, error) {
	s := &NginxServer{Root: filepath.Join(dir, "root"), Socket: filepath.Join(dir, "socket"), log: filepath.Join(dir, "log")}
	config = strings.NewReplacer("unix:socket", "unix:"+s.Socket, "root root", "root "+s.Root).Replace(config)
	if err := errors.Join(os.MkdirAll(s.Root, 0o755), os.Mkdir(filepath.Join(dir, "temp"), 0o700), os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o644)); err != nil {
		return nil, err
	}
	path, err := blackbox.Nginx()
	if err != nil {
		return nil, err
	}
	s.cmd = exec.Command(path, "-p", dir, "-e", "log", "-c", "nginx.conf")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it must not outlive the tests
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start nginx: %w", err)
	}
	up := blackbox.Within(blackbox.Patience, func() bool {
		c, err := net.Dial("unix", s.Socket)
		if err == nil {
			_ = c.Close() // nothing was sent
		}
		return err == nil
	})
	if !up {
		said, _ := os.ReadFile(s.log) // the error stands without it
		return nil, errors.Join(fmt.Errorf("nginx does not listen: %s", said), s.Stop())
	}
	return s, nil
}

// Stop ends the server. It asks again and again: a signal that comes just before nginx waits for events is not seen until the next one.
func (s *NginxServer) Stop() error {
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

// Place makes an empty directory and gives its name below the root.
func (s *NginxServer) Place(t testing.TB) string {
	t.Helper()
	name := fmt.Sprint("place-", s.places.Add(1))
	blackbox.Must(t, os.Mkdir(filepath.Join(s.Root, name), 0o755))
	return name
}

// Put writes a file with a date of its own: what nginx makes of a file's date and size is its ETag, in whole seconds, so
// that it cannot tell two files of the same size that are written within one.
func (s *NginxServer) Put(t testing.TB, place, name string, data []byte, date int64) {
	t.Helper()
	path := filepath.Join(s.Root, place, filepath.FromSlash(name))
	blackbox.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	blackbox.Must(t, os.WriteFile(path+".new", data, 0o644))
	at := time.Unix(1_700_000_000+date, 0)
	blackbox.Must(t, os.Chtimes(path+".new", at, at))
	blackbox.Must(t, os.Rename(path+".new", path))
}

// ToServer is a transport that takes every address for one: a socket's path, or an address and port.
func ToServer(address string) *http.Transport {
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

// Parts counts the parts that have arrived of an object that is being uploaded.
func (s *S3Server) Parts(t testing.TB, bucket, name string) (n int) {
	t.Helper()
	core := minio.Core{Client: s.Client}
	all, err := core.ListMultipartUploads(t.Context(), bucket, name, "", "", "", 100)
	blackbox.Must(t, err)
	for _, u := range all.Uploads {
		parts, err := core.ListObjectParts(t.Context(), bucket, name, u.UploadID, 0, 1000)
		blackbox.Must(t, err)
		n += len(parts.ObjectParts)
	}
	return n
}
