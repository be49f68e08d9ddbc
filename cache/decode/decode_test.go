package decode

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// files is an origin in memory, which counts what is read of each file and gives other bytes where it is told to.
type files struct {
	data  map[string][]byte
	hash  string            // begins the versions; "" for none
	bad   map[string][]byte // instead of data, for the first times
	times atomic.Int64      // that bad is given
	reads atomic.Int64      // from the start of a file
	fail  error
}

func (f *files) ReadAt(ctx context.Context, o *layout.Object, p []byte, off int64) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if f.fail != nil {
		return 0, f.fail
	}
	data := f.data[o.Name]
	if bad, ok := f.bad[o.Name]; ok && off == 0 {
		f.reads.Add(1)
		if f.times.Add(-1) >= 0 {
			data = bad
		}
	}
	return bytes.NewReader(data).ReadAt(p, off)
}

func (f *files) listing() *cache.Listing {
	var objects []*layout.Object
	for name, data := range f.data {
		objects = append(objects, &layout.Object{Name: name, Size: int64(len(data)), Version: f.hash + "1", Origin: f})
	}
	return cache.RemoteListing(objects)
}

// entry is an entry of an index.
func entry(raw, zip string, plain, coded []byte, compression string, change func(raw, zip map[string]any)) map[string]any {
	r := map[string]any{"basename": raw, "bytes": len(plain), "hashes": map[string]string{"sha1": sha(plain)}}
	z := map[string]any{"basename": zip, "bytes": len(coded), "hashes": map[string]string{"md4": "?", "xxh3_64": fmt.Sprintf("%016x", xxh3.Hash(coded))}}
	if change != nil {
		change(r, z)
	}
	return map[string]any{"format": "mds", "version": 2, "samples": 1, "compression": compression, "raw_data": r, "zip_data": z, "size_limit": 1 << 26}
}

func sha(p []byte) string {
	sum := sha1.Sum(p)
	return hex.EncodeToString(sum[:])
}

