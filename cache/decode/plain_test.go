package decode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/store"
	"github.com/hbmfs/hbmfs/layout"
)

// piped is zstd of what its writer did not know the length of.
func piped(t testing.TB, p []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, half := range [][]byte{p[:len(p)/2], p[len(p)/2:]} { // one write would tell
		if _, err := w.Write(half); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// summed is [seekable] with checksums in the table.
func summed(t testing.TB, p []byte, frame int) []byte {
	t.Helper()
	le := binary.LittleEndian
	without := seekable(t, p, frame)
	frames := int(le.Uint32(without[len(without)-seekFooter:]))
	at := len(without) - seekFooter - 8*frames - skippableFixed
	out := append([]byte(nil), without[:at]...)
	out = le.AppendUint32(le.AppendUint32(out, seekSkippable), uint32(12*frames+seekFooter))
	for i := range frames {
		entry := without[at+skippableFixed+8*i:][:8]
		out = le.AppendUint32(append(out, entry...), uint32(xxhash.Sum64(p[i*frame:min(len(p), (i+1)*frame)])))
	}
	return le.AppendUint32(append(le.AppendUint32(out, uint32(frames)), seekChecksums), seekMagic)
}

// addFiles is a listing with what its files decode to, read through a store.
func addFiles(t *testing.T, f *files) (*wrapped, *cache.Listing) {
	t.Helper()
	l := f.listing()
	x, err := Wrap(t.Context(), l)
	if err == nil {
		_, err = x.AddFiles(t.Context(), l, FileOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.TempDir(), store.Options{Size: 1 << 30, Segment: 1 << 20, MinFree: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	s.Add("test://", x, &cache.Listing{Objects: x.Objects()})
	w := &wrapped{x, map[string]*layout.Object{}, l, s.Stats}
	for _, o := range l.Objects {
		w.objects[o.Name] = o
	}
	return w, l
}

// TestNoHashOfTheSource has sources whose versions are hashes. Decoded shards and the rewritten index have other bytes, so those hashes are not theirs.
func TestNoHashOfTheSource(t *testing.T) {
	p := plain(100_000)
	coded := zstdOf(t, p)
	text := index(t, entry("shard.mds", "shard.mds.zstd", p, coded, "zstd", nil))
	for kind, digits := range map[string]int{layout.CRC32CVersion: 8, layout.MD5Version: 32, layout.SHA256Version: 64, layout.GitVersion: 40} {
		f := &files{data: map[string][]byte{"index.json": text, "shard.mds.zstd": coded, "plain.zst": coded, "frames.zst": seekable(t, p, 50_000)}, hash: kind + strings.Repeat("0", digits) + " "}
		for _, o := range f.listing().Objects {
			if layout.VersionHash(o.Version, o.Size) == nil {
				t.Fatalf("%q has no hash", o.Version)
			}
		}
		w, _ := addFiles(t, f)
		if len(w.Objects()) != 4 {
			t.Errorf("%s: %q", kind, w.names())
		}
		for _, o := range w.Objects() {
			if _, err := w.read(t, o.Name); err != nil || layout.VersionHash(o.Version, o.Size) != nil {
				t.Errorf("%s of the version %q is compared with a hash: %v", o.Name, o.Version, err)
			}
		}
	}
}

// TestFilesDecode shows what can be shown exactly, and says of the rest why not.
func TestFilesDecode(t *testing.T) {
	data := plain(1<<20 + 7)
	long := index(t, entry("s.mds", "s.mds.zst", data[:100], []byte("other bytes"), "zstd", nil)) // of other size: refused
	f := &files{data: map[string][]byte{
		"a.bin.zst": zstdOf(t, data), "dir/b.bin.zstd": seekable(t, data, 300_000), "dir/c.zst": summed(t, data, 1<<18), "one.zst": seekable(t, data[:9], 9),
		"plain.bin": data[:10],
		"x.gz":      gzipOf(t, data), "text.zst": []byte("no zstd at all"), "empty.zst": {}, ".zst": zstdOf(t, data),
		"plain.bin.zst": zstdOf(t, data), "a.bin.zstd": zstdOf(t, data),
		"huge.zst":  {0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0},
		"s.mds.zst": zstdOf(t, data[:100]), "index.json": long,
	}}
	w, l := addFiles(t, f)
	for name, want := range map[string][]byte{"a.bin": data, "dir/b.bin": data, "dir/c": data, "one": data[:9], "plain.bin": data[:10], "s.mds.zst": f.data["s.mds.zst"]} {
		got, err := w.read(t, name)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	why := map[string]string{}
	for _, p := range l.Problems {
		why[p.Object] = p.Detail
	}
	for name, reason := range map[string]string{
		"x.gz": "gzip does not say", "text.zst": "does not begin", "empty.zst": "it is empty",
		"plain.bin.zst": "is there already", "a.bin.zstd": "is there already", "huge.zst": "which cannot be", "index.json": "the index says",
	} {
		if !strings.Contains(why[name], reason) {
			t.Errorf("%s: %q, want %q", name, why[name], reason)
		}
		if w.objects[name] == nil {
			t.Errorf("%s is gone", name)
		}
	}
	if len(why) != 7 || w.objects["a.bin.zst"] != nil || w.objects["dir/c.zst"] != nil || w.objects[".zst"] == nil {
		t.Errorf("%d problems: %v; files: %q", len(why), why, w.names())
	}
}

// TestFilesByFrame reads a file with a seek table at random, through a store and past it: of what is stored, only the
// frames that are touched are read.
func TestFilesByFrame(t *testing.T) {
	data := plain(4 << 20)
	coded := summed(t, data, 128<<10)
	f := &counting{data: coded}
	l := cache.RemoteListing([]*layout.Object{{Name: "f.zst", Size: int64(len(coded)), Version: "1", Origin: f}})
	x, err := Wrap(t.Context(), l)
	if err == nil {
		_, err = x.AddFiles(t.Context(), l, FileOptions{})
	}
	if err != nil || len(l.Objects) != 1 {
		t.Fatalf("%v, %d objects", err, len(l.Objects))
	}
	o := l.Objects[0]
	f.bytes = 0
	p := make([]byte, 1000)
	if n, err := o.ReadAt(t.Context(), p, 3<<20); n != len(p) || err != nil || !bytes.Equal(p, data[3<<20:][:1000]) || f.bytes > 256<<10 {
		t.Errorf("%d bytes, %v; %d stored bytes were read", n, err, f.bytes)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		off := r.Int64N(o.Size + 10)
		p := make([]byte, 1+r.IntN(400_000))
		n, err := o.ReadAt(t.Context(), p, off)
		want := max(0, min(len(p), len(data)-int(off)))
		if n != want || (n < len(p)) != errors.Is(err, io.EOF) || (n > 0 && !bytes.Equal(p[:n], data[off:][:n])) {
			t.Fatalf("ReadAt(%d bytes, %d) = %d, %v", len(p), off, n, err)
		}
	}
}

// counting is one file, and counts what is read of it.
type counting struct {
	data  []byte
	bytes int
}

func (c *counting) ReadAt(_ context.Context, _ *layout.Object, p []byte, off int64) (int, error) {
	n, err := bytes.NewReader(c.data).ReadAt(p, off)
	c.bytes += n
	return n, err
}

// TestSeekTablesOfAnySize has tables that claim more than zstd's frames can have. The frames say what they decode to.
func TestSeekTablesOfAnySize(t *testing.T) {
	data := plain(1 << 20)
	le := binary.LittleEndian
	claims := func(frames int, each uint32) []byte {
		coded := zstdOf(t, data)
		out := le.AppendUint32(le.AppendUint32(bytes.Clone(coded), seekSkippable), uint32(8*frames+seekFooter))
		for i := range frames {
			out = le.AppendUint32(out, 0)
			if i == 0 {
				le.PutUint32(out[len(out)-4:], uint32(len(coded)))
			}
			out = le.AppendUint32(out, each)
		}
		return le.AppendUint32(append(le.AppendUint32(out, uint32(frames)), 0), seekMagic)
	}
	w, l := addFiles(t, &files{data: map[string][]byte{"many.zst": claims(1<<17, 1<<32-1), "dense.zst": claims(100, 1<<32-1)}})
	for _, name := range []string{"many", "dense"} {
		if o := w.objects[name]; o == nil || o.Size != int64(len(data)) {
			t.Fatalf("%s is shown as %+v; %v", name, o, l.Problems)
		}
		if got, err := w.read(t, name); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v; %v", name, len(got), err, l.Problems)
		}
	}
}

// TestFilesThatAreNotWhatTheySay fail, whatever is read of them, and nothing of what is wrong is given out.
func TestFilesThatAreNotWhatTheySay(t *testing.T) {
	data := plain(2 << 20)
	table := summed(t, data, 1<<20)
	entries := len(table) - seekFooter - 2*12
	for name, coded := range map[string][]byte{
		"a small frame":  append(zstdOf(t, data), zstdOf(t, data[:9])...),
		"cut":            zstdOf(t, data)[:1<<19],
		"a bit in it":    flipped(table, 1<<18),
		"a sum":          flipped(table, entries+8),
		"a size":         flipped(table, entries+4), // of the first frame's content
		"a border":       moved(table, entries),
		"a bit, unsaid":  flipped(seekable(t, data, 1<<20), 1<<18),
		"a bit, one":     flipped(zstdOf(t, data), 1<<18),
		"trailing bytes": append(zstdOf(t, data), "more"...),
	} {
		t.Run(name, func(t *testing.T) {
			w, l := addFiles(t, &files{data: map[string][]byte{"f.zst": coded}})
			if len(l.Problems) > 0 {
				t.Fatalf("it is shown as it is stored: %v", l.Problems)
			}
			got, err := w.read(t, "f")
			if !errors.Is(err, cache.ErrDamaged) {
				t.Errorf("%d bytes, %v; want that it is damaged", len(got), err)
			}
			if len(got) > len(data) || !bytes.Equal(got, data[:len(got)]) {
				t.Error("other bytes were given out")
			}
		})
	}
	// What is damaged once only is read again.
	good := seekable(t, data, 1<<20)
	f := &files{data: map[string][]byte{"f.zst": good}}
	w, _ := addFiles(t, f)
	f.bad = map[string][]byte{"f.zst": flipped(good, 1<<18)}
	f.times.Store(1)
	if got, err := w.read(t, "f"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("damaged on the way, once: %d bytes, %v", len(got), err)
	}
	// What cannot be read at all is no reason to show the rest.
	f.fail = errors.New("gone")
	l := f.listing()
	x, err := Wrap(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.AddFiles(t.Context(), l, FileOptions{}); !errors.Is(err, f.fail) {
		t.Errorf("%v, want that the file cannot be read", err)
	}
}

func flipped(p []byte, at int) []byte {
	p = append([]byte(nil), p...)
	p[at] ^= 4
	return p
}

// moved has a table say that the second of two frames begins a byte later.
func moved(table []byte, entries int) []byte {
	p, le := append([]byte(nil), table...), binary.LittleEndian
	le.PutUint32(p[entries:], le.Uint32(p[entries:])+1)
	le.PutUint32(p[entries+12:], le.Uint32(p[entries+12:])-1)
	return p
}

// FuzzFiles shows any bytes as a file: it stays as it is stored, or reading it gives as many bytes as it is shown with,
// or an error.
func FuzzFiles(f *testing.F) {
	data := plain(1000)
	for _, coded := range [][]byte{zstdOf(f, data), seekable(f, data, 100), summed(f, data, 300), piped(f, data)} {
		for _, n := range []int{len(coded), len(coded) - 1, len(coded) / 2, 0} {
			f.Add(coded[:n])
		}
	}
	f.Fuzz(func(t *testing.T, coded []byte) {
		o := layout.Bytes("f.zst", coded)
		o.Version = "1"
		k, err := newOrigin().learn(t.Context(), o, 1<<14) // so that no bomb is decoded for long
		if err != nil {
			t.Fatalf("bytes in memory cannot be read: %v", err)
		}
		if k.why != "" || k.size > 1<<20 {
			return
		}
		x := newOrigin()
		d := &layout.Object{Name: "f", Size: k.size, Whole: k.frames == nil}
		x.of[d] = stored{zip: o, codec: codec{decode: unzstd}, frames: k.frames}
		got := int64(0)
		err = x.Fetch(t.Context(), d, 0, d.Size, func(p []byte) error { got += int64(len(p)); return nil })
		if got > d.Size || (err == nil && got < d.Size) || (err != nil && !errors.Is(err, cache.ErrDamaged)) {
			t.Errorf("%d bytes of %d, %v", got, d.Size, err)
		}
	})
}
