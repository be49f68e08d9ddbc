package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tmpfs mounts a filesystem of its own, so that a test can fill it up and take it away.
func tmpfs(t *testing.T, options string) string {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a filesystem")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skip("needs the right to mount: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestFullDisk has a budget that the disk cannot hold. Segments go for others, and the disk is not taken for sick.
func TestFullDisk(t *testing.T) {
	u := newUpstream(2*mib, 2*mib, 2*mib, 2*mib)
	m := mount(t, tmpfs(t, "size=5m"), u, Options{Segment: mib, Size: 1 << 30})
	for range 3 {
		for _, name := range []string{"0", "1", "2", "3"} {
			m.readAll(t, u, name)
		}
	}
	if s := m.Stats(); s.Failures != 0 || s.Sick || s.Evicted == 0 || s.Published == 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestFloor keeps so much of the disk free as was asked for, whatever the budget.
func TestFloor(t *testing.T) {
	u := newUpstream(4*mib, 4*mib)
	dir := tmpfs(t, "size=8m")
	m := mount(t, dir, u, Options{Segment: mib, Size: 1 << 30, MinFree: 4 * mib})
	for _, name := range []string{"0", "1"} {
		m.readAll(t, u, name)
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		if free := int64(st.Bavail) * st.Bsize; free < 4*mib-spanSize/8 { // what was reserved since the last look
			t.Errorf("%d bytes are free, 4 MiB are to stay", free)
		}
	}
	if s := m.Stats(); s.Failures != 0 || s.Evicted == 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestTrim has somebody else fill the disk of a cache that nobody reads: it gives way, by as much as is missing.
func TestTrim(t *testing.T) {
	u := newUpstream(8 * mib)
	dir := tmpfs(t, "size=16m")
	m := mount(t, dir, u, Options{Segment: mib, Size: 1 << 30, MinFree: 4 * mib})
	m.readAll(t, u, "0")
	until(t, "all is published", func() bool { return m.Stats().Segments == 8 && m.Stats().Filling == 0 })
	if err := os.WriteFile(filepath.Join(dir, "somebody's"), make([]byte, 6*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.trim(); err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < 4*mib || free > 6*mib {
		t.Errorf("%d bytes are free, 4 MiB are to stay", free)
	}
	before := m.Stats()
	if err := m.trim(); err != nil {
		t.Fatal(err)
	}
	if s := m.Stats(); s.Segments != before.Segments || s.Segments < 4 || s.Failures != 0 {
		t.Errorf("with enough space, stats went from %+v to %+v", before, s)
	}
	m.readAll(t, u, "0") // what went comes again
}

// TestOpenElsewhere has another process keep all segments open, and fills the disk. Evicting them frees nothing, so a read evicts no more than
// would do otherwise.
func TestOpenElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		minFree int64
		others  int // bytes
	}{
		"to the floor": {4 * mib, 5 * mib}, // 3 MiB are free
		"full":         {1, 8*mib - 4<<10},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(8*mib, mib)
			dir := tmpfs(t, "size=16m")
			m := mount(t, dir, u, Options{Segment: mib, Size: 1 << 30, MinFree: c.minFree})
			m.readAll(t, u, "0")
			until(t, "all is published", func() bool { return m.Stats().Segments == 8 && m.Stats().Filling == 0 })
			names, err := filepath.Glob(filepath.Join(dir, "segments", "*", "*"))
			if err != nil || len(names) < 8 {
				t.Fatal(names, err)
			}
			for _, name := range names {
				f, err := os.Open(name)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = f.Close() }() // nothing was written
			}
			var st unix.Statfs_t
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "somebody's"), make([]byte, c.others), 0o600), unix.Statfs(dir, &st)); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d bytes are free", int64(st.Bavail)*st.Bsize)
			m.check(t, u, "1", 0, 100)
			if s := m.Stats(); s.Evicted == 0 || s.Evicted > 2 || s.Refused == 0 || s.Failures != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// TestSickDisk takes the disk away in several ways. Every byte still comes, and the state says what is wrong.
func TestSickDisk(t *testing.T) {
	for name, harm := range map[string]func(dir string) error{
		"read-only": func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") },
		"deleted":   func(dir string) error { return os.RemoveAll(dir + "/segments") },
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(2*mib, 2*mib)
			dir := tmpfs(t, "size=64m")
			m := mount(t, dir, u, Options{Segment: mib, Size: 1 << 30})
			m.readAll(t, u, "0")
			until(t, "object 0 is published", func() bool { return m.Stats().Segments == 2 })
			if err := harm(dir); err != nil {
				t.Fatal(err)
			}
			m.readAll(t, u, "1")
			m.readAll(t, u, "0")
			if s := m.Stats(); s.Failures == 0 || s.Why == "" || s.Uncached == 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// TestRefusedDirectories says what is wrong with them.
func TestRefusedDirectories(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, opt := range map[string]Options{
		file:               {},
		"/proc/self":       {},
		t.TempDir() + "/a": {Segment: 1},
		t.TempDir() + "/b": {Segment: MaxSegment + mib},
		t.TempDir() + "/c": {Size: -1},
	} {
		if s, err := Open(path, opt); err == nil {
			t.Errorf("Open(%s, %+v) succeeds", path, opt)
			_ = s.Close()
		}
	}
}

// TestDatesOfSegmentsSayNothing has segments from before a clock was set and from after: from 1970, and from a year to
// come. They are as good as others.
func TestDatesOfSegmentsSayNothing(t *testing.T) {
	u, dir, opt := newUpstream(mib, mib, mib), t.TempDir(), Options{Segment: mib, Size: 1 << 30}
	m := mount(t, dir, u, opt)
	for _, name := range []string{"0", "1", "2"} {
		m.readAll(t, u, name)
	}
	until(t, "all are published", func() bool { return m.Stats().Segments == 3 })
	m.close(t)
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*", "*"))
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	for i, at := range []time.Time{time.Unix(0, 0), time.Now().AddDate(40, 0, 0)} {
		if err := os.Chtimes(files[i], at, at); err != nil {
			t.Fatal(err)
		}
	}
	fetched := u.fetched.Load()
	m = mount(t, dir, u, opt)
	for _, name := range []string{"0", "1", "2"} {
		m.readAll(t, u, name)
	}
	if again := u.fetched.Load() - fetched; again != 0 {
		t.Errorf("%d published bytes were fetched again", again)
	}
	if s := m.Stats(); s.Segments != 3 || s.Corrupt != 0 || s.Failures != 0 {
		t.Errorf("stats %+v", s)
	}
}
