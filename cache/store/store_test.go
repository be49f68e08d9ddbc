package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// upstream gives objects from memory, counts what is fetched of each, and fails as it is told.
type upstream struct {
	data    map[string][]byte
	version map[string]string // "1" where there is none
	fetched atomic.Int64      // bytes
	calls   atomic.Int64
	fail    atomic.Pointer[error]
	gate    atomic.Pointer[chan struct{}] // fetches wait for it
}

func (u *upstream) Fetch(ctx context.Context, o *layout.Object, off, n int64, sink func([]byte) error) error {
	u.calls.Add(1)
	if gate := u.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for n > 0 {
		if err := u.fail.Load(); err != nil {
			return *err
		}
		m := min(n, 100_000) // no divisor of anything
		u.fetched.Add(m)
		if err := sink(u.data[o.Name][off : off+m]); err != nil {
			return err
		}
		off, n = off+m, n-m
	}
	return nil
}

func (u *upstream) ReadAt(ctx context.Context, o *layout.Object, p []byte, off int64) (int, error) {
	n := min(int64(len(p)), o.Size-off)
	at := 0
	if err := u.Fetch(ctx, o, off, n, func(b []byte) error { at += copy(p[at:], b); return nil }); err != nil {
		return at, err
	}
	if at < len(p) {
		return at, io.EOF
	}
	return at, nil
}

// newUpstream makes objects of the given sizes: 0, 1, ...
func newUpstream(sizes ...int) *upstream {
	u := &upstream{data: map[string][]byte{}}
	for i, size := range sizes {
		u.data[fmt.Sprint(i)] = origintest.Data(size, byte(i))
	}
	return u
}

// listing lists them, as a mount does each time anew.
func (u *upstream) listing() *cache.Listing {
	var objects []*layout.Object
	for name, data := range u.data {
		objects = append(objects, &layout.Object{Name: name, Size: int64(len(data)), Version: cmp.Or(u.version[name], "1")})
	}
	return cache.RemoteListing(objects)
}

// mounted is a store with the objects of an upstream.
type mounted struct {
	*Store
	origin  *Cached
	objects map[string]*layout.Object
}

func mount(t testing.TB, dir string, u *upstream, opt Options) *mounted {
	t.Helper()
	if opt.MinFree == 0 {
		opt.MinFree = 1
	}
	s, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	l := u.listing()
	m := &mounted{s, s.Add("test://", u, l), map[string]*layout.Object{}}
	for _, o := range l.Objects {
		m.objects[o.Name] = o
	}
	t.Cleanup(func() { m.close(t) })
	return m
}

func (m *mounted) close(t testing.TB) {
	if m.Store != nil {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		m.Store = nil
	}
}

// check reads a range and compares it.
func (m *mounted) check(t testing.TB, u *upstream, name string, off, n int64) {
	t.Helper()
	data := u.data[name]
	p := make([]byte, n)
	got, err := m.objects[name].ReadAt(t.Context(), p, off)
	want := max(0, min(n, int64(len(data))-off))
	if int64(got) != want || (want < n) != errors.Is(err, io.EOF) || (want == n && err != nil) {
		t.Fatalf("object %s: ReadAt(%d bytes, %d) = %d, %v; want %d", name, n, off, got, err, want)
	}
	if want > 0 && !bytes.Equal(p[:got], data[off:off+want]) {
		t.Fatalf("object %s: ReadAt(%d bytes, %d) gives other bytes", name, n, off)
	}
}

func (m *mounted) readAll(t testing.TB, u *upstream, name string) {
	t.Helper()
	for off := int64(0); off < int64(len(u.data[name])); off += 1 << 20 {
		m.check(t, u, name, off, 1<<20)
	}
}

// until polls for what a fetch in the background brings about.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

const mib = 1 << 20

// TestRandomReaders read everything in any order, many at a time, and fetch no byte twice.
func TestRandomReaders(t *testing.T) {
	sizes := []int{0, 1, block, 3*mib + 17, 9*mib + 1}
	u := newUpstream(sizes...)
	m := mount(t, t.TempDir(), u, Options{Segment: 2 * mib, Size: 1 << 30})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 100 {
				name := fmt.Sprint(1 + r.IntN(len(sizes)-1))
				m.check(t, u, name, r.Int64N(int64(len(u.data[name]))+5), 1+r.Int64N(1<<r.IntN(21)))
			}
		})
	}
	wg.Wait()
	total := 0
	for name, data := range u.data {
		m.readAll(t, u, name)
		total += len(data)
	}
	if got := u.fetched.Load(); got != int64(total) {
		t.Errorf("%d bytes were fetched, the objects have %d", got, total)
	}
	segments := 1 + 1 + 2 + 5
	until(t, "every segment is published", func() bool { s := m.Stats(); return s.Segments == segments && s.Filling == 0 })
	if s := m.Stats(); s.Uncached != 0 || s.Failures != 0 || s.Pinned != 0 || s.Bytes != int64(total) {
		t.Errorf("stats %+v", s)
	}
}

