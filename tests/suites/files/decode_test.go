package files_test

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// mdsIndex is the part of MosaicML's index.json that these tests read.
type mdsIndex struct {
	Shards []struct {
		Compression *string  `json:"compression"`
		RawData     mdsFile  `json:"raw_data"`
		ZipData     *mdsFile `json:"zip_data"`
	} `json:"shards"`
}

type mdsFile struct {
	Basename string            `json:"basename"`
	Bytes    int               `json:"bytes"`
	Hashes   map[string]string `json:"hashes"`
}

func readMDSIndex(t *testing.T, dir string) (x mdsIndex) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	must(t, err)
	must(t, json.Unmarshal(text, &x))
	return x
}

// cacheStatus is what status shows of the cache.
func cacheStatus(t *testing.T, m *mounted) (s struct{ Segments, Fetched, Uncached, Corrupt int }) {
	t.Helper()
	text, err := os.ReadFile(m.Path(".hbmfs", "status"))
	must(t, err)
	must(t, json.Unmarshal(text, &struct{ Cache any }{&s}))
	return s
}

// TestCompressedShards mounts a dataset that MosaicML Streaming has compressed: with a cache it appears as what it was
// before, with its views, and is decoded once for all mounts; without one it appears as it is stored.
func TestCompressedShards(t *testing.T) {
	blackbox.NeedFUSE(t)
	source, cached := mounttest.Golden(t, "mds-zstd"), suite.NewDir(t)
	stored := readMDSIndex(t, source)
	for _, first := range []bool{true, false} {
		m := mount(t, source, "--cache-dir", cached, "--cache-min-free=1MiB")
		index := readMDSIndex(t, m.Point)
		if len(index.Shards) != len(stored.Shards) || len(stored.Shards) == 0 {
			t.Fatalf("the index has %d shards, %d are stored", len(index.Shards), len(stored.Shards))
		}
		for i, s := range stored.Shards {
			if plain := index.Shards[i]; plain.Compression != nil || plain.ZipData != nil || plain.RawData.Basename != s.RawData.Basename {
				t.Errorf("the index says %+v of shard %d", plain, i)
			}
			data, err := os.ReadFile(m.Path(s.RawData.Basename))
			must(t, err)
			if sum := sha1.Sum(data); len(data) != s.RawData.Bytes || hex.EncodeToString(sum[:]) != s.RawData.Hashes["sha1"] {
				t.Errorf("%s is not what its writer compressed", s.RawData.Basename)
			}
			mounttest.WantAbsent(t, m.Path(s.ZipData.Basename))
		}
		tokens, err := os.ReadFile(m.Path(".hbmfs", "views", "tokens.bin"))
		must(t, err)
		sum := sha256.Sum256(tokens)
		if want := mounttest.Goldens(t)["mds-zstd"].Splits[""].TokensSHA256; hex.EncodeToString(sum[:]) != want {
			t.Errorf("the tokens have hash %x, want %s", sum, want)
		}
		files := len(stored.Shards) + 1
		if !blackbox.Within(patience, func() bool { return cacheStatus(t, m).Segments == files }) {
			t.Errorf("%d files were read, the cache says %+v", files, cacheStatus(t, m))
		}
		checkDecodedExtents(t, m, cached, stored.Shards[0].RawData)
		if s := cacheStatus(t, m); s.Uncached != 0 || s.Corrupt != 0 || (s.Fetched == 0) == first {
			t.Errorf("first mount: %v, the cache says %+v", first, s)
		}
		m.End(t)
	}
	if err := mounttest.CompareTrees(source, mount(t, source).Point); err != nil {
		t.Error(err)
	}
}

// checkDecodedExtents asks where a decoded shard lies.
func checkDecodedExtents(t *testing.T, m *mounted, cached string, f mdsFile) {
	t.Helper()
	if os.Geteuid() != 0 { // the control channel may be off for others
		return
	}
	r := run(t, "locate", "--extents", "--json", m.Path(f.Basename))
	var got struct {
		Extents []struct {
			Length int
			Path   string
		}
	}
	if r.Code != 0 {
		t.Fatalf("extents ended with %d: %s", r.Code, r.Stderr)
	}
	must(t, json.Unmarshal([]byte(r.Stdout), &got))
	if len(got.Extents) != 1 || got.Extents[0].Length != f.Bytes {
		t.Fatalf("%s lies at %+v, want one extent", f.Basename, got.Extents)
	}
	if _, err := os.Stat(filepath.Join(cached, "segments", got.Extents[0].Path)); err != nil {
		t.Errorf("%s does not lie in the cache: %v", f.Basename, err)
	}
}

