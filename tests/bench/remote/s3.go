package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// The keys of the S3 server's one account, and its one bucket.
const (
	accessKey = "hbmfs-bench"
	secretKey = "not a secret"
	region    = "us-east-1"
	bucket    = "bench"
)

// s3Server is a running tests/suites/origins/s3server. Its objects are the files of a directory.
type s3Server struct {
	cmd    *exec.Cmd
	stdin  io.Closer // it ends with it
	socket string
	root   string // of the bucket
}

func startS3(binary, dir string) (*s3Server, error) {
	root, meta := filepath.Join(dir, "buckets"), filepath.Join(dir, "meta")
	s := &s3Server{socket: filepath.Join(dir, "socket"), root: filepath.Join(root, bucket)}
	if err := errors.Join(os.MkdirAll(s.root, 0o755), os.Mkdir(meta, 0o755)); err != nil {
		return nil, err
	}
	s.cmd = exec.Command(binary, "-root", root, "-meta", meta, "-socket", s.socket)
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), awsKeys()...), os.Stderr
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
		return nil, fmt.Errorf("start the S3 server (make test builds it): %w", err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return nil, fmt.Errorf("the S3 server says %q instead of ready: %w", line, errors.Join(err, s.close()))
	}
	return s, nil
}

func (s *s3Server) close() error { return errors.Join(s.stdin.Close(), s.cmd.Wait()) }

func awsKeys() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey, "AWS_REGION=" + region}
}

// proxy is a way to the S3 server: a TCP port with a set delay, which counts the bytes that it sends. It moves bytes by
// splice, since it shares its CPUs with the measured program.
type proxy struct {
	url     string
	sent    atomic.Int64 // to clients, bytes
	socket  string
	latency time.Duration
	rate    float64 // of a connection, bytes per second

	listener net.Listener
	ctx      context.Context // of connections
	cancel   context.CancelFunc
	wg       sync.WaitGroup // of connections, and of the loop that accepts them
}

func newProxy(socket string, latency time.Duration, rate float64) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{url: "http://" + l.Addr().String(), socket: socket, latency: latency, rate: rate, listener: l}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // it was closed
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	return p, nil
}

func (p *proxy) close() error {
	err := p.listener.Close()
	p.cancel()
	p.wg.Wait()
	return err
}

func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("unix", p.socket)
	if err != nil {
		_ = client.Close() // the caller sees that
		return
	}
	shut := func() { _ = errors.Join(client.Close(), server.Close()) } // bytes that one side has not got are asked for again
	stop := context.AfterFunc(p.ctx, shut)
	defer stop()
	p.wg.Go(func() {
		defer shut()
		p.ask(server, client)
	})
	defer shut()
	p.answer(client, server)
}

// ask carries requests, each of which is small enough to come by one read, and takes its time for it.
func (p *proxy) ask(to io.Writer, from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			time.Sleep(p.latency)
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// answer carries answers, no faster than rate. The excess of a sleep is made up for, within limits.
func (p *proxy) answer(to io.Writer, from io.Reader) {
	const piece, late = 256 << 10, 20 * time.Millisecond
	due := time.Now()
	for {
		n, err := io.CopyN(to, from, piece)
		p.sent.Add(n)
		if err != nil {
			return
		}
		if p.rate > 0 {
			if now := time.Now(); due.Before(now.Add(-late)) {
				due = now.Add(-late)
			}
			due = due.Add(time.Duration(float64(n) / p.rate * 1e9))
			time.Sleep(time.Until(due))
		}
	}
}

// presigned gives an address of an object that anybody may read.
func (p *proxy) presigned(ctx context.Context, name string) (string, error) {
	client, err := minio.New(strings.TrimPrefix(p.url, "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Region: region, BucketLookup: minio.BucketLookupPath,
	})
	if err != nil {
		return "", err
	}
	u, err := client.PresignedGetObject(ctx, bucket, name, time.Hour, nil)
	if err != nil {
		return "", err
	}
	return u.String(), nil
}
