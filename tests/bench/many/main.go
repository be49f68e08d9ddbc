// Command many measures what a dataset costs its origin when many nodes read it at once, with caches before it and without.
//
//	go run ./tests/bench/many --hbmfs bin/hbmfs [--nodes 8] [--caches 2] [--size 4294967296] [--rate 200e6] [--latency 25ms]
//
// The origin is this program: it waits --latency before each answer, and sends --rate at most, all answers together. The caches are
// nginx as docs/many-nodes.md has it. A node is a mount with an empty cache directory; it reads every file once and compares hashes.
// Three rounds: no caches; the caches; and the caches, of which the first is killed when half of the bytes have come.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
)

type bench struct {
	hbmfs, nginx, dir string
	nodes, caches     int
	files             int
	size              int64
	latency           time.Duration
	rate              float64
	staggered         bool

	sums   []uint64 // of the files
	origin string
	sent   atomic.Int64 // by the origin
	read   atomic.Int64 // by all nodes

	mu   sync.Mutex
	next time.Time // when the origin's link is free
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "many:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	b := &bench{}
	pflag.StringVar(&b.hbmfs, "hbmfs", "bin/hbmfs", "the built binary")
	pflag.StringVar(&b.nginx, "nginx", "nginx", "nginx, with its slice module")
	pflag.IntVar(&b.nodes, "nodes", 8, "mounts that read at once")
	pflag.IntVar(&b.caches, "caches", 2, "caches before the origin")
	pflag.IntVar(&b.files, "files", 16, "files of the dataset")
	pflag.Int64Var(&b.size, "size", 4<<30, "bytes of the dataset")
	pflag.DurationVar(&b.latency, "latency", 25*time.Millisecond, "before each answer of the origin")
	pflag.Float64Var(&b.rate, "rate", 200e6, "bytes per second of the origin")
	pflag.BoolVar(&b.staggered, "staggered", false, "have each node begin with another file")
	dir := pflag.String("dir", "", "where everything is put (default: the temporary directory)")
	pflag.Parse()
	if b.dir, err = os.MkdirTemp(*dir, "hbmfs-many-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := b.make(); err != nil {
		return err
	}
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	b.origin = "http://" + listen.Addr().String()
	server := &http.Server{Handler: b}
	go func() { _ = server.Serve(listen) }() // ends with Close
	defer func() { _ = server.Close() }()

	fmt.Printf("%d nodes, %.2f GB, origin %.0f MB/s and %v\n\n| | origin sent, of the dataset | time | of no caches | errors |\n|---|---|---|---|---|\n", b.nodes, float64(b.size)/1e9, b.rate/1e6, b.latency)
	var base time.Duration
	for _, round := range []struct {
		name         string
		caches, kill int
	}{{"no caches", 0, 0}, {fmt.Sprintf("%d caches", b.caches), b.caches, 0}, {"one of them killed at half", b.caches, 1}} {
		took, failed, err := b.round(ctx, round.caches, round.kill > 0)
		if err != nil {
			return err
		}
		if base == 0 {
			base = took
		}
		fmt.Printf("| %s | %.3f | %.1f s | %.2f | %d |\n", round.name, float64(b.sent.Load())/float64(b.size), took.Seconds(), took.Seconds()/base.Seconds(), failed)
	}
	return nil
}

