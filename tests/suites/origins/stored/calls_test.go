package stored_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// cacheOn is a mount whose cache is about to fail: here.bin is published, and of away.bin, of two segments, no more is
// here than its head.
type cacheOn struct {
	*sitetest.Site
	*sitetest.Mounted
	dir   string
	flags []string
	files map[string][]byte
}

func newCacheOn(t *testing.T, flags ...string) *cacheOn {
	t.Helper()
	return newCacheIn(t, suite.NewDir(t), flags...)
}

func newCacheIn(t *testing.T, dir string, flags ...string) *cacheOn {
	t.Helper()
	c := &cacheOn{Site: servers.HTTPSite(t), dir: dir, files: map[string][]byte{
		"here.bin": origintest.Data(1<<20, 1), "away.bin": origintest.Data(sitetest.Segment+sitetest.Segment/2, 2),
	}}
	c.PutAll(t, c.files)
	c.flags = append([]string{"--cache-dir", c.dir, sitetest.SegmentFlag, "--cache-min-free", "1"}, flags...)
	c.Mounted = servers.Mount(t, c.Source, "", c.flags...)
	must(t, sitetest.CompareFile(c.Path("here.bin"), c.files["here.bin"]))
	c.SettledBut(t, 1)
	return c
}

// sameAfterwards mounts again on what the failure has left in the cache. All of that is sound, nothing else is there,
// every byte is right, and none that was published is fetched again.
func (c *cacheOn) sameAfterwards(t *testing.T, least int) {
	t.Helper()
	published := publishedIn(t, c.dir)
	if len(published) < least {
		t.Errorf("%d segments are left, want %d", len(published), least)
	}
	if out, err := suite.Output(t.Context(), "cache", "verify", c.dir); err != nil || !strings.Contains(string(out), " 0 damaged") {
		t.Errorf("hbmfs cache verify: %v: %s", err, out)
	}
	before := len(c.Asked())
	again := servers.Mount(t, c.Source, c.Point, append(c.flags, "--cache-size=64MiB")...)
	again.Compare(t, c.files)
	notAgain(t, c.Site, published, before)
	if s := again.Settled(t).Cache; s.Failures != 0 || s.Corrupt != 0 || s.Uncached != 0 {
		t.Errorf("the next mount: %+v", s)
	}
}

// notAgain checks what was asked for since that many requests: no byte of a published segment.
func notAgain(t *testing.T, s *sitetest.Site, published []store.Segment, since int) {
	t.Helper()
	for _, a := range s.Asked()[since:] {
		for _, g := range published {
			if filepath.Base(a.Path) == g.Object && a.From < g.Offset+g.Bytes && a.To >= g.Offset {
				t.Errorf("bytes %d to %d of %s were asked for, of which %d to %d are published", a.From, a.To, g.Object, g.Offset, g.Offset+g.Bytes)
			}
		}
	}
}

// publishedIn are the segments of a cache, all sound. Nothing else may be in it.
func publishedIn(t *testing.T, dir string) (out []store.Segment) {
	t.Helper()
	s, err := store.Open(dir, store.Options{Segment: sitetest.Segment})
	must(t, err)
	must(t, s.Segments(t.Context(), true, func(g store.Segment) error {
		if g.Damage != "" {
			t.Errorf("segment %+v is damaged", g)
		}
		out = append(out, g)
		return nil
	}))
	must(t, s.Close())
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*", "*"))
	must(t, err)
	if len(files) != len(out) {
		t.Errorf("%d files for %d segments: %v", len(files), len(out), files)
	}
	return out
}

