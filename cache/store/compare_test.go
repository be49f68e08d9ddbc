package store

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// versioned gives objects versions that are the hash of their bytes, of a kind, or of other bytes.
func (u *upstream) versioned(kind string, right bool, names ...string) *upstream {
	if u.version == nil {
		u.version = map[string]string{}
	}
	for _, name := range names {
		digits := map[string]int{layout.SHA256Version: 64, layout.GitVersion: 40, layout.CRC32CVersion: 8, layout.MD5Version: 32}[kind]
		h := layout.VersionHash(kind+strings.Repeat("0", digits), int64(len(u.data[name])))
		h.Write(u.data[name])
		if !right {
			h.Write([]byte("other"))
		}
		u.version[name] = kind + hex.EncodeToString(h.Sum(nil))
	}
	return u
}

// settle waits until nothing is filled and nothing compared.
func (m *mounted) settle(t testing.TB) {
	t.Helper()
	until(t, "nothing is compared", func() bool {
		if s := m.Stats(); s.Filling > 0 || s.Pinned > 0 { // a segment is pinned until its object waits to be compared
			return false
		}
		m.comparisons.mu.Lock()
		defer m.comparisons.mu.Unlock()
		return !m.comparisons.running
	})
}

// marks tells by their files which segments are known to be right.
func marks(t testing.TB, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*", "*"))
	blackbox.Must(t, err)
	out := map[string]bool{}
	for _, name := range files {
		_, err := unix.Getxattr(name, comparedName, nil)
		out[name] = err == nil
	}
	return out
}

