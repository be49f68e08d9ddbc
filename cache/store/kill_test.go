package store

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// killedDir is the environment variable by which the test tells its child where to fill a cache.
const killedDir = "HBMFS_TEST_KILLED_DIR"

func killedUpstream() *upstream { return newUpstream(slices.Repeat([]int{3*block + 1}, 200)...) }

// TestKilledFills kills a process that fills and publishes on four threads, at several moments. What it leaves is
// whole, every byte of it is right, and none of it is fetched again.
func TestKilledFills(t *testing.T) {
	if dir := os.Getenv(killedDir); dir != "" {
		fillUntilKilled(t, dir)
		return
	}
	dir := t.TempDir()
	for _, published := range []int{1, 10, 25, 50} {
		kill(t, dir, published)
		u := killedUpstream()
		m := mount(t, dir, u, Options{Segment: mib, Size: 1 << 30})
		s, bytes := m.Stats(), int64(0)
		if err := m.Segments(t.Context(), true, func(g Segment) error {
			if g.Damage != "" || g.Bytes != 3*block+1 {
				t.Errorf("a process that was killed left %+v", g)
			}
			bytes += g.Bytes
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if s.Segments < published || s.Bytes != bytes || usage(t, dir) != bytes {
			t.Errorf("%d segments, %d bytes on the books, %d published, %d in the directory", s.Segments, s.Bytes, bytes, usage(t, dir))
		}
		for name := range u.data {
			if !m.missing(name) {
				m.check(t, u, name, 0, 3*block+1)
			}
		}
		if n := u.fetched.Load(); n != 0 {
			t.Errorf("%d published bytes were fetched again", n)
		}
		m.close(t)
	}
}

// kill starts a child that fills dir, and kills it when so many segments are published.
func kill(t *testing.T, dir string, published int) {
	child := exec.Command(os.Args[0], "-test.run=^TestKilledFills$", "-test.count=1", "-test.timeout=3m")
	child.Env = append(os.Environ(), killedDir+"="+dir)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill() // it is dead if all went well
		if child.Wait() == nil {
			t.Error("the child ended by itself")
		}
	}()
	until(t, fmt.Sprintf("%d segments are published", published), func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "segments", "*", "*"))
		return err == nil && len(files) >= published
	})
}

// fillUntilKilled is the child: it reads objects side by side, and then waits for its end.
func fillUntilKilled(t *testing.T, dir string) {
	u := killedUpstream()
	m := mount(t, dir, u, Options{Segment: mib, Size: 1 << 30})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := g; i < len(u.data); i += 4 {
				m.check(t, u, fmt.Sprint(i), 0, 3*block+1)
			}
		})
	}
	wg.Wait()
	<-t.Context().Done() // the parent kills this process, or the test's time ends
}