// TestCallsThatFail has the system calls of a cache fail, each in its turn. Every byte comes all the same, the status
// and the log say what is wrong where it is the disk, and what is left in the cache is sound.
func TestCallsThatFail(t *testing.T) {
	blackbox.NeedFUSE(t)
	needInjection(t)
	t.Parallel()
	const (
		inSegments = "segments" // only calls on the directory of segments
		small      = "--cache-size=3MiB"
	)
	for name, c := range map[string]struct {
		call, what, path string
		flags            []string
		says             string // in the status; nothing where the disk is not to blame
	}{
		"make a file":         {"openat", "error=EIO", inSegments, nil, "make a segment: input/output error"},
		"make it so large":    {"ftruncate", "error=EIO", "", nil, "size a segment: input/output error"},
		"free space":          {"fstatfs", "error=EIO", "", nil, "ask for free space: input/output error"},
		"reserve":             {"fallocate", "error=EIO", "", nil, "reserve the place of a segment: input/output error"},
		"reserve, full":       {"fallocate", "error=ENOSPC", "", nil, ""},
		"reserve, quota":      {"fallocate", "error=EDQUOT", "", nil, ""},
		"write":               {"pwrite64", "error=EIO", "", nil, "write a segment: input/output error"},
		"write, full":         {"pwrite64", "error=ENOSPC", "", nil, "write a segment: no space left on device"},
		"write, quota":        {"pwrite64", "error=EDQUOT", "", nil, "write a segment: disk quota exceeded"},
		"read":                {"pread64", "error=EIO", "", nil, "read a segment: input/output error"},
		"read too little":     {"pread64", "retval=0", "", nil, "read a segment: it ends at "},
		"write the header":    {"fsetxattr", "error=ENOSPC", "", nil, "write a segment's header: no space left on device"},
		"sync":                {"fsync", "error=EIO", "", nil, "sync a segment: input/output error"},
		"make a directory":    {"mkdirat", "error=EROFS", "", nil, "make a directory of segments: read-only file system"},
		"link":                {"linkat", "error=EIO", "", nil, "publish a segment: input/output error"},
		"link, read-only":     {"linkat", "error=EROFS", "", nil, "publish a segment: read-only file system"},
		"remove, read-only":   {"unlinkat", "error=EROFS", "", []string{small}, "remove a segment: read-only file system"},
		"remove with trouble": {"unlinkat", "error=EIO", "", []string{small}, "remove a segment: input/output error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newCacheOn(t, c.flags...)
			path := c.path
			if path != "" {
				path = filepath.Join(m.dir, path)
			}
			i := inject(t, m.Mounted, c.call, c.what, path)
			m.Compare(t, m.files)
			if c.says != "" && !blackbox.Within(patience, func() bool { return m.Status(t).Cache.Failures > 0 }) { // publishing is in the background
				t.Errorf("no failure is seen: %+v\n%s", m.Status(t).Cache, i.seen(t))
			}
			s := m.Status(t).Cache
			switch {
			case !strings.Contains(i.seen(t), "INJECTED"):
				t.Errorf("no call has failed:\n%s", i.seen(t))
			case c.says == "" && (s.Failures != 0 || s.Uncached == 0 || s.Refused == 0):
				t.Errorf("a full disk is no failure, and its bytes go past it: %+v", s)
			case c.says != "" && !strings.Contains(s.Why, c.says):
				t.Errorf("the status says %q, want %q", s.Why, c.says)
			case c.says != "" && !strings.Contains(m.LogText(t), "the cache's disk fails"):
				t.Errorf("the log says nothing:\n%s", m.LogText(t))
			}
			i.end()
			must(t, m.Close())
			m.sameAfterwards(t, 0)
		})
	}
}

// TestKilledAtEveryStep kills a daemon at each system call of a fill: before the call, and after it. Published segments
// stay, and nothing else.
func TestKilledAtEveryStep(t *testing.T) {
	blackbox.NeedFUSE(t)
	needInjection(t)
	t.Parallel()
	const (
		nothing = iota // is published that was not before
		something
		either // the first segment has its file already when the second one asks for one
	)
	for name, c := range map[string]struct {
		call, what, path string
		published        int
	}{
		"before its file":      {"openat", "signal=SIGKILL", "segments", either},
		"before its size":      {"ftruncate", "signal=SIGKILL", "", either},
		"before its place":     {"fallocate", "signal=SIGKILL", "", nothing},
		"before its bytes":     {"pwrite64", "signal=SIGKILL", "", nothing},
		"before its header":    {"fsetxattr", "signal=SIGKILL", "", nothing},
		"before it is synced":  {"fsync", "signal=SIGKILL", "", nothing},
		"before its directory": {"mkdirat", "signal=SIGKILL", "", nothing},
		"before it is linked":  {"linkat", "signal=SIGKILL", "", nothing},
		"after it was linked":  {"linkat", "delay_exit=600000000", "", something},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newCacheOn(t)
			before := len(publishedIn(t, m.dir))
			path := c.path
			if path != "" {
				path = filepath.Join(m.dir, path)
			}
			i := inject(t, m.Mounted, c.call, c.what, path)
			f, err := os.Open(m.Path("away.bin"))
			must(t, err)
			got, readErr := io.ReadAll(f)
			if !bytes.Equal(got, m.files["away.bin"][:len(got)]) || (readErr == nil && len(got) < len(m.files["away.bin"])) {
				t.Errorf("reading gave %d bytes, %v: not the origin's", len(got), readErr)
			}
			_ = f.Close()                 // its mount is dying
			if c.published == something { // the daemon waits in its call
				if !blackbox.Within(patience, func() bool {
					files, err := filepath.Glob(filepath.Join(m.dir, "segments", "*", "*"))
					return err == nil && len(files) > before
				}) {
					t.Error("no segment is linked")
				}
				must(t, syscall.Kill(m.PID, syscall.SIGKILL))
				i.end()
			}
			if !blackbox.Within(patience, func() bool { return blackbox.Ended(m.PID) }) {
				t.Fatalf("the daemon came past its %s:\n%s", c.call, i.seen(t))
			}
			i.end()
			after := len(publishedIn(t, m.dir))
			if after < before || (after > before) != (c.published == something) && c.published != either {
				t.Errorf("%d segments were published, and %d afterwards", before, after)
			}
			m.sameAfterwards(t, before)
		})
	}
}