// TestPublishedSegmentsSurvive opens the directory again, and once with a fill that was never finished.
func TestPublishedSegmentsSurvive(t *testing.T) {
	u := newUpstream(5*mib+1, 3*mib)
	dir := t.TempDir()
	m := mount(t, dir, u, Options{Segment: 2 * mib, Size: 1 << 30})
	m.readAll(t, u, "0")
	m.check(t, u, "1", 0, 10) // part of a segment
	until(t, "object 0 is published", func() bool { return m.Stats().Segments == 3 })
	m.close(t)

	fetched := u.fetched.Load()
	m = mount(t, dir, u, Options{Segment: 2 * mib, Size: 1 << 30})
	if s := m.Stats(); s.Segments != 3 || s.Bytes != 5*mib+1 {
		t.Errorf("after a start: %+v", s)
	}
	m.readAll(t, u, "0")
	if again := u.fetched.Load() - fetched; again != 0 {
		t.Errorf("%d published bytes were fetched again", again)
	}
	m.readAll(t, u, "1")
}

// TestOneFetchForAll has many readers wait for the same block, once the fetch of one without patience has ended with it.
func TestOneFetchForAll(t *testing.T) {
	u := newUpstream(block)
	gate := make(chan struct{})
	u.gate.Store(&gate)
	m := mount(t, t.TempDir(), u, Options{Size: 1 << 30})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := m.objects["0"].ReadAt(ctx, make([]byte, 10), 0)
		left <- err
	}()
	until(t, "the fetch has begun", func() bool { return u.calls.Load() == 1 })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a reader whose context ended: %v", err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { m.check(t, u, "0", 5, 100) })
	}
	close(gate)
	wg.Wait()
	if n := u.calls.Load(); n > 2 {
		t.Errorf("%d fetches of one block", n)
	}
}

// TestServedWhileFilling reads the beginning of a segment whose end does not come.
func TestServedWhileFilling(t *testing.T) {
	u := newUpstream(4 * mib)
	m := mount(t, t.TempDir(), u, Options{Size: 1 << 30})
	m.check(t, u, "0", 0, block)
	gate := make(chan struct{})
	defer close(gate)
	u.gate.Store(&gate)
	m.check(t, u, "0", 10, 1000)
	if s := m.Stats(); s.Filling != 1 || s.Segments != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestSequentialReadersAreFetchedAhead, and those at random are not.
func TestSequentialReadersAreFetchedAhead(t *testing.T) {
	u := newUpstream(64*mib, 64*mib)
	m := mount(t, t.TempDir(), u, Options{Size: 1 << 30, Ahead: 32 * mib})
	for i := range int64(100) {
		m.check(t, u, "0", (i*37%100)*600_000, 8192)
	}
	if got := u.fetched.Load(); got > 100*2*block {
		t.Errorf("%d bytes were fetched for 100 random reads", got)
	}
	calls, fetched := u.calls.Load(), u.fetched.Load()
	for off := int64(0); off < 40*mib; off += block {
		m.check(t, u, "1", off, block)
	}
	until(t, "the bytes ahead are there", func() bool { return u.fetched.Load()-fetched == 64*mib })
	if n := u.calls.Load() - calls; n > 40 {
		t.Errorf("%d requests for 64 MiB in sequence", n)
	}
}

// TestTheBudgetHolds reads four times what may be kept, over and over.
func TestTheBudgetHolds(t *testing.T) {
	var sizes []int
	for range 16 {
		sizes = append(sizes, 2*mib)
	}
	u := newUpstream(sizes...)
	dir := t.TempDir()
	const limit = 8 * mib
	m := mount(t, dir, u, Options{Segment: mib, Size: limit})
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		m.check(t, u, fmt.Sprint(r.IntN(16)), r.Int64N(2*mib), 1+r.Int64N(mib))
		if s := m.Stats(); s.Bytes > limit {
			t.Fatalf("%d bytes are kept, %d are allowed", s.Bytes, limit)
		}
	}
	s := m.Stats()
	if s.Evicted == 0 || s.Published == 0 {
		t.Errorf("stats %+v", s)
	}
	m.close(t)
	if used := usage(t, dir); used > limit {
		t.Errorf("%d bytes are in the directory, %d are allowed", used, limit)
	}
}

func usage(t testing.TB, dir string) (total int64) {
	t.Helper()
	if err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return total
}

