package origins_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// mixedMDS is an MDS dataset of four shards of 2 MiB, of which those that are named are compressed. plain is what a mount shows.
func mixedMDS(t *testing.T, dir string, compressed ...int) (files, plain map[string][]byte) {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	must(t, err)
	files, plain = map[string][]byte{}, map[string][]byte{}
	index := map[string]any{"version": 2}
	var entries []any
	for i := range 4 {
		const sample = 1 << 20
		name := fmt.Sprintf("shard.%05d.mds", i)
		columns := fmt.Sprintf(`{"column_encodings": ["ndarray:int32:%d"], "column_names": ["tokens"], "column_sizes": [%d]}`, sample/4, sample)
		shard := []byte{2, 0, 0, 0}
		for n := range 3 {
			shard = binary.LittleEndian.AppendUint32(shard, uint32(16+len(columns)+n*sample))
		}
		shard = slices.Concat(shard, []byte(columns), origintest.Data(2*sample, byte(i)))
		entry := map[string]any{
			"format": "mds", "version": 2, "compression": nil, "samples": 2, "zip_data": nil, "hashes": []string{}, "size_limit": 1 << 26,
			"raw_data":     map[string]any{"basename": name, "bytes": len(shard), "hashes": map[string]any{}},
			"column_names": []string{"tokens"}, "column_encodings": []string{fmt.Sprintf("ndarray:int32:%d", sample/4)}, "column_sizes": []any{sample},
		}
		plain[path.Join(dir, name)] = shard
		if slices.Contains(compressed, i) {
			name, shard = name+".zstd", w.EncodeAll(shard, nil)
			entry["compression"], entry["zip_data"] = "zstd", map[string]any{"basename": name, "bytes": len(shard), "hashes": map[string]any{}}
		}
		files[path.Join(dir, name)] = shard
		entries = append(entries, entry)
	}
	must(t, w.Close())
	index["shards"] = entries
	text, err := json.Marshal(index)
	must(t, err)
	files[path.Join(dir, "index.json")], plain[path.Join(dir, "index.json")] = text, plainIndex(t, text)
	return files, plain
}

// TestPlansOverMixedShards plans all of a view over compressed shards and plain ones, which come from one source by two
// ways. All of it comes, in the order of the plan, and every file reads well afterwards.
func TestPlansOverMixedShards(t *testing.T) {
	blackbox.NeedFUSE(t)
	files, plain := mixedMDS(t, "last-zstd", 1, 3)
	more, morePlain := mixedMDS(t, "last-plain", 0, 2)
	maps.Copy(files, more)
	maps.Copy(plain, morePlain)
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		s.PutAll(t, files)
		m := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), "--cache-segment=1MiB")
		for _, dir := range []string{"last-zstd", "last-plain"} {
			name := path.Join(".hbmfs/views", dir, "tokens.bin")
			f, err := os.Open(m.Path(name))
			must(t, err)
			info, err := f.Stat()
			must(t, err)
			must(t, control.Prefetch(f, control.Range{Length: info.Size()}))
			if !blackbox.Within(patience, func() bool {
				for _, e := range m.Extents(t, name).Extents {
					if len(e.Flags) > 0 {
						return false
					}
				}
				return true
			}) {
				t.Errorf("%s was planned, and not all of it came: %+v", name, m.Extents(t, name))
			}
			must(t, f.Close())
		}
		m.Compare(t, plain)
		if st := m.Status(t); st.Cache.Uncached > 0 || st.Cache.Failures > 0 {
			t.Errorf("the cache was not used for all: %+v", st.Cache)
		}
	})
}
