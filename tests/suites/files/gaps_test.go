package files_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// numberedShards writes five shards named by a pattern, but for the one with the number gap. Each is what of a golden dataset begins with stem.
func numberedShards(t *testing.T, dir, dataset, stem, pattern string, first, gap int) {
	t.Helper()
	golden := mounttest.Golden(t, dataset)
	paths, err := filepath.Glob(filepath.Join(golden, stem+"*"))
	must(t, err)
	must(t, os.Mkdir(dir, 0o755))
	for i := first; i < first+5; i++ {
		for _, path := range paths {
			data, err := os.ReadFile(path)
			must(t, err)
			if name := fmt.Sprintf(pattern, i) + strings.TrimPrefix(filepath.Base(path), stem); i != gap {
				must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
			}
		}
	}
}

// TestGapsAreReported leaves shards out of datasets, each in a directory of its own: inspect, the mount's command and its status tell of each, and no
// view has what is not there.
func TestGapsAreReported(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := suite.NewDir(t)
	want := map[string]bool{} // by directory: whether something is missing
	for _, c := range []struct {
		dataset, stem, pattern string
		first                  int
	}{
		{"npy", "tokens_00000", "tokens_%05d", 0},
		{"npy", "tokens_00000", "tokens_%d_of_5", 1},
		{"parquet-plain", "part-0", "train-%05d-of-00005", 0},
		{"parquet-plain", "part-0", "%03d_00000", 0},
		{"webdataset", "shard-000000", "shard-%06d", 0},
		{"arrow", "data-00000-of-00002", "data-%05d-of-00005", 0},
		{"datatrove", "00000_unshuffled", "%05d_unshuffled", 0},
		{"olmo", "part-0-00000", "part-0-%05d", 0},
		{"megatron", "corpus_text_document", "c_%02d_text_document", 1},
		{"modded", "fineweb_train_000001", "fineweb_train_%06d", 1},
		{"safetensors", "model", "model-%05d-of-00005", 1},
	} {
		counted := strings.Contains(c.pattern, "of")
		for gap := c.first - 1; gap < c.first+5; gap++ {
			if !counted && (gap == 0 || gap == c.first+4) && gap >= c.first {
				continue // without a count, the last number may be any, and the first 0 or 1
			}
			name := fmt.Sprintf("%s-%s-without-%d", c.dataset, strings.NewReplacer("%", "", "_", "").Replace(c.pattern), gap)
			numberedShards(t, filepath.Join(source, name), c.dataset, c.stem, c.pattern, c.first, gap)
			want[name] = gap >= c.first
		}
	}
	for dataset, missing := range map[string]string{
		"megatron-pieces": "document-00001-of-00002.bin", "mds": "shard.00001.mds", "litdata-tokens": "chunk-0-1.bin", "safetensors-sharded": "model-00001-of-00002.safetensors",
	} {
		must(t, os.CopyFS(filepath.Join(source, dataset), os.DirFS(mounttest.Golden(t, dataset))))
		must(t, os.Remove(filepath.Join(source, dataset, missing)))
		want[dataset] = true
	}
	r := run(t, "inspect", "--json", source)
	var got inspection
	must(t, json.Unmarshal([]byte(r.Stdout), &got))
	found := map[string]bool{}
	for _, p := range got.Problems {
		found[strings.Split(p.Object, "/")[0]] = true
	}
	m := mount(t, source)
	lines := len(got.Problems)
	if !blackbox.Within(patience, func() bool { return m.Status(t).Problems == lines }) || r.Code != 3 {
		t.Errorf("the status has %d problems, inspect %d, and its exit code is %d", m.Status(t).Problems, lines, r.Code)
	}
	for name, missing := range want {
		if found[name] != missing {
			t.Errorf("%s: inspect tells of it: %v", name, found[name])
		}
		text, err := os.ReadFile(m.Path(".hbmfs", "views", name, "shards.json"))
		if err != nil {
			continue // one bad shard takes them all
		}
		var shards []struct{ Name string }
		must(t, json.Unmarshal(text, &shards))
		for _, s := range shards {
			if _, err := os.Stat(filepath.Join(source, s.Name)); err != nil {
				t.Errorf("%s: its view has a shard that is not there: %v", name, err)
			}
		}
	}
	if log := m.LogText(t); strings.Count(log, "are missing beside it") < 20 {
		t.Errorf("the log tells of %d gaps", strings.Count(log, "are missing beside it"))
	}
}