func index(t testing.TB, entries ...map[string]any) []byte {
	text, err := json.Marshal(map[string]any{"version": 2, "shards": entries, "more": []int{1}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// plain makes bytes that compress to about half.
func plain(n int) []byte {
	p := make([]byte, n)
	state := uint32(n) + 1
	for i := range p {
		if i%4 < 2 {
			state = state*1664525 + 1013904223
			p[i] = byte(state >> 24)
		}
	}
	return p
}

func zstdOf(t testing.TB, p []byte) []byte {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(p, nil)
}

func gzipOf(t testing.TB, p []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// bzip2Hello is what `printf 'hello hello hello\n' | bzip2` writes; Go has no encoder.
func bzip2Hello(t testing.TB) []byte {
	p, err := os.ReadFile(filepath.Join("testdata", "hello.bz2"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// seekable writes frames of the given size and their table.
func seekable(t testing.TB, p []byte, frame int) []byte {
	var out, table []byte
	frames := 0
	for ; len(p) > 0; frames++ {
		q := p[:min(len(p), frame)]
		coded := zstdOf(t, q)
		out = append(out, coded...)
		table = binary.LittleEndian.AppendUint32(table, uint32(len(coded)))
		table = binary.LittleEndian.AppendUint32(table, uint32(len(q)))
		p = p[len(q):]
	}
	out = binary.LittleEndian.AppendUint32(out, seekSkippable)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(table)+seekFooter))
	out = binary.LittleEndian.AppendUint32(append(out, table...), uint32(frames))
	return binary.LittleEndian.AppendUint32(append(out, 0), seekMagic)
}

// wrapped is a listing with what it decodes to, read through a store or without.
type wrapped struct {
	*Decoded
	objects map[string]*layout.Object
	listing *cache.Listing
	stats   func() status.Cache
}

func wrap(t testing.TB, f *files, kept bool, segment int64) *wrapped {
	t.Helper()
	l := f.listing()
	x, err := Wrap(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	w := &wrapped{x, map[string]*layout.Object{}, l, nil}
	for _, o := range l.Objects {
		w.objects[o.Name] = o
	}
	if kept {
		w.keep(t, t.TempDir(), segment)
	}
	return w
}

// keep has what is decoded read through a store.
func (w *wrapped) keep(t testing.TB, dir string, segment int64) {
	t.Helper()
	s, err := store.Open(dir, store.Options{Size: 1 << 30, Segment: segment, MinFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	s.Add("test://", w.Decoded, &cache.Listing{Objects: w.Objects()})
	w.stats = s.Stats
}

func (w *wrapped) read(t testing.TB, name string) ([]byte, error) {
	t.Helper()
	o := w.objects[name]
	if o == nil {
		t.Fatalf("there is no %s", name)
	}
	return io.ReadAll(o.Reader(t.Context()))
}

func (w *wrapped) names() (out []string) {
	for _, o := range w.listing.Objects {
		out = append(out, o.Name)
	}
	return out
}

// TestRoundTrips decodes every codec, with and without a store, in one segment and in several.
func TestRoundTrips(t *testing.T) {
	big := plain(3<<20 + 5)
	small := big[:300_000]
	f := &files{data: map[string][]byte{"other": []byte("as it is")}}
	want := map[string][]byte{"other": []byte("as it is")}
	var entries []map[string]any
	for kind, coded := range map[string][2][]byte{
		"zstd:7":   {small, zstdOf(t, small)},
		"zstd":     {big, seekable(t, big, 1<<20)},
		"gz:9":     {small, gzipOf(t, small)},
		"snappy":   {big, snappy.Encode(nil, big)},
		"bz2":      {[]byte("hello hello hello\n"), bzip2Hello(t)},
		"zstd:1":   {nil, zstdOf(t, nil)},
		"gz":       {[]byte("x"), gzipOf(t, []byte("x"))},
		"snappy:x": {[]byte("y"), snappy.Encode(nil, []byte("y"))},
	} {
		raw := fmt.Sprintf("shard.%d.mds", len(entries))
		f.data[raw+".z"], want[raw] = coded[1], coded[0]
		entries = append(entries, entry(raw, raw+".z", coded[0], coded[1], kind, nil))
	}
	f.data["index.json"] = index(t, entries...)
	for _, segment := range []int64{0, 1 << 20} {
		w := wrap(t, f, segment > 0, segment)
		if len(w.listing.Problems) > 0 || len(w.names()) != len(want)+1 {
			t.Fatalf("problems %v, objects %q", w.listing.Problems, w.names())
		}
		for name, data := range want {
			if got, err := w.read(t, name); err != nil || !bytes.Equal(got, data) {
				t.Errorf("segments of %d: %s has %d bytes, want %d: %v", segment, name, len(got), len(data), err)
			}
			if o := w.objects[name]; name != "other" && (o.Version != "1-decoded" || !o.Whole) {
				t.Errorf("%s is %+v", name, o)
			}
		}
		checkIndex(t, w, len(entries))
	}
}

// checkIndex reads the index, which must know nothing of compression and all else.
func checkIndex(t *testing.T, w *wrapped, shards int) {
	t.Helper()
	text, err := w.read(t, "index.json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Version int
		More    []int
		Shards  []map[string]any
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Version != 2 || len(got.More) != 1 || len(got.Shards) != shards {
		t.Errorf("the index became %s", text)
	}
	for _, s := range got.Shards {
		if s["compression"] != nil || s["zip_data"] != nil || s["raw_data"] == nil || s["size_limit"] != float64(1<<26) {
			t.Errorf("an entry became %v", s)
		}
	}
}

// TestOnePass reads ranges of a shard of several segments at the same time: it is decoded once.
func TestOnePass(t *testing.T) {
	data := plain(2<<20 + 1)
	coded := zstdOf(t, data)
	f := &files{data: map[string][]byte{"s.zstd": coded, "index.json": index(t, entry("s", "s.zstd", data, coded, "zstd", nil))}}
	f.bad = map[string][]byte{"s.zstd": coded} // the same bytes, to be counted
	w := wrap(t, f, true, 1<<20)
	o := w.objects["s"]
	errs := make(chan error)
	for i := range 32 {
		go func() {
			p, off := make([]byte, 100<<10), int64(i)*60_000
			n, err := o.ReadAt(t.Context(), p, off)
			if err == nil && !bytes.Equal(p[:n], data[off:off+int64(n)]) {
				err = errors.New("other bytes")
			}
			errs <- err
		}()
	}
	for range 32 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := f.reads.Load(); n != 1 {
		t.Errorf("the shard was decoded %d times", n)
	}
	if s := w.stats(); s.Uncached != 0 || s.Fetched != int64(len(data)) {
		t.Errorf("stats %+v", s)
	}
}

// TestDamage gives damaged bytes, sizes and hashes: what cannot be right is an error, and nothing of it is kept.
func TestDamage(t *testing.T) {
	data := plain(300_000)
	good, gz := zstdOf(t, data), gzipOf(t, data)
	long := plain(3<<20 + 7)
	frames := seekable(t, long, 1<<20)
	flip := func(p []byte, at int) []byte { p = bytes.Clone(p); p[at] ^= 0x10; return p }
	set := func(side, key string, v any) func(raw, zip map[string]any) {
		return func(raw, zip map[string]any) {
			delete(raw, "hashes") // so that the sizes and the stream have to tell
			delete(zip, "hashes")
			map[string]map[string]any{"raw": raw, "zip": zip}[side][key] = v
		}
	}
	hash := func(name, v string) map[string]string { return map[string]string{name: v} }
	for name, c := range map[string]struct {
		kind   string
		coded  []byte
		change func(raw, zip map[string]any)
	}{
		"truncated":        {"zstd", good[:len(good)/2], set("zip", "hashes", nil)},
		"flipped":          {"zstd", flip(good, len(good)/2), set("zip", "hashes", nil)},
		"trailing":         {"zstd", append(bytes.Clone(good), "more"...), set("zip", "hashes", nil)},
		"empty":            {"zstd", nil, set("zip", "hashes", nil)},
		"shorter":          {"zstd", good, set("raw", "bytes", len(data)+1)},
		"bomb":             {"zstd", good, set("raw", "bytes", len(data)-1)},
		"raw hash":         {"zstd", good, set("raw", "hashes", hash("xxh64", "0000000000000000"))},
		"zip hash":         {"zstd", good, set("zip", "hashes", hash("sha256", "zz"))},
		"gz":               {"gz", flip(gz, len(gz)/2), set("zip", "hashes", nil)},
		"gz truncated":     {"gz", gz[:len(gz)/2], set("zip", "hashes", nil)},
		"bz2":              {"bz2", good, set("zip", "hashes", nil)},
		"snappy":           {"snappy", snappy.Encode(nil, data)[:100_000], set("zip", "hashes", nil)},
		"snappy size":      {"snappy", snappy.Encode(nil, data), set("raw", "bytes", len(data)-1)},
		"seekable":         {"zstd", flip(frames, 1<<20), set("raw", "bytes", len(long))},
		"seekable, bomb":   {"zstd", frames, set("raw", "bytes", len(long)-1)},
		"a window too big": {"zstd", []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0xf8, 1, 0, 0}, set("zip", "hashes", nil)},
	} {
		t.Run(name, func(t *testing.T) {
			f := &files{data: map[string][]byte{"s.z": c.coded, "index.json": index(t, entry("s", "s.z", data, c.coded, c.kind, c.change))}}
			f.bad = map[string][]byte{"s.z": c.coded}
			w := wrap(t, f, true, 1<<20)
			if got, err := w.read(t, "s"); len(got) > 0 || !errors.Is(err, cache.ErrDamaged) {
				t.Errorf("%d bytes and %v, want none and that they are damaged", len(got), err)
			}
			if n := f.reads.Load(); n > 2 || (n < 2 && len(c.coded) > 0) {
				t.Errorf("fetched %d times, want that it is tried twice", n)
			}
			if s := w.stats(); s.Segments != 0 || s.Filling != 0 || s.Bytes != 0 || s.Pinned != 0 || s.Failures != 0 {
				t.Errorf("something is left: %+v", s)
			}
			if got, err := wrap(t, f, false, 0).read(t, "s"); len(got) > 0 || !errors.Is(err, cache.ErrDamaged) {
				t.Errorf("uncached: %d bytes and %v", len(got), err)
			}
		})
	}
}

// TestDamagedOnce has the first fetch bring other bytes than the origin has: the second counts.
func TestDamagedOnce(t *testing.T) {
	data := plain(300_000)
	good := snappy.Encode(nil, data) // without checksums: the hash of the index has to tell
	bad := bytes.Clone(good)
	for i := len(bad) / 2; ; i++ {
		bad[i] ^= 1
		if p, err := snappy.Decode(nil, bad); err == nil && len(p) == len(data) {
			break
		}
		bad[i] ^= 1
	}
	for _, kept := range []bool{true, false} {
		f := &files{data: map[string][]byte{"s.z": good, "index.json": index(t, entry("s", "s.z", data, good, "snappy", nil))}}
		f.bad = map[string][]byte{"s.z": bad}
		f.times.Store(1)
		w := wrap(t, f, kept, 1<<20)
		if got, err := w.read(t, "s"); err != nil || !bytes.Equal(got, data) {
			t.Errorf("kept %v: %d bytes, %v", kept, len(got), err)
		}
		if n := f.reads.Load(); n != 2 {
			t.Errorf("kept %v: fetched %d times, want 2", kept, n)
		}
	}
}

// TestOriginFails has errors of the origin come through as they are, and not as damage.
func TestOriginFails(t *testing.T) {
	data := plain(300_000)
	coded := zstdOf(t, data)
	f := &files{data: map[string][]byte{"s.z": coded, "index.json": index(t, entry("s", "s.z", data, coded, "zstd", nil))}}
	w := wrap(t, f, true, 1<<20)
	f.fail = fmt.Errorf("gone: %w", cache.ErrChanged)
	if _, err := w.read(t, "s"); !errors.Is(err, cache.ErrChanged) || errors.Is(err, cache.ErrDamaged) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.fail = nil
	if err := w.Fetch(ctx, w.objects["s"], 0, 1, func([]byte) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	full := errors.New("the disk is full")
	if err := w.Fetch(t.Context(), w.objects["s"], 0, 1, func([]byte) error { return full }); !errors.Is(err, full) || errors.Is(err, cache.ErrDamaged) {
		t.Errorf("got %v", err)
	}
	if got, err := w.read(t, "s"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("after all is well again: %d bytes, %v", len(got), err)
	}
	if _, err := Wrap(t.Context(), (&files{data: f.data, fail: errors.New("unreachable")}).listing()); err == nil {
		t.Error("an index that cannot be fetched is passed over")
	}
}

func TestFetchRanges(t *testing.T) {
	data := plain(3 << 20)
	coded := seekable(t, data, 300_000)
	f := &files{data: map[string][]byte{"s.z": coded, "index.json": index(t, entry("s", "s.z", data, coded, "zstd", nil))}}
	w := wrap(t, f, false, 0)
	for _, r := range [][2]int64{{0, 0}, {0, 1}, {1 << 20, 1 << 20}, {3<<20 - 1, 1}} {
		var got []byte
		err := w.Fetch(t.Context(), w.objects["s"], r[0], r[1], func(p []byte) error { got = append(got, p...); return nil })
		if err != nil || !bytes.Equal(got, data[r[0]:r[0]+r[1]]) {
			t.Errorf("%v: %d bytes, %v", r, len(got), err)
		}
	}
	for _, r := range [][2]int64{{-1, 2}, {0, 3<<20 + 1}, {3 << 20, 1}} {
		if err := w.Fetch(t.Context(), w.objects["s"], r[0], r[1], func([]byte) error { return nil }); err == nil {
			t.Errorf("%v was fetched", r)
		}
	}
}

// TestLargeShardsNeedACache asks for a shard that is too large to be held.
func TestLargeShardsNeedACache(t *testing.T) {
	f := &files{data: map[string][]byte{"s.z": {1}, "index.json": index(t, entry("s", "s.z", nil, []byte{1}, "zstd", func(raw, _ map[string]any) { raw["bytes"] = maxLast + 1 }))}}
	if _, err := wrap(t, f, false, 0).read(t, "s"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
}
