package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/internal/observe/status"
)

// soak is the origin, the mount, and the figures.
type soak struct {
	config
	work, cache, point string
	origin             *origin

	reads, held, wrong atomic.Int64
	bytes, heldBytes   atomic.Int64
	mu                 sync.Mutex
	failed             []string
}

func newSoak(ctx context.Context, c config) (*soak, error) {
	work, err := os.MkdirTemp(c.dir, "hbmfs-soak-")
	if err != nil {
		return nil, err
	}
	s := &soak{config: c, work: work, cache: filepath.Join(work, "cache"), point: filepath.Join(work, "mnt")}
	if s.origin, err = newOrigin(c); err == nil {
		err = os.Mkdir(s.point, 0o755)
	}
	if err == nil {
		err = s.command(ctx, "mount", "--cache-dir", s.cache, "--cache-size", fmt.Sprint(s.budget), "--cache-segment", "1MiB",
			"--log-file", filepath.Join(work, "log"), s.origin.url, s.point)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *soak) close() error {
	var err error
	if exists(filepath.Join(s.point, ".hbmfs", "status")) {
		err = s.command(context.Background(), "umount", s.point)
	}
	if s.origin != nil {
		err = errors.Join(err, s.origin.close())
	}
	return errors.Join(err, os.RemoveAll(s.work))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (s *soak) command(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, s.hbmfs, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("hbmfs %s: %w: %s", args[0], err, out)
	}
	return nil
}

// run reads until the time is over.
func (s *soak) run(ctx context.Context) *result {
	ctx, cancel := context.WithTimeout(ctx, s.time)
	defer cancel()
	r := &result{began: time.Now()}
	var wg sync.WaitGroup
	for range s.readers {
		wg.Go(func() { s.read(ctx) })
	}
	for range s.holders {
		wg.Go(func() { s.hold(ctx) })
	}
	s.watch(ctx, r)
	wg.Wait()
	r.took = time.Since(r.began)
	r.reads, r.bytes, r.held, r.heldBytes, r.wrong = s.reads.Load(), s.bytes.Load(), s.held.Load(), s.heldBytes.Load(), s.wrong.Load()
	r.failed = s.failed
	r.answers, r.served = s.origin.answers.Load(), s.origin.bytes.Load()
	for f := range faultKinds {
		r.faults = append(r.faults, s.origin.failed[f].Load())
	}
	return r
}

func (s *soak) fail(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = append(s.failed, fmt.Sprintf(format, args...))
}

// random draws a range of an object, small ones as often as large ones.
func (s *soak) random(r *rand.Rand) span {
	n := min(1+r.Int64N(1<<(6+r.IntN(16))), s.objectSize)
	return span{r.IntN(s.objects), r.Int64N(s.objectSize - n + 1), n}
}

// chance is a source of random numbers of one goroutine.
func chance() *rand.Rand { return rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) }

func (s *soak) check(object int, got []byte, off int64) {
	want := make([]byte, len(got))
	content(object, want, off)
	if !bytes.Equal(got, want) {
		s.wrong.Add(1)
		s.fail("object %d: %d bytes at %d are other ones", object, len(got), off)
	}
	if s.forget {
		s.forgetRange(object, off, int64(len(got)))
	}
}

// forgetRange has the kernel drop its pages of the read data.
func (s *soak) forgetRange(object int, off, n int64) {
	f, err := os.Open(filepath.Join(s.point, objectName(object)))
	if err == nil {
		err = errors.Join(unix.Fadvise(int(f.Fd()), off&^4095, n+8192, unix.FADV_DONTNEED), f.Close())
	}
	if err != nil {
		s.fail("forget what was read: %v", err)
	}
}

// read reads through the mount.
func (s *soak) read(ctx context.Context) {
	for r := chance(); ctx.Err() == nil; {
		g := s.random(r)
		f, err := os.Open(filepath.Join(s.point, objectName(g.object)))
		if err != nil {
			s.fail("open: %v", err)
			continue
		}
		p := make([]byte, g.n)
		if _, err := f.ReadAt(p, g.off); err != nil {
			s.fail("read: %v", err)
		} else {
			s.check(g.object, p, g.off)
			s.reads.Add(1)
			s.bytes.Add(g.n)
		}
		_ = f.Close() // opened for reading: nothing is lost
	}
}

// hold reads past the mount, by one Reader that keeps its files open for a while.
func (s *soak) hold(ctx context.Context) {
	r, err := cufile.New(ctx, cufile.Options{Device: cufile.HostDevice, Arena: 16 << 20, Threads: 2, Descriptors: 16})
	if err != nil {
		s.fail("open a reader: %v", err)
		return
	}
	defer func() {
		if err := r.Close(); err != nil {
			s.fail("close a reader: %v", err)
		}
	}()
	for ctx.Err() == nil {
		// A begun read goes on to its end: closing a reader does not wait for an origin that stalls.
		if err := s.holdOne(context.WithoutCancel(ctx), r); err != nil {
			s.fail("read by extents: %v", err)
		}
	}
}

func (s *soak) holdOne(ctx context.Context, r *cufile.Reader) (err error) {
	random := chance()
	object := random.IntN(s.objects)
	f, err := r.Open(ctx, filepath.Join(s.point, objectName(object)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for range 1 + random.IntN(50) {
		g := s.random(random)
		v, err := f.Read(ctx, g.off, g.n)
		if err != nil {
			return err
		}
		s.check(object, v.Bytes(), g.off)
		v.Release()
		s.held.Add(1)
		s.heldBytes.Add(g.n)
	}
	return nil
}

// sample is the daemon and its disk at one moment.
type sample struct {
	at          time.Duration
	rss         int64 // bytes
	descriptors int
	disk        int64 // bytes below the cache directory
	kernel      int64 // bytes that the kernel asked for
	cache       status.Cache
	origin      status.OriginTotals
}

// watch samples until ctx ends.
func (s *soak) watch(ctx context.Context, r *result) {
	every := max(time.Second, s.time/180)
	for {
		one, err := s.sample()
		if err != nil {
			s.fail("sample: %v", err)
		} else {
			one.at = time.Since(r.began)
			r.samples = append(r.samples, one)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

func (s *soak) sample() (one sample, err error) {
	text, err := os.ReadFile(filepath.Join(s.point, ".hbmfs", "status"))
	if err != nil {
		return one, err
	}
	var status struct {
		PID      int                 `json:"pid"`
		Cache    status.Cache        `json:"cache"`
		Origin   status.OriginTotals `json:"origin"`
		Counters struct {
			Spliced int64 `json:"spliced_bytes"`
			Copied  int64 `json:"copied_bytes"`
		} `json:"counters"`
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return one, err
	}
	one.cache, one.origin, one.kernel = status.Cache, status.Origin, status.Counters.Spliced+status.Counters.Copied
	proc := filepath.Join("/proc", fmt.Sprint(status.PID))
	statm, err := os.ReadFile(filepath.Join(proc, "statm"))
	if err != nil {
		return one, err
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		return one, err
	}
	one.rss = resident * int64(os.Getpagesize())
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return one, err
	}
	one.descriptors = len(fds)
	err = filepath.WalkDir(s.cache, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil { // it may be evicted meanwhile
				one.disk += info.Size()
			}
		}
		return nil
	})
	return one, err
}