// TestShardsInSequence reads compressed shards one after the other, by one reader and by two, and each as it comes: those
// that come ahead are right, and nothing is decoded twice.
func TestShardsInSequence(t *testing.T) {
	const count, size = 8, 5 << 20
	source, shards := suite.NewDir(t), map[string][]byte{}
	enc, err := zstd.NewWriter(nil)
	must(t, err)
	var entries []string
	for i := range count {
		data := make([]byte, size+i)
		r := rand.New(rand.NewPCG(3, uint64(i)))
		for j := range min(len(data), 1<<19) { // one by one, letters take long with the race detector
			data[j] = "the tokens of a text "[r.IntN(21)]
		}
		for j := 1 << 19; j < len(data); {
			j += copy(data[j:], data[:1<<19])
		}
		name, zip := fmt.Sprintf("shard.%05d.mds", i), enc.EncodeAll(data, nil)
		shards[name] = data
		must(t, os.WriteFile(filepath.Join(source, name+".zstd"), zip, 0o644))
		entries = append(entries, fmt.Sprintf(`{"compression":"zstd","format":"mds","raw_data":{"basename":%q,"bytes":%d,"hashes":{"sha1":"%x"}},`+
			`"zip_data":{"basename":%q,"bytes":%d,"hashes":{}}}`, name, len(data), sha1.Sum(data), name+".zstd", len(zip)))
	}
	must(t, os.WriteFile(filepath.Join(source, "index.json"), []byte(`{"version":2,"shards":[`+strings.Join(entries, ",")+"]}"), 0o644))
	names := slices.Sorted(maps.Keys(shards))
	for _, readers := range []int{1, 2} {
		m := mount(t, source, "--cache-dir", suite.NewDir(t), "--cache-min-free=1MiB")
		var next atomic.Int64
		var g errgroup.Group
		for range readers {
			g.Go(func() error {
				for i := int(next.Add(1)) - 1; i < len(names); i = int(next.Add(1)) - 1 {
					got, err := os.ReadFile(m.Path(names[i]))
					if err != nil || !bytes.Equal(got, shards[names[i]]) {
						return fmt.Errorf("%s: %d bytes that are not those of the shard, %w", names[i], len(got), err)
					}
				}
				return nil
			})
		}
		must(t, g.Wait())
		if !blackbox.Within(patience, func() bool { return cacheStatus(t, m).Segments >= count }) {
			t.Errorf("the cache says %+v", cacheStatus(t, m))
		}
		total := count*size + count*(count-1)/2
		if s := cacheStatus(t, m); s.Fetched < total || s.Fetched > total+1<<20 || s.Uncached != 0 { // the index may count, too
			t.Errorf("%d readers, %d bytes: the cache says %+v", readers, total, s)
		}
		m.End(t)
	}
}

// TestDamagedShard flips a bit in a compressed shard: reading it is an error however often it is tried, nothing of it is
// kept, and the other shards are as they should be.
func TestDamagedShard(t *testing.T) {
	source, cached := suite.NewDir(t), suite.NewDir(t)
	must(t, os.CopyFS(source, os.DirFS(mounttest.Golden(t, "mds-zstd"))))
	index := readMDSIndex(t, source)
	bad, good := index.Shards[0], index.Shards[1:]
	path := filepath.Join(source, bad.ZipData.Basename)
	data, err := os.ReadFile(path)
	must(t, err)
	data[len(data)/2] ^= 4
	must(t, os.WriteFile(path, data, 0o644))
	m := mount(t, source, "--cache-dir", cached, "--cache-min-free=1MiB")
	for range 2 {
		if got, err := os.ReadFile(m.Path(bad.RawData.Basename)); !errors.Is(err, syscall.EIO) || len(got) > 0 {
			t.Errorf("reading a damaged shard gives %d bytes and %v, want EIO", len(got), err)
		}
	}
	for _, s := range good {
		if data, err := os.ReadFile(m.Path(s.RawData.Basename)); err != nil || len(data) != s.RawData.Bytes {
			t.Errorf("%s: %d bytes, %v", s.RawData.Basename, len(data), err)
		}
	}
	if !blackbox.Within(patience, func() bool { return cacheStatus(t, m).Segments >= len(good) }) {
		t.Errorf("the cache says %+v", cacheStatus(t, m))
	}
	if n := cacheStatus(t, m).Segments; n > len(good)+1 { // and the index
		t.Errorf("%d segments are kept", n)
	}
	if log := m.LogText(t); !strings.Contains(log, "the bytes are damaged") || !strings.Contains(log, bad.ZipData.Basename) {
		t.Errorf("the log does not say what is wrong:\n%s", log)
	}
	if _, err := os.Stat(m.Path(".hbmfs", "views", "tokens.npy")); err == nil {
		t.Error("a view leaves a damaged shard out in silence")
	}
}