// TestCompared has objects of three kinds of hashes compared once all of each is here. The next mount knows it. A segment that is fetched again has
// its object compared again.
func TestCompared(t *testing.T) {
	dir, log := t.TempDir(), &bytes.Buffer{}
	u := newUpstream(3*mib-5, mib, 100, 2*mib, mib, 0)
	u.versioned(layout.SHA256Version, true, "0", "5").versioned(layout.GitVersion, true, "1").versioned(layout.CRC32CVersion, true, "2").versioned(layout.MD5Version, false, "3")
	opt := Options{Segment: mib, Size: 1 << 30, Log: slog.New(slog.NewTextHandler(log, nil))}
	m := mount(t, dir, u, opt)
	m.check(t, u, "0", mib, mib)
	m.settle(t)
	if n := m.Stats().Compared; n != 0 {
		t.Errorf("%d objects were compared before all of them was here", n)
	}
	for name := range u.data {
		m.readAll(t, u, name)
	}
	m.settle(t)
	if s := m.Stats(); s.Compared != 3 || s.Mismatched != 0 || s.Corrupt != 0 {
		t.Errorf("%+v, want 3 objects compared", s)
	}
	m.close(t)
	m = mount(t, dir, u, opt)
	for name := range u.data {
		m.readAll(t, u, name)
	}
	m.settle(t)
	if s := m.Stats(); s.Compared != 0 || s.Fetched != 0 {
		t.Errorf("%+v: the next mount compares again", s)
	}
	if err := m.Segments(t.Context(), false, func(g Segment) error {
		if g.Object == "0" && g.Offset == mib {
			return m.Remove(g.File)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	m.readAll(t, u, "0")
	m.settle(t)
	if s := m.Stats(); s.Compared != 1 {
		t.Errorf("%+v: a segment that was fetched again is not compared", s)
	}
}

// untilRefused reads an object until it is refused.
func (m *mounted) untilRefused(t testing.TB, name string) {
	t.Helper()
	o := m.objects[name]
	until(t, "it is refused", func() bool {
		for at := int64(0); at < o.Size; at += mib {
			if _, err := o.ReadAt(t.Context(), make([]byte, min(mib, o.Size-at)), at); errors.Is(err, cache.ErrDamaged) {
				m.settle(t)
				return true
			} else if err != nil {
				t.Fatal(err)
			}
		}
		m.settle(t)
		return false
	})
}

// TestMismatch has a source that gives other bytes than its hash says. The object is dropped, and refused the second time. Then nothing of it is
// fetched until the next mount, which finds the same.
func TestMismatch(t *testing.T) {
	dir, log := t.TempDir(), &bytes.Buffer{}
	u := newUpstream(2*mib+7, mib).versioned(layout.SHA256Version, false, "0", "1")
	for life := range 2 {
		m := mount(t, dir, u, Options{Segment: mib, Size: 1 << 30, Log: slog.New(slog.NewTextHandler(log, nil))})
		m.untilRefused(t, "0")
		m.untilRefused(t, "1")
		before := u.fetched.Load()
		o := m.objects["1"]
		_, err := o.ReadAt(t.Context(), make([]byte, 10), 0)
		if !errors.Is(err, cache.ErrDamaged) || !strings.Contains(err.Error(), "refused until the next mount") || !strings.Contains(err.Error(), "sha256") {
			t.Errorf("life %d: %v", life, err)
		}
		if fd, _, err := m.origin.OpenWhole(t.Context(), o); fd >= 0 || !errors.Is(err, cache.ErrDamaged) {
			t.Errorf("life %d: it opens: %v", life, err)
		}
		if lies, _, _ := m.origin.Lies(o, 0); lies != nil {
			t.Errorf("life %d: it lies in %v", life, lies)
		}
		m.Plan("reader", []layout.Run{{Object: o, Length: mib, Stride: mib, Count: 1}})
		until(t, "the plan is done", func() bool { m.ledger.mu.Lock(); defer m.ledger.mu.Unlock(); return m.ledger.plans.flying == 0 })
		m.EndPlan("reader")
		if s := m.Stats(); s.Mismatched != 4 || s.Compared != 0 || s.Segments != 0 || u.fetched.Load() != before {
			t.Errorf("life %d: %+v, and %d bytes were fetched", life, s, u.fetched.Load()-before)
		}
		if len(marks(t, dir)) != 0 {
			t.Errorf("life %d: segments stay", life)
		}
		m.close(t)
	}
	if !strings.Contains(log.String(), "does not have the hash") {
		t.Errorf("the log: %s", log)
	}
}

// TestComparisonsThatWereKilled begins where a process may have been killed: before the first mark, between marks, and between the removals of
// segments with wrong bytes.
func TestComparisonsThatWereKilled(t *testing.T) {
	for _, right := range []bool{true, false} {
		for lost := range 4 {
			t.Run(fmt.Sprint(right, " ", lost), func(t *testing.T) {
				dir, u := t.TempDir(), newUpstream(3*mib)
				u.versioned(layout.SHA256Version, right, "0")
				opt := Options{Segment: mib, Size: 1 << 30}
				m := mount(t, dir, u, opt)
				m.comparisons.running = true // as a process that ends before it compares
				m.readAll(t, u, "0")
				until(t, "all is published", func() bool { return m.Stats().Segments == 3 })
				m.close(t)
				n := 0
				for name := range marks(t, dir) {
					if n++; n <= lost && right {
						blackbox.Must(t, unix.Setxattr(name, comparedName, nil, 0))
					} else if n <= lost {
						blackbox.Must(t, os.Remove(name))
					}
				}
				m = mount(t, dir, u, opt)
				if right {
					m.readAll(t, u, "0")
					m.settle(t)
				} else {
					m.untilRefused(t, "0")
				}
				s := m.Stats()
				if right && (s.Mismatched != 0 || (s.Compared == 1) != (lost < 3)) {
					t.Errorf("%+v", s)
				}
				if !right && (s.Mismatched != 2 || s.Compared != 0 || s.Segments != 0) {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// TestOneBadTransfer has a source that gives other bytes once. The object is fetched again, and is not refused.
func TestOneBadTransfer(t *testing.T) {
	u := newUpstream(2*mib+7).versioned(layout.SHA256Version, true, "0")
	good := u.data["0"]
	u.data["0"] = bytes.Clone(good)
	u.data["0"][mib+1]++
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 1 << 30})
	m.readAll(t, u, "0")
	m.settle(t)
	if s := m.Stats(); s.Mismatched != 1 || s.Compared != 0 || s.Corrupt != 0 {
		t.Errorf("%+v", s)
	}
	if o := m.objects["0"]; !m.origin.Stale(o) || m.origin.Stale(o) {
		t.Error("the kernel is not told once to drop its pages")
	}
	u.data["0"] = good
	m.readAll(t, u, "0")
	m.settle(t)
	if s := m.Stats(); s.Mismatched != 1 || s.Compared != 1 || s.Segments != 3 {
		t.Errorf("%+v", s)
	}
	m.close(t)
}

// TestReplacedWhileCompared replaces a segment after its bytes were hashed. The store does not blame the source, and compares the object again.
func TestReplacedWhileCompared(t *testing.T) {
	for _, byAnother := range []bool{false, true} {
		dir, u := t.TempDir(), newUpstream(3*mib).versioned(layout.SHA256Version, true, "0")
		m := mount(t, dir, u, Options{Segment: mib, Size: 1 << 30})
		m.readAll(t, u, "0")
		m.settle(t)
		o := m.objects["0"]
		c := comparison{m.origin, m.origin.file(o), o}
		segments, _, err := m.toCompare(c)
		blackbox.Must(t, err)
		k := m.keysOf(c)[1]
		name := filepath.Join(dir, "segments", k.name())
		if byAnother { // whose segment this process does not know yet
			blackbox.Must(t, os.Remove(name))
		} else {
			blackbox.Must(t, m.Remove(k.name()))
			m.readAll(t, u, "0")
			m.settle(t)
		}
		if err := m.mismatch(c, segments, errors.New("another hash"), make([]byte, mib)); err == nil {
			t.Error("it is compared as if it had not moved")
		}
		m.settle(t)
		m.readAll(t, u, "0")
		m.settle(t)
		if s := m.Stats(); s.Mismatched != 0 || s.Compared != 2 || s.Segments != 3 || c.file.doubted.Load() {
			t.Errorf("by another: %t: %+v", byAnother, s)
		}
		m.close(t)
	}
}

// TestDamageIsNoMismatch changes a byte on the disk. The segment is fetched again, and the source is not blamed.
func TestDamageIsNoMismatch(t *testing.T) {
	dir, u := t.TempDir(), newUpstream(3*mib).versioned(layout.SHA256Version, true, "0")
	opt := Options{Segment: mib, Size: 1 << 30}
	m := mount(t, dir, u, opt)
	m.readAll(t, u, "0")
	m.settle(t)
	m.close(t)
	first := true
	for name := range marks(t, dir) {
		blackbox.Must(t, unix.Removexattr(name, comparedName))
		if first {
			data, err := os.ReadFile(name)
			blackbox.Must(t, err)
			f, err := os.OpenFile(name, os.O_WRONLY, 0)
			blackbox.Must(t, err)
			_, err = f.WriteAt([]byte{data[1000] ^ 1}, 1000)
			blackbox.Must(t, errors.Join(err, f.Close()))
			first = false
		}
	}
	m = mount(t, dir, u, opt)
	m.origin.Touched(m.objects["0"], 0, 1)
	m.settle(t)
	if s := m.Stats(); s.Corrupt != 1 || s.Mismatched != 0 || s.Segments != 2 {
		t.Errorf("%+v", s)
	}
	m.readAll(t, u, "0")
	m.settle(t)
	if s := m.Stats(); s.Compared != 1 || s.Mismatched != 0 || s.Fetched != mib {
		t.Errorf("%+v", s)
	}
}

// TestComparedWhileEvicted has a cache that is too small for its objects: segments go and come while they are compared.
func TestComparedWhileEvicted(t *testing.T) {
	u := newUpstream(2*mib, 2*mib+1, mib/2, mib, 3*mib)
	for name := range u.data {
		u.versioned(layout.SHA256Version, true, name)
	}
	m := mount(t, t.TempDir(), u, Options{Segment: mib, Size: 5 * mib})
	var wg sync.WaitGroup
	seed := blackbox.Seed(t)
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(g)))
			for range 60 {
				name := fmt.Sprint(r.IntN(len(u.data)))
				p := make([]byte, 100_000)
				off := r.Int64N(int64(len(u.data[name])))
				n, err := m.objects[name].ReadAt(t.Context(), p, off)
				if n == 0 || err != nil && n == len(p) || !bytes.Equal(p[:n], u.data[name][off:off+int64(n)]) {
					t.Errorf("wrong bytes or none: %d, %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	last := m.Store
	m.close(t) // which waits for comparisons
	if s := last.Stats(); s.Mismatched != 0 || s.Corrupt != 0 {
		t.Errorf("%+v", s)
	}
}
