package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

type config struct {
	hbmfs, dir string
	s3server   string
	size       int64
	latency    time.Duration
	rate       float64
}

// bench is the server, the object, and a directory for the rest.
type bench struct {
	config
	work   string
	server *server
	rounds int
}

func newBench(c config) (*bench, error) {
	work, err := os.MkdirTemp(c.dir, "hbmfs-remote-")
	if err != nil {
		return nil, err
	}
	b := &bench{config: c, work: work}
	object := filepath.Join(work, "object.bin")
	f, err := os.Create(object)
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), c.size)
	if err = errors.Join(err, f.Close()); err == nil {
		b.server, err = newServer(object, c.latency, c.rate)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) close() error {
	var err error
	if b.server != nil {
		err = b.server.close()
	}
	return errors.Join(err, os.RemoveAll(b.work))
}

func (b *bench) round(ctx context.Context) (r round, err error) {
	if r.GETs, err = b.gets(ctx, b.server.url+"object.bin"); err != nil {
		return r, err
	}
	cache, point := filepath.Join(b.work, "cache"), filepath.Join(b.work, "mnt")
	if err := errors.Join(os.RemoveAll(cache), os.MkdirAll(point, 0o755)); err != nil {
		return r, err
	}
	if err := b.command(ctx, "mount", "--cache-dir", cache, "--log-file", filepath.Join(b.work, "log"), b.server.url+"object.bin", point); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, b.command(context.WithoutCancel(ctx), "umount", point)) }()
	file := filepath.Join(point, "object.bin")
	if r.Cold, err = b.read(file); err != nil {
		return r, err
	}
	for range 600 { // until all segments are published
		files, err := filepath.Glob(filepath.Join(cache, "segments", "*", "*"))
		if err != nil {
			return r, err
		}
		if total := sizes(files); total == b.size {
			return r, b.warm(&r, file, files)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return r, errors.New("the object was not published within a minute")
}

func sizes(files []string) (total int64) {
	for _, name := range files {
		if info, err := os.Stat(name); err == nil {
			total += info.Size()
		}
	}
	return total
}

// warm measures reads after the first.
func (b *bench) warm(r *round, file string, segments []string) (err error) {
	if _, err = b.read(file); err != nil { // the kernel's own pages of the first read were of the mount
		return err
	}
	if r.Warm, err = b.read(file); err != nil {
		return err
	}
	if r.WarmDirect, err = b.read(segments...); err != nil {
		return err
	}
	// The host of a virtual disk may remember the last reads, so each round drops the page cache once, and reads one of
	// the two.
	to, list := &r.Disk, []string{file}
	if b.rounds++; b.rounds%2 == 0 {
		to, list = &r.DiskDirect, segments
	}
	if err := forget(append(segments, file)); err != nil {
		return err
	}
	*to, err = b.read(list...)
	return err
}

// forget drops files from the page cache.
func forget(files []string) error {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// read reads files one after the other.
func (b *bench) read(files ...string) (rate float64, err error) {
	began, n := time.Now(), int64(0)
	for _, name := range files {
		m, err := readFile(name)
		if err != nil {
			return 0, err
		}
		n += m
	}
	if n != b.size {
		return 0, fmt.Errorf("%v have %d bytes, want %d", files, n, b.size)
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// gets fetches the object by 8 parallel ranged GETs, each of an eighth.
func (b *bench) gets(ctx context.Context, url string) (rate float64, err error) {
	const parallel = 8
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i := range int64(parallel) {
		g.Go(func() error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			from, to := b.size*i/parallel, b.size*(i+1)/parallel
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = res.Body.Close() }() // it was read to its end
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, res.Body, make([]byte, 256<<10))
			if err == nil && n != to-from {
				err = fmt.Errorf("%d bytes of %d", n, to-from)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return float64(b.size) / time.Since(began).Seconds(), nil
}

func (b *bench) command(ctx context.Context, args ...string) error {
	return command(ctx, b.hbmfs, args...)
}
