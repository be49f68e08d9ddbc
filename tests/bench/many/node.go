package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cespare/xxhash/v2"
)

// node mounts the origin, and reads each file.
func (b *bench) node(ctx context.Context, r *round, dir string, caches []string, number int) (err error) {
	point, end, err := b.mount(ctx, dir, caches, number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for i := range b.files {
		if b.staggered {
			i = (i + number*b.files/b.nodes) % b.files
		}
		if err := b.compare(ctx, filepath.Join(point, fmt.Sprintf("train-%03d.bin", i)), b.sums[i]); err != nil {
			r.errors.Add(1)
			fmt.Fprintln(os.Stderr, err)
		}
	}
	var status struct {
		Origin struct {
			Endpoints []struct {
				Name, Out     string
				Wrong, Failed int64
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(point, ".hbmfs", "status"))
	if err = errors.Join(err, json.Unmarshal(text, &status)); err != nil {
		return err
	}
	for _, e := range status.Origin.Endpoints {
		r.wrong.Add(e.Wrong)
		r.failed.Add(e.Failed)
		if e.Out != "" {
			fmt.Fprintf(os.Stderr, "node %d passes %s over: %s\n", number, e.Name, e.Out)
		}
	}
	return ctx.Err()
}

// mount mounts the dataset on a node.
func (b *bench) mount(ctx context.Context, dir string, caches []string, number int, more ...string) (point string, end func() error, err error) {
	point = filepath.Join(dir, "mount")
	if err := os.MkdirAll(point, 0o755); err != nil {
		return "", nil, err
	}
	var args []string
	if b.network != nil {
		b.mu.Lock()
		_, args, err = b.network.enter(10 + number)
		b.mu.Unlock()
		if err != nil {
			return "", nil, err
		}
	}
	source, flags := b.source(caches)
	args = append(args, b.hbmfs, "mount", "--no-keeper", "--cache-dir", filepath.Join(dir, "cache"), source, point)
	args = append(append(args, flags...), more...)
	if b.nodeCache != "" {
		args = append(args, "--cache-size", b.nodeCache)
	}
	if len(more) == 0 {
		args = append(args, "--cache-segment", "64MiB")
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID="+accessKey, "AWS_SECRET_ACCESS_KEY="+secretKey, "AWS_REGION=us-east-1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", nil, fmt.Errorf("mount: %w: %s", err, out)
	}
	return point, func() error {
		if out, err := exec.Command(b.hbmfs, "umount", point).CombinedOutput(); err != nil {
			return fmt.Errorf("umount: %w: %s", err, out)
		}
		return nil
	}, nil
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