// make writes the dataset, of random bytes.
func (b *bench) make() error {
	root := filepath.Join(b.dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	var seed [32]byte
	block := make([]byte, 1<<20)
	for i := range b.files {
		f, err := os.Create(filepath.Join(root, fmt.Sprintf("train-%03d.bin", i)))
		if err != nil {
			return err
		}
		seed[0] = byte(i)
		random, sum := rand.NewChaCha8(seed), xxhash.New()
		for left := b.size / int64(b.files); left > 0; left -= int64(len(block)) {
			block = block[:min(left, 1<<20)]
			_, _ = random.Read(block) // never fails
			_, _ = sum.Write(block)   // never fails
			if _, err := f.Write(block); err != nil {
				return errors.Join(err, f.Close())
			}
		}
		block = block[:1<<20]
		b.sums = append(b.sums, sum.Sum64())
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// ServeHTTP is the origin: a listing as nginx makes it, and the files.
func (b *bench) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(b.latency)
	if r.URL.Path == "/" {
		w.Header().Set("Content-Type", "application/json")
		var names []string
		for i := range b.files {
			names = append(names, fmt.Sprintf(`{"name":"train-%03d.bin","type":"file"}`, i))
		}
		fmt.Fprintf(w, "[%s]", strings.Join(names, ","))
		return
	}
	f, err := os.Open(filepath.Join(b.dir, "root", filepath.Base(r.URL.Path)))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer func() { _ = f.Close() }()
	w.Header().Set("ETag", fmt.Sprintf(`"%s"`, filepath.Base(r.URL.Path)))
	http.ServeContent(&limited{w, b}, r, "", time.Unix(1_700_000_000, 0), f)
}

// limited is an answer through the origin's link, which all share.
type limited struct {
	http.ResponseWriter
	b *bench
}

func (l *limited) Write(p []byte) (int, error) {
	l.b.mu.Lock()
	now := time.Now()
	if l.b.next.Before(now) {
		l.b.next = now
	}
	l.b.next = l.b.next.Add(time.Duration(float64(len(p)) / l.b.rate * 1e9))
	wait := l.b.next.Sub(now)
	l.b.mu.Unlock()
	time.Sleep(wait)
	n, err := l.ResponseWriter.Write(p)
	l.b.sent.Add(int64(n))
	return n, err
}

const config = `daemon off; master_process off; pid pid; error_log log warn; worker_rlimit_nofile 4096;
events { worker_connections 2048; }
http {
  access_log off; sendfile on;
  client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
  proxy_cache_path cache levels=1:2 keys_zone=shards:64m max_size=1000g inactive=7d use_temp_path=off;
  server {
    listen ADDRESS;
    location / {
      slice 4m;
      proxy_cache shards;
      proxy_cache_key $uri$slice_range;
      proxy_cache_valid 200 206 7d;
      proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_lock_age 60s;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Range $slice_range;
      proxy_pass ORIGIN;
    }
  }
}
`

// startCache starts an nginx before the origin.
func (b *bench) startCache(ctx context.Context, dir string) (url string, cmd *exec.Cmd, err error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address := free.Addr().String()
	text := strings.NewReplacer("ADDRESS", address, "ORIGIN", b.origin).Replace(config)
	if err := errors.Join(free.Close(), os.MkdirAll(filepath.Join(dir, "temp"), 0o755), os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(text), 0o644)); err != nil {
		return "", nil, err
	}
	cmd = exec.CommandContext(ctx, b.nginx, "-p", dir, "-e", "log", "-c", "nginx.conf")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	for range 100 {
		if c, err := net.Dial("tcp", address); err == nil {
			return "http://" + address, cmd, c.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return "", cmd, errors.New("nginx does not listen")
}

// round has all nodes read the dataset.
func (b *bench) round(ctx context.Context, caches int, kill bool) (took time.Duration, failed int64, err error) {
	dir, err := os.MkdirTemp(b.dir, "round-")
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var started []*exec.Cmd
	defer func() {
		cancel()
		for _, cmd := range started {
			_ = cmd.Wait() // it was killed
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	var urls []string
	for i := range caches {
		url, cmd, err := b.startCache(ctx, filepath.Join(dir, fmt.Sprint("nginx-", i)))
		if err != nil {
			return 0, 0, err
		}
		urls, started = append(urls, url), append(started, cmd)
	}
	b.sent.Store(0)
	b.read.Store(0)
	if kill {
		go func() {
			for b.read.Load() < b.size*int64(b.nodes)/2 && ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			_ = started[0].Process.Kill() // it runs until then
		}()
	}
	var wrong atomic.Int64
	g, inner := errgroup.WithContext(ctx)
	began := time.Now()
	for i := range b.nodes {
		g.Go(func() error { return b.node(inner, filepath.Join(dir, fmt.Sprint("node-", i)), urls, i, &wrong) })
	}
	err = g.Wait()
	return time.Since(began), wrong.Load(), err
}

// node mounts the origin, and reads each file.
func (b *bench) node(ctx context.Context, dir string, caches []string, number int, wrong *atomic.Int64) (err error) {
	point := filepath.Join(dir, "mount")
	if err := os.MkdirAll(point, 0o755); err != nil {
		return err
	}
	args := []string{"mount", "--no-keeper", "--cache-dir", filepath.Join(dir, "cache"), "--cache-segment", "64MiB", b.origin + "/", point}
	if len(caches) > 0 {
		args = append(args, "--through", strings.Join(caches, ","))
	}
	if out, err := exec.CommandContext(ctx, b.hbmfs, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	defer func() {
		out, failed := exec.Command(b.hbmfs, "umount", point).CombinedOutput()
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("umount: %w: %s", failed, out))
		}
	}()
	for i := range b.files {
		if b.staggered {
			i = (i + number*b.files/b.nodes) % b.files
		}
		if err := b.compare(ctx, filepath.Join(point, fmt.Sprintf("train-%03d.bin", i)), b.sums[i]); err != nil {
			wrong.Add(1)
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return ctx.Err()
}

func (b *bench) compare(ctx context.Context, path string, want uint64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	sum, buf := xxhash.New(), make([]byte, 1<<20)
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		_, _ = sum.Write(buf[:n]) // never fails
		b.read.Add(int64(n))
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
	}
	if sum.Sum64() != want {
		return fmt.Errorf("%s has other bytes", path)
	}
	return nil
}
