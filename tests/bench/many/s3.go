package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	bucket    = "many"
	accessKey = "many"
	secretKey = "many-secret"
)

// s3Server is a running tests/suites/origins/s3server, and the way to it.
type s3Server struct {
	cmd   *exec.Cmd
	stdin io.Closer // it ends with it
	dial  func(ctx context.Context, _, _ string) (net.Conn, error)
	way   *httputil.ReverseProxy
}

func startS3(binary, dir string) (*s3Server, error) {
	root, meta, socket := filepath.Join(dir, "buckets"), filepath.Join(dir, "meta"), filepath.Join(dir, "socket")
	if err := errors.Join(os.MkdirAll(filepath.Join(root, bucket), 0o755), os.Mkdir(meta, 0o755)); err != nil {
		return nil, err
	}
	s := &s3Server{cmd: exec.Command(binary, "-root", root, "-meta", meta, "-socket", socket)}
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), "AWS_ACCESS_KEY_ID="+accessKey, "AWS_SECRET_ACCESS_KEY="+secretKey), os.Stderr
	stdin, inErr := s.cmd.StdinPipe()
	stdout, outErr := s.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, s.cmd.Start()); err != nil {
		return nil, err
	}
	s.stdin = stdin
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", binary, err), s.close())
	}
	s.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	s.way = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", r.In.Host, r.In.Host // which the signature covers
		},
		Transport: &http.Transport{DialContext: s.dial, MaxIdleConnsPerHost: 64, DisableCompression: true},
	}
	return s, nil
}

func (s *s3Server) close() error { return errors.Join(s.stdin.Close(), s.cmd.Wait()) }

// upload puts the dataset into the bucket, each file as one part: rclone gives other objects an ETag of its own.
func (b *bench) upload(ctx context.Context) error {
	c, err := minio.New("localhost", &minio.Options{Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Transport: &http.Transport{DialContext: b.s3.dial}, Region: "us-east-1"})
	if err != nil {
		return err
	}
	for i := range b.files {
		name := fmt.Sprintf("train-%03d.bin", i)
		path := filepath.Join(b.dir, "root", name)
		if _, err := c.FPutObject(ctx, bucket, name, path, minio.PutObjectOptions{DisableMultipart: true}); err != nil {
			return fmt.Errorf("upload %s: %w", name, err)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
