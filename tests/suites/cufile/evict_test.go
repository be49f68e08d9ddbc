package cufile_test

import (
	"bytes"
	"cmp"
	"context"
	le "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/cufile"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

const (
	evictSegment = 1 << 20  // bytes
	evictCache   = 12 << 20 // half of what the files have
	evictLong    = 6        // files of three segments
	evictShort   = 12       // files of one
)

// evicting is a mount of a web server, behind a cache that holds half of it.
type evicting struct {
	*blackbox.Mount

	mu   sync.Mutex        // held while data changes
	data map[string][]byte // by name
	etag map[string]string // of those that are not as they were
}

// change has the origin give other bytes for an object from now on; nil: it has none.
func (m *evicting) change(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data[name], m.etag[name] = data, `"2"`
	if data == nil {
		delete(m.data, name)
	}
}

// mountEvicting serves files over HTTP and mounts them.
func mountEvicting(t *testing.T) *evicting {
	t.Helper()
	files := map[string][]byte{}
	random := rand.NewChaCha8([32]byte{11})
	for i := range evictLong + evictShort {
		name, data := fmt.Sprintf("long%02d", i), make([]byte, 3*evictSegment-1000*i)
		if i >= evictLong {
			name, data = fmt.Sprintf("short%02d", i), make([]byte, 600_000+i)
		}
		if _, err := random.Read(data); err != nil {
			t.Fatal(err)
		}
		files[name] = data
	}
	return mountRemote(t, files, evictCache)
}

// mountRemote serves files over HTTP and mounts them, with a cache of so many bytes.
func mountRemote(t *testing.T, files map[string][]byte, size int, flags ...string) *evicting {
	t.Helper()
	blackbox.NeedRoot(t)
	m := &evicting{data: files, etag: map[string]string{}}
	index := map[string]map[string]string{"weight_map": {}}
	for name := range files {
		index["weight_map"][name] = name
	}
	listed, err := json.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		name := filepath.Base(q.URL.Path)
		m.mu.Lock()
		data, ok := m.data[name]
		etag := cmp.Or(m.etag[name], `"1"`)
		m.mu.Unlock()
		if name == "model.safetensors.index.json" {
			data, ok = listed, true
		}
		if !ok {
			http.NotFound(w, q)
			return
		}
		w.Header().Set("ETag", etag)
		http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(server.Close)
	b := blackbox.Given(t)
	m.Mount, err = b.Mount(t.Context(), server.URL, t.TempDir(), append(flags, "--cache-dir", t.TempDir(),
		"--cache-segment", fmt.Sprint(evictSegment), "--cache-size", fmt.Sprint(size), "--cache-min-free", "1")...)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := m.DaemonPID()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		// It may finish a segment after the mount has gone, and the folder goes next.
		if pid > 0 && !blackbox.Within(time.Minute, func() bool { return blackbox.Ended(pid) }) {
			t.Errorf("the daemon %d has not ended", pid)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// cacheStats are counters of the mount's cache.
type cacheStats struct{ Evicted, Published, Uncached, Pinned int64 }

func (m *evicting) stats(t *testing.T) cacheStats {
	t.Helper()
	text, err := os.ReadFile(m.Path(".hbmfs", "status"))
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Cache cacheStats `json:"cache"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s.Cache
}

// pending gives the bytes of a file that are not on this machine.
func (m *evicting) pending(t *testing.T, name string) (n int64) {
	t.Helper()
	f, err := os.Open(m.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing is lost
	extents, err := control.Extents(f, 0, int64(len(m.data[name])))
	if err != nil {
		t.Fatal(err)
	}
	for i := range extents {
		if extents[i].Flags&control.ExtentPending != 0 {
			n += extents[i].Length * extents[i].Count
		}
	}
	return n
}

// bring brings a whole file into the cache.
func (m *evicting) bring(t *testing.T, name string) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for m.pending(t, name) > 0 {
		f, err := os.Open(m.Path(name))
		if err != nil {
			t.Fatal(err)
		}
		err = control.Prefetch(f, control.Range{Length: int64(len(m.data[name]))})
		_ = f.Close() // opened for reading: nothing is lost
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%s does not come into the cache: %v, %+v", name, err, m.stats(t))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// evict brings other files until nothing of these is in the cache.
func (m *evicting) evict(t *testing.T, names ...string) {
	t.Helper()
	keep := map[string]bool{}
	for _, name := range names {
		keep[name] = true
	}
	deadline := time.Now().Add(2 * time.Minute)
	for gone := false; !gone; {
		for range 3 { // asking counts as a use
			for name := range m.data {
				if !keep[name] {
					m.bring(t, name)
				}
			}
		}
		gone = true
		for _, name := range names {
			gone = gone && m.pending(t, name) == int64(len(m.data[name]))
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v stay in the cache: %+v", names, m.stats(t))
		}
	}
}

// evictReader makes a reader that has few descriptors and small windows.
func evictReader(t *testing.T, path cufile.Path, l cufile.Libraries, descriptors int) *cufile.Reader {
	t.Helper()
	o := cufile.Options{Path: path, Threads: 2, Slot: 256 << 10, Arena: 8 << 20, Window: 256 << 10, Pinned: 2 << 20, Descriptors: descriptors, Libraries: l}
	if path == cufile.Host {
		o.Device = cufile.HostDevice
	}
	r, err := cufile.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closed(r); err != nil {
			t.Error(err)
		}
	})
	return r
}

func content(ctx context.Context, v *cufile.View) ([]byte, error) {
	p := make([]byte, v.Len())
	return p, v.CopyTo(ctx, p, 0)
}

// TestReadWhatWasEvictedAfterItWasLocated has readers that know where bytes lie, and a cache that lets them go before
// they are opened.
func TestReadWhatWasEvictedAfterItWasLocated(t *testing.T) {
	m := mountEvicting(t)
	names := []string{"long00", "short06", "short07", "short08", "short09"}
	for _, name := range names {
		m.bring(t, name)
	}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = m.Path(name)
	}
	r := evictReader(t, cufile.Host, cufile.Libraries{}, 2)
	long, err := r.Open(t.Context(), paths[0])
	if err != nil {
		t.Fatal(err)
	}
	files, errs := r.OpenMany(t.Context(), paths[1:])
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	// Two of them are open, and stay: the reader holds leases.
	m.evict(t, "long00", "short08", "short09")
	for i, f := range append([]*cufile.File{long}, files...) {
		v, err := f.Read(t.Context(), 10, f.Size()-10)
		if err != nil {
			t.Fatalf("%s: %v", names[i], err)
		}
		got, err := content(t.Context(), v)
		if err != nil || !bytes.Equal(got, m.data[names[i]][10:]) {
			t.Errorf("%s: %v, or wrong bytes", names[i], err)
		}
		v.Release()
		if err := closed(f); err != nil {
			t.Error(err)
		}
	}
	if !blackbox.Within(time.Minute, func() bool { return m.stats(t).Pinned == 0 }) {
		t.Errorf("leases are left: %+v", m.stats(t))
	}
}

// TestReadersThatHoldTheWholeCache lease all of it, read the rest all the same, and give all of it back.
func TestReadersThatHoldTheWholeCache(t *testing.T) {
	m := mountEvicting(t)
	held := []string{"long00", "long01", "long02", "long03"}
	all := int64(0)
	var files []*cufile.File
	var readers []*cufile.Reader
	for _, name := range held {
		all += int64(len(m.data[name]))
		r := evictReader(t, cufile.Host, cufile.Libraries{}, 8)
		f, err := r.Open(t.Context(), m.Path(name))
		if err != nil {
			t.Fatal(err)
		}
		files, readers = append(files, f), append(readers, r)
	}
	for deadline := time.Now().Add(2 * time.Minute); m.stats(t).Pinned < all; {
		for i, f := range files {
			m.bring(t, held[i])
			m.compare(t, f, held[i])
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are to be held: %+v", all, m.stats(t))
		}
	}
	for i, name := range []string{"long04", "short07", "short08", "short09"} {
		f, err := readers[i].Open(t.Context(), m.Path(name))
		if err != nil {
			t.Fatal(err)
		}
		m.compare(t, f, name)
		files = append(files, f)
	}
	if s := m.stats(t); s.Uncached == 0 || s.Pinned < all {
		t.Errorf("there was no room, and the cache says %+v", s)
	}
	for _, f := range files {
		if err := closed(f); err != nil {
			t.Error(err)
		}
	}
	m.bring(t, "long04") // which has room again
}

// compare reads all of a file.
func (m *evicting) compare(t *testing.T, f *cufile.File, name string) {
	t.Helper()
	v, err := f.Read(t.Context(), 0, f.Size())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	if !bytes.Equal(v.Bytes(), m.data[name]) {
		t.Errorf("%s: wrong bytes", name)
	}
}

// TestReadersOverACacheThatEvicts reads at random by several paths from a cache that holds half of it, until segments
// were evicted and bytes came straight from segments.
func TestReadersOverACacheThatEvicts(t *testing.T) {
	m := mountEvicting(t)
	flags := blackbox.FakeGPU(t)
	l := cufile.Libraries{CUDA: flags[1], CuFile: flags[3], NVML: flags[5]}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var mapped, rounds atomic.Int64
	var enough atomic.Bool
	var wg sync.WaitGroup
	for g, path := range []cufile.Path{cufile.Host, cufile.Staged, cufile.Mapped, cufile.Auto} {
		r := evictReader(t, path, l, 4+g)
		random := rand.New(rand.NewPCG(uint64(g), 5))
		wg.Go(func() {
			for own := 0; own < 4 || !enough.Load(); own++ {
				moved, err := m.round(ctx, r, random)
				if err != nil {
					t.Errorf("%s: %v", path, err)
					enough.Store(true)
					return
				}
				mapped.Add(moved.Mapped)
				rounds.Add(1)
			}
		})
	}
	for !enough.Load() && ctx.Err() == nil {
		s := m.stats(t)
		enough.Store(s.Evicted > 10 && mapped.Load() > 1<<20)
		time.Sleep(10 * time.Millisecond)
	}
	enough.Store(true)
	wg.Wait()
	s := m.stats(t)
	t.Logf("%d rounds, %d bytes straight from segments, %+v", rounds.Load(), mapped.Load(), s)
	if s.Evicted == 0 || mapped.Load() == 0 {
		t.Errorf("%d bytes were read from segments that were mapped, and the cache says %+v", mapped.Load(), s)
	}
}

// round opens some files, and reads them in every way.
func (m *evicting) round(ctx context.Context, r *cufile.Reader, random *rand.Rand) (moved cufile.Moved, err error) {
	var names []string
	for name := range m.data {
		if random.IntN(6) == 0 {
			names = append(names, name)
		}
	}
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = m.Path(name)
	}
	files, errs := r.OpenMany(ctx, paths)
	err = errors.Join(errs...)
	for range 2 {
		for i, f := range files {
			if err == nil {
				err = readEvery(ctx, f, m.data[names[i]], random)
			}
		}
	}
	for _, f := range files {
		if f != nil {
			moved.Add(f.Moved())
			err = errors.Join(err, closed(f))
		}
	}
	return moved, err
}

// readEvery reads a range, gathers samples, and gathers samples that are widened, and compares all of them.
func readEvery(ctx context.Context, f *cufile.File, data []byte, random *rand.Rand) error {
	size := f.Size()
	if err := f.Prefetch(ctx, []cufile.Span{{Offset: 0, Length: size}}); err != nil {
		return err
	}
	off := random.Int64N(size)
	n := random.Int64N(size - off)
	v, err := f.Read(ctx, off, n)
	if err != nil {
		return err
	}
	got, err := content(ctx, v)
	v.Release()
	if err != nil || !bytes.Equal(got, data[off:off+n]) {
		return fmt.Errorf("%d bytes at %d: %w, or wrong ones", n, off, err)
	}
	const samples, length = 40, 512
	offsets := make([]int64, samples)
	var want []byte
	for i := range offsets {
		offsets[i] = 2 * random.Int64N((size-length)/2)
		want = append(want, data[offsets[i]:offsets[i]+length]...)
	}
	if v, err = f.Gather(ctx, offsets, length); err != nil {
		return err
	}
	got, err = content(ctx, v)
	v.Release()
	if err != nil || !bytes.Equal(got, want) {
		return fmt.Errorf("gather: %w, or wrong bytes", err)
	}
	return readWide(ctx, f, offsets, length, want)
}

// readWide gathers samples into memory of another view, widened.
func readWide(ctx context.Context, f *cufile.File, offsets []int64, length int64, want []byte) error {
	room, err := f.Read(ctx, 0, int64(4*len(want)))
	if err != nil {
		return err
	}
	defer room.Release()
	to := cufile.Target{Memory: cufile.Memory{Pointer: room.Pointer(), Length: room.Len()}, Widen: cufile.WidenU16ToI64}
	if host := room.Bytes(); host != nil {
		to.Pointer = uintptr(unsafe.Pointer(&host[0]))
	}
	if _, err := f.GatherInto(ctx, to, offsets, length); err != nil {
		return err
	}
	wide, err := content(ctx, room)
	if err != nil {
		return err
	}
	for i := 0; i < len(want); i += 2 {
		if le.LittleEndian.Uint64(wide[4*i:]) != uint64(le.LittleEndian.Uint16(want[i:])) {
			return fmt.Errorf("token %d of a widened gather is %d", i/2, le.LittleEndian.Uint64(wide[4*i:]))
		}
	}
	return nil
}