// TestSmallerThanASegment keeps nothing that does not fit, and reads all the same.
func TestSmallerThanASegment(t *testing.T) {
	u := newUpstream(8 * mib)
	m := mount(t, t.TempDir(), u, Options{Size: block})
	m.readAll(t, u, "0")
	if s := m.Stats(); s.Bytes > block || s.Uncached == 0 || s.Refused == 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestUpstreamErrorsPassThrough and leave nothing behind that hinders the next read.
func TestUpstreamErrorsPassThrough(t *testing.T) {
	u := newUpstream(2 * mib)
	m := mount(t, t.TempDir(), u, Options{Size: 1 << 30})
	denied := fmt.Errorf("denied: %w", os.ErrPermission)
	u.fail.Store(&denied)
	for range 3 {
		if _, err := m.objects["0"].ReadAt(t.Context(), make([]byte, 10), 0); !errors.Is(err, os.ErrPermission) {
			t.Errorf("%v, want %v", err, denied)
		}
	}
	u.fail.Store(nil)
	m.readAll(t, u, "0")
	if s := m.Stats(); s.Failures != 0 || s.Uncached != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestTwoStoresShareADirectory, as two mounts do.
func TestTwoStoresShareADirectory(t *testing.T) {
	u := newUpstream(2*mib, 2*mib, 2*mib, 2*mib)
	dir := t.TempDir()
	a := mount(t, dir, u, Options{Segment: mib, Size: 4 * mib})
	b := mount(t, dir, u, Options{Segment: mib, Size: 4 * mib})
	var wg sync.WaitGroup
	for g, m := range []*mounted{a, b, a, b} {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 100 {
				m.check(t, u, fmt.Sprint(r.IntN(4)), r.Int64N(2*mib), 1+r.Int64N(mib))
			}
		})
	}
	wg.Wait()
	for _, m := range []*mounted{a, b} {
		if s := m.Stats(); s.Failures != 0 || s.Corrupt != 0 {
			t.Errorf("stats %+v", s)
		}
	}
}

// TestDamagedSegments are found at the first look when their header is, and fetched again.
func TestDamagedSegments(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"cut":       func(p string) error { return os.Truncate(p, 100) },
		"no header": func(p string) error { return unix.Removexattr(p, xattrName) },
		"header": func(p string) error {
			return unix.Setxattr(p, xattrName, []byte("HBS1 something else, and long enough for one"), 0)
		},
		"gone": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(2 * mib)
			dir := t.TempDir()
			m := mount(t, dir, u, Options{Size: 1 << 30})
			m.readAll(t, u, "0")
			until(t, "it is published", func() bool { return m.Stats().Segments == 1 })
			m.close(t)
			files, err := filepath.Glob(filepath.Join(dir, "segments", "*", "*"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			if err := os.Chmod(files[0], 0o600); err != nil {
				t.Fatal(err)
			}
			m = mount(t, dir, u, Options{Size: 1 << 30}) // before: it is on the books
			if err := damage(files[0]); err != nil {
				t.Fatal(err)
			}
			m.readAll(t, u, "0")
			until(t, "it is published again", func() bool { s := m.Stats(); return s.Segments == 1 && s.Filling == 0 })
			if s := m.Stats(); s.Failures != 0 || (name != "gone") != (s.Corrupt == 1) {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// TestLies follows an object from nowhere to a segment.
func TestLies(t *testing.T) {
	u := newUpstream(3 * mib)
	m := mount(t, t.TempDir(), u, Options{Segment: 2 * mib, Size: 1 << 30})
	o := m.objects["0"]
	if seg, _, n := m.origin.Lies(o, 10); seg != nil || n != 2*mib-10 {
		t.Errorf("before: %v, %d bytes", seg, n)
	}
	m.check(t, u, "0", 2*mib, mib)
	until(t, "the second segment is published", func() bool { return m.Stats().Segments == 1 })
	seg, at, n := m.origin.Lies(o, 2*mib+5)
	if seg == nil || at != 5 || n != mib-5 || seg.Size != mib {
		t.Fatalf("it lies in %v at %d for %d", seg, at, n)
	}
	p := make([]byte, 100)
	if _, err := seg.ReadAt(t.Context(), p, at); err != nil || !bytes.Equal(p, u.data["0"][2*mib+5:2*mib+105]) {
		t.Errorf("the segment has other bytes: %v", err)
	}
}

// TestScrub finds one changed byte, removes its segment, and nothing else.
func TestScrub(t *testing.T) {
	u := newUpstream(3*mib, 3*mib)
	dir := t.TempDir()
	m := mount(t, dir, u, Options{Size: 1 << 30})
	m.readAll(t, u, "0")
	m.readAll(t, u, "1")
	until(t, "both are published", func() bool { return m.Stats().Segments == 2 })
	seg, _, _ := m.origin.Lies(m.objects["0"], 0)
	f, err := os.OpenFile(filepath.Join(m.Path(), seg.Name), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{u.data["0"][2*mib] ^ 1}, 2*mib); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var damaged []Segment
	if err := m.Segments(t.Context(), true, func(g Segment) error {
		if g.Damage != "" {
			damaged = append(damaged, g)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(damaged) != 1 || damaged[0].Object != "0" || damaged[0].Source != "test://" || damaged[0].Size != 3*mib || !strings.Contains(damaged[0].Damage, "the 1048576 bytes at 2097152 ") {
		t.Errorf("damaged: %+v", damaged)
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { m.Scrub(ctx, 1<<40); close(over) }()
	until(t, "both are scrubbed", func() bool { return m.Stats().Scrubbed == 6*mib })
	stop()
	<-over
	if s := m.Stats(); s.Corrupt != 1 || s.Segments != 1 || s.Failures != 0 {
		t.Errorf("stats %+v", s)
	}
	m.readAll(t, u, "0")
}