// TestVerifyOnASickDisk has the disk fail under hbmfs cache verify. It names the segment, and goes on with the others.
func TestVerifyOnASickDisk(t *testing.T) {
	blackbox.NeedFUSE(t)
	needInjection(t)
	t.Parallel()
	m := newCacheOn(t)
	m.Compare(t, m.files)
	m.Settled(t)
	published := publishedIn(t, m.dir)
	sick := published[slices.IndexFunc(published, func(g store.Segment) bool { return g.Object == "here.bin" })]
	for _, call := range []string{"openat", "newfstatat", "fgetxattr", "pread64"} {
		t.Run(call, func(t *testing.T) {
			// It is named below an open directory, or by its open file.
			cmd := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-P", sick.File, "-P", filepath.Join(m.dir, "segments", sick.File),
				"-e", "trace="+call, "-e", "inject="+call+":error=EIO", suite.Path(), "cache", "verify", "--json", m.dir)
			out, err := cmd.Output()
			var got struct {
				Segments int
				Damaged  []struct{ File, Damage string }
			}
			if jsonErr := json.Unmarshal(out, &got); jsonErr != nil || cmd.ProcessState.ExitCode() != 3 {
				t.Fatalf("%v, %v: %s", err, jsonErr, out)
			}
			if got.Segments != len(published) || len(got.Damaged) != 1 || got.Damaged[0].File != sick.File || !strings.Contains(got.Damaged[0].Damage, "input/output error") {
				t.Errorf("%+v, want %s damaged of %d segments", got, sick.File, len(published))
			}
		})
	}
	if after := publishedIn(t, m.dir); len(after) != len(published) {
		t.Errorf("%d segments are left of %d", len(after), len(published))
	}
}

// TestHalfFilled kills a daemon while a segment is being filled. Of what was published, nothing is fetched again; of the
// rest, nothing is believed.
func TestHalfFilled(t *testing.T) {
	blackbox.NeedFUSE(t)
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		data := sitetest.Tokens(5 << 20)
		s.PutAll(t, map[string][]byte{"train.bin": data})
		cached := suite.NewDir(t)
		flags := []string{"--cache-dir", cached, sitetest.SegmentFlag}
		const good = 3 * sitetest.Segment // from there on, answers stop in the middle
		s.SetFault(func(_ int, a sitetest.Asked) sitetest.Fault {
			if a.From >= good {
				return sitetest.Stall
			}
			return sitetest.None
		})
		m := servers.Mount(t, s.Source, "", flags...)
		f, err := os.Open(m.Path("train.bin"))
		must(t, err)
		got := make([]byte, good)
		if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, data[:good]) {
			t.Errorf("the first %d bytes: %v, or other bytes", good, err)
		}
		if !blackbox.Within(patience, func() bool { return m.Status(t).Cache.Segments >= 3 }) {
			t.Fatalf("3 segments were read, %+v", m.Status(t).Cache)
		}
		m.Kill(t)
		_ = f.Close() // its mount is dead
		published := publishedIn(t, cached)
		if len(published) < 3 {
			t.Errorf("%d segments were published, want 3", len(published))
		}
		before := len(s.Asked())
		s.SetFault(nil)
		again := servers.Mount(t, s.Source, m.Point, flags...)
		again.Compare(t, map[string][]byte{"train.bin": data})
		notAgain(t, s, published, before)
		if len(s.Asked()) == before {
			t.Error("a segment that was half filled was believed")
		}
	})
}
