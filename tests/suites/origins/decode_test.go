package origins_test

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// shown are the files that a mount with a cache shows for those of a source: MDS shards are decoded, and their index
// says nothing of compression.
func shown(t *testing.T, files map[string][]byte) map[string][]byte {
	t.Helper()
	d, err := zstd.NewReader(nil)
	must(t, err)
	defer d.Close()
	out, decoded := map[string][]byte{}, 0
	for name, data := range files {
		if raw, ok := strings.CutSuffix(name, ".mds.zstd"); ok {
			name, decoded = raw+".mds", decoded+1
			data, err = d.DecodeAll(data, nil)
			must(t, err)
		}
		if name == "mds-zstd/index.json" {
			data = plainIndex(t, data)
		}
		out[name] = data
	}
	if decoded == 0 {
		t.Fatal("no shard is compressed")
	}
	return out
}

func plainIndex(t *testing.T, text []byte) []byte {
	t.Helper()
	var index map[string]any
	must(t, json.Unmarshal(text, &index))
	for _, s := range index["shards"].([]any) {
		s.(map[string]any)["zip_data"], s.(map[string]any)["compression"] = nil, nil
	}
	text, err := json.Marshal(index)
	must(t, err)
	return text
}

// TestFilesInZstd mounts zstd files of several frames. Their decoded sizes are learned once for a cache. A file whose
// size cannot be known is shown as it is stored. The large one is trusted to be what its first frame says.
func TestFilesInZstd(t *testing.T) {
	blackbox.NeedFUSE(t)
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	must(t, err)
	data := origintest.Data(1<<20, 3) // does not compress
	one := w.EncodeAll(data, nil)
	small := w.EncodeAll([]byte("more"), nil)
	must(t, w.Close())
	files := map[string][]byte{
		"two.zst": slices.Concat(one, one), "many.zst": bytes.Repeat(small, 1000), "one.bin.zst": one, "cut.zst": slices.Concat(small, one[:1000]),
		"wrong.zst": slices.Concat(one, small), "as it is": data[:100],
	}
	want := map[string][]byte{
		"two": slices.Concat(data, data), "many": bytes.Repeat([]byte("more"), 1000), "one.bin": data, "cut.zst": files["cut.zst"], "as it is": data[:100],
	}
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		s.PutAll(t, files)
		flags := []string{"--decode", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag}
		m := servers.Mount(t, s.Source, "", flags...)
		for name, data := range want {
			if err := sitetest.CompareFile(m.Path(name), data); err != nil {
				t.Error(err)
			}
		}
		if p, err := os.ReadFile(m.Path("wrong")); err == nil || len(p) > 0 {
			t.Errorf("a file that has more than its first frame says gives %d bytes", len(p))
		}
		for _, says := range []string{"cut short", "mount it again to read it"} {
			if !blackbox.Within(patience, func() bool { return strings.Contains(m.LogText(t), says) }) {
				t.Errorf("the log does not say %q:\n%s", says, m.LogText(t))
			}
		}
		m.Settled(t)
		before := len(s.Asked())
		m.Kill(t)
		m = servers.Mount(t, s.Source, m.Point, flags...)
		for _, a := range s.Asked()[before:] {
			if strings.HasSuffix(a.Path, "two.zst") || strings.HasSuffix(a.Path, "wrong.zst") {
				t.Errorf("bytes %d to %d of %s were asked for again", a.From, a.To, a.Path)
			}
		}
		again := map[string][]byte{"wrong": append(bytes.Clone(data), "more"...)}
		for name, data := range want {
			again[name] = data
		}
		m.Compare(t, again)
	})
}
