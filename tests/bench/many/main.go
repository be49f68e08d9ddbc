// Command many measures a dataset's load on its origin when many nodes read it at once, with caches before it and without.
//
//	go run ./tests/bench/many --hbmfs bin/hbmfs [--nodes 8] [--caches 2] [--size 4294967296] [--rate 200e6] [--latency 25ms]
//	  [--netns] [--rclone rclone --s3server .cache/s3server] [--replay]
//
// The origin is this program: it waits --latency before each answer, and sends --rate at most, all answers together. The caches are
// nginx as docs/guide/many-nodes.md has it, or with --rclone rclone serve s3, before a server of S3 behind the same link. A node is a mount
// with an empty cache directory; it reads every file once and compares hashes. With --netns each node and each cache has a network
// namespace of its own, all on one bridge; that takes root. Rounds: no caches; the caches; the caches, of which the first is killed when
// half of the bytes have come; and with nginx, the caches and one more that lies.
//
// --replay measures how soon a job has samples at random that another job has read, with and without hbmfs warm --replay.
package main

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
)

type bench struct {
	hbmfs, nginx, rclone, s3server, dir string

	nodes, caches int
	files         int
	size          int64
	latency       time.Duration
	rate          float64
	staggered     bool
	netns, replay bool
	alone         bool
	nodeCache     string

	sums    []uint64 // of the files
	origin  string
	s3      *s3Server // nil where the origin speaks HTTP alone
	network *network  // nil without namespaces
	sent    atomic.Int64
	read    atomic.Int64 // by all nodes

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

func (b *bench) flags() (dir *string) {
	pflag.StringVar(&b.hbmfs, "hbmfs", "bin/hbmfs", "the built binary")
	pflag.StringVar(&b.nginx, "nginx", "nginx", "nginx, with its slice module")
	pflag.StringVar(&b.rclone, "rclone", "", "rclone: have it be the caches, before S3")
	pflag.StringVar(&b.s3server, "s3server", ".cache/s3server", "the built tests/suites/origins/s3server, for --rclone")
	pflag.IntVar(&b.nodes, "nodes", 8, "mounts that read at once")
	pflag.IntVar(&b.caches, "caches", 2, "caches before the origin")
	pflag.IntVar(&b.files, "files", 16, "files of the dataset")
	pflag.Int64Var(&b.size, "size", 4<<30, "bytes of the dataset")
	pflag.DurationVar(&b.latency, "latency", 25*time.Millisecond, "before each answer of the origin")
	pflag.Float64Var(&b.rate, "rate", 200e6, "bytes per second of the origin")
	pflag.BoolVar(&b.staggered, "staggered", false, "have each node begin with another file")
	pflag.BoolVar(&b.netns, "netns", false, "give each node and cache a network namespace (needs root)")
	pflag.BoolVar(&b.replay, "replay", false, "measure a replay instead")
	pflag.BoolVar(&b.alone, "alone", false, "only the round without caches, which builds before --through can run, too")
	pflag.StringVar(&b.nodeCache, "node-cache", "", "--cache-size of each node (default: as much as it reads)")
	dir = pflag.String("dir", "", "where everything is put (default: the temporary directory)")
	pflag.Parse()
	return dir
}

func run(ctx context.Context) (err error) {
	b := &bench{}
	dir := b.flags()
	if b.dir, err = os.MkdirTemp(*dir, "hbmfs-many-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	address := "127.0.0.1"
	if b.netns {
		if b.network, err = newNetwork(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.network.close()) }()
		address = b.network.address()
	}
	if err := b.make(); err != nil {
		return err
	}
	if b.rclone != "" {
		if b.s3, err = startS3(b.s3server, filepath.Join(b.dir, "s3")); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.s3.close()) }()
		if err := b.upload(ctx); err != nil {
			return err
		}
	}
	listen, err := net.Listen("tcp", address+":0")
	if err != nil {
		return err
	}
	b.origin = "http://" + listen.Addr().String()
	server := &http.Server{Handler: b}
	go func() { _ = server.Serve(listen) }() // ends with Close
	defer func() { _ = server.Close() }()
	if b.replay {
		return b.replays(ctx)
	}
	return b.rounds(ctx)
}

// rounds has all nodes read the dataset, again and again, and prints a table.
func (b *bench) rounds(ctx context.Context) error {
	fmt.Printf("%d nodes, %.2f GB, origin %.0f MB/s and %v\n\n| | origin sent, of the dataset | time | of no caches | errors | wrong answers | failed requests |\n|---|---|---|---|---|---|---|\n", b.nodes, float64(b.size)/1e9, b.rate/1e6, b.latency)
	list := []*round{{name: "no caches"}, {name: fmt.Sprintf("%d caches", b.caches), caches: b.caches}, {name: "one of them killed at half", caches: b.caches, kill: true}}
	if b.alone {
		list = list[:1]
	} else if b.rclone == "" {
		list = append(list, &round{name: "one more, which lies", caches: b.caches, liar: true})
	}
	var base time.Duration
	for _, r := range list {
		took, err := b.round(ctx, r)
		if err != nil {
			return err
		}
		if base == 0 {
			base = took
		}
		fmt.Printf("| %s | %.3f | %.1f s | %.2f | %d | %d | %d |\n", r.name, float64(b.sent.Load())/float64(b.size), took.Seconds(), took.Seconds()/base.Seconds(), r.errors.Load(), r.wrong.Load(), r.failed.Load())
	}
	return nil
}

// round is one reading of the dataset by all nodes.
type round struct {
	name       string
	caches     int
	kill, liar bool

	errors        atomic.Int64 // of reads
	wrong, failed atomic.Int64 // as the nodes' statuses say
}

func (b *bench) round(ctx context.Context, r *round) (took time.Duration, err error) {
	dir, err := os.MkdirTemp(b.dir, "round-")
	if err != nil {
		return 0, err
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
	for i := range r.caches {
		url, cmd, err := b.startCache(ctx, filepath.Join(dir, fmt.Sprint("cache-", i)), i)
		if err != nil {
			return 0, err
		}
		urls, started = append(urls, url), append(started, cmd)
	}
	if r.liar {
		url, end, err := b.startLiar()
		if err != nil {
			return 0, err
		}
		defer end()
		urls = append([]string{url}, urls...)
	}
	b.sent.Store(0)
	b.read.Store(0)
	if r.kill {
		go func() {
			for b.read.Load() < b.size*int64(b.nodes)/2 && ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			_ = started[0].Process.Kill() // it runs until then
		}()
	}
	g, inner := errgroup.WithContext(ctx)
	began := time.Now()
	for i := range b.nodes {
		g.Go(func() error { return b.node(inner, r, filepath.Join(dir, fmt.Sprint("node-", i)), urls, i) })
	}
	err = g.Wait()
	return time.Since(began), err
}

// source names the dataset for a node, and the flags for the caches.
func (b *bench) source(caches []string) (source string, flags []string) {
	through := strings.Join(caches, ",")
	switch {
	case b.s3 == nil && through == "":
		return b.origin + "/", nil
	case b.s3 == nil:
		return b.origin + "/", []string{"--through", through}
	case through == "":
		return "s3://" + bucket + "?endpoint=" + b.origin, nil
	}
	return "s3://" + bucket + "?endpoint=" + through + "&origin=" + b.origin, nil
}