// TestWarmAViewOfDecodedAndOtherShards counts, of one view, what the cache has, and what lies at the source.
func TestWarmAViewOfDecodedAndOtherShards(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := suite.NewDir(t)
	must(t, os.CopyFS(source, os.DirFS(mounttest.Golden(t, "mds-zstd"))))
	var index map[string]any
	text, err := os.ReadFile(filepath.Join(source, "index.json"))
	must(t, err)
	must(t, json.Unmarshal(text, &index))
	first := index["shards"].([]any)[0].(map[string]any) // is stored as it is
	first["compression"], first["zip_data"] = nil, nil
	text, err = json.Marshal(index)
	must(t, err)
	r, err := zstd.NewReader(nil)
	must(t, err)
	defer r.Close()
	coded, err := os.ReadFile(filepath.Join(source, "shard.00000.mds.zstd"))
	must(t, err)
	plain, err := r.DecodeAll(coded, nil)
	must(t, err)
	mounttest.WriteFiles(t, source, map[string]string{"index.json": string(text), "shard.00000.mds": string(plain)})
	must(t, os.Remove(filepath.Join(source, "shard.00000.mds.zstd")))

	m := mount(t, source, "--cache-dir", suite.NewDir(t), "--cache-min-free=1MiB")
	var shards []struct {
		Name   string
		Tokens int64
	}
	text, err = os.ReadFile(m.Path(".hbmfs", "views", "shards.json"))
	must(t, err)
	must(t, json.Unmarshal(text, &shards))
	if len(shards) != 3 {
		t.Fatalf("%+v", shards)
	}
	here, decoded := 4*shards[0].Tokens, 4*(shards[1].Tokens+shards[2].Tokens)
	view := m.Path(".hbmfs", "views", "tokens.bin")
	for round := range 2 {
		got := parsed[warmed](t, "warm", "--json", view)
		if got.Advised != here || got.Local+got.Fetched != decoded || got.Left != 0 || round > 0 && got.Fetched > 0 {
			t.Errorf("%+v, want %d bytes of local files and %d of the cache", got, here, decoded)
		}
	}
}

// TestFilesInZstd mounts zstd files of a directory as what they decode to.
func TestFilesInZstd(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := suite.NewDir(t)
	tokens := make([]byte, 3*mounttest.Mebibyte)
	for i := range tokens {
		tokens[i] = byte(i * i >> 7)
	}
	w, err := zstd.NewWriter(nil)
	must(t, err)
	coded := w.EncodeAll(tokens, nil)
	var piped bytes.Buffer // whose length the frame cannot say
	w.Reset(&piped)
	for part := range slices.Chunk(tokens, mounttest.Mebibyte) {
		_, err := w.Write(part)
		must(t, err)
	}
	must(t, w.Close())
	mounttest.WriteFiles(t, source, map[string]string{
		"a/train.bin.zst": string(coded), "a/two.bin.zst": string(coded) + string(coded), "piped.zst": piped.String(), "b.gz": "no matter", "c.txt": "as it is",
	})
	kept, twice := suite.NewDir(t), append(bytes.Clone(tokens), tokens...)
	decoded := map[string][]byte{"a/train.bin": tokens, "a/two.bin": twice, "piped": tokens, "c.txt": []byte("as it is"), "b.gz": []byte("no matter")}
	m := mount(t, source, "--decode", "--cache-dir", kept, "--cache-min-free=1MiB")
	m.compare(t, decoded)
	mounttest.WantAbsent(t, m.Path("a", "train.bin.zst"))
	if log := m.LogText(t); !strings.Contains(log, "looked through to learn their decoded sizes") {
		t.Errorf("the log does not say that files were looked through:\n%s", log)
	}
	var s struct {
		Problems int
		Hints    []struct{ Object, Detail string }
	}
	text, err := os.ReadFile(m.Path(".hbmfs", "status"))
	must(t, err)
	must(t, json.Unmarshal(text, &s))
	if log := m.LogText(t); s.Problems != 1 || !strings.Contains(log, "b.gz") || !strings.Contains(log, "gzip does not say how long its content is") {
		t.Errorf("%d problems, and the log does not say why b.gz is as it is stored:\n%s", s.Problems, log)
	}
	if len(s.Hints) != 1 || s.Hints[0].Object != "a/train.bin" || !strings.Contains(s.Hints[0].Detail, "--dtype uint16") {
		t.Errorf("hints %+v, want one on a/train.bin with the flag that shows it", s.Hints)
	}
	m.End(t)
	m = mount(t, source, "--decode", "--decode-scan=1KiB", "--cache-dir", kept, "--cache-min-free=1MiB", "--dtype", "uint16")
	m.compare(t, decoded)
	m.compare(t, map[string][]byte{".hbmfs/views/a/train/tokens.bin": tokens, ".hbmfs/views/a/tokens.bin": twice})
	if log := m.LogText(t); strings.Contains(log, "looked through") {
		t.Errorf("what was learned is not remembered:\n%s", log)
	}
	m.End(t)
	m = mount(t, source, "--decode", "--decode-scan=1KiB", "--cache-dir", suite.NewDir(t), "--cache-min-free=1MiB")
	m.compare(t, map[string][]byte{"a/train.bin": tokens, "a/two.bin": twice, "piped.zst": piped.Bytes(), "c.txt": []byte("as it is"), "b.gz": []byte("no matter")})
	if log := m.LogText(t); !strings.Contains(log, "piped.zst") || !strings.Contains(log, "it has more than the 1024 bytes that are decoded to find out") {
		t.Errorf("the log does not say why piped.zst is as it is stored:\n%s", log)
	}
	m.End(t)
	if r := run(t, "mount", "--decode", source, m.Point); r.Code == 0 || !strings.Contains(r.Stderr, "--cache-dir") {
		t.Errorf("without a cache: exit code %d: %s", r.Code, r.Stderr)
	}
}
