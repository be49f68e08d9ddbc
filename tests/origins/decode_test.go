package origins_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
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
