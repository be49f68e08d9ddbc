package decode

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// TestRefused has indexes that cannot be replaced: all that they name stays.
func TestRefused(t *testing.T) {
	data := []byte("data")
	coded := gzipOf(t, data)
	one := func(change func(raw, zip map[string]any)) []byte {
		return index(t, entry("s", "s.z", data, coded, "gz", change))
	}
	ok := entry("s", "s.z", data, coded, "gz", nil)
	for name, c := range map[string]struct {
		index []byte
		says  string
	}{
		"brotli":       {index(t, entry("s", "s.z", data, coded, "br:11", nil)), "brotli"},
		"unknown":      {index(t, entry("s", "s.z", data, coded, "lzma", nil)), "not known"},
		"missing":      {one(func(_, zip map[string]any) { zip["basename"] = "t.z" }), "not there"},
		"size":         {one(func(_, zip map[string]any) { zip["bytes"] = 1 }), "the index says 1"},
		"huge":         {one(func(raw, _ map[string]any) { raw["bytes"] = int64(1) << 33 }), "more than a shard"},
		"negative":     {one(func(raw, _ map[string]any) { raw["bytes"] = -1 }), "more than a shard"},
		"outside":      {one(func(raw, _ map[string]any) { raw["basename"] = "../s" }), "no name below"},
		"absolute":     {one(func(_, zip map[string]any) { zip["basename"] = "/s.z" }), "no name below"},
		"a directory":  {one(func(raw, _ map[string]any) { raw["basename"] = "dir" }), "no file can be"},
		"no directory": {one(func(raw, _ map[string]any) { raw["basename"] = "none/s" }), "no file can be"},
		"elsewhere":    {one(func(raw, _ map[string]any) { raw["basename"] = "dir/s" }), "another directory"},
		"twice":        {index(t, ok, ok), "no file can be"},
		"too many":     {index(t, ok, ok, ok, ok), "more shards than there are files"},
		"one of two":   {index(t, ok, entry("s2", "s.z", data, coded, "br", nil)), "brotli"},
		"big block": {index(t, entry("s", "s.z", data, coded, "snappy", func(raw, _ map[string]any) { raw["bytes"] = maxBlock + 1 })),
			"in memory"},
	} {
		f := &files{data: map[string][]byte{"s.z": coded, "dir/f": {1}, "index.json": c.index}}
		w := wrap(t, f, false, 0)
		if len(w.Objects()) != 0 || !slices.Equal(w.names(), []string{"dir/f", "index.json", "s.z"}) {
			t.Errorf("%s: there are %q", name, w.names())
		}
		if p := w.listing.Problems; len(p) != 1 || p[0].Object != "index.json" || !strings.Contains(p[0].Detail, c.says) {
			t.Errorf("%s: problems %v, want one that says %q", name, p, c.says)
		}
	}
	for name, text := range map[string]string{
		"no JSON": `{"zip_data"`, "plain": `{"shards": []}`, "another": `{"chunks": [{"zip_data": 1}]}`, "a list": `["zip_data"]`,
		"no shards": `{"shards": {"zip_data": 1}}`, "odd": `{"shards": [{"zip_data": 7}]}`, "null": `{"shards": [{"zip_data": null}, null]}`,
		"more": `{"shards": []} "zip_data"`, "no raw": `{"shards": [{"zip_data": {}, "compression": "gz"}]}`,
	} {
		f := &files{data: map[string][]byte{"index.json": []byte(text)}}
		if w := wrap(t, f, false, 0); len(w.Objects()) != 0 || len(w.listing.Problems) != 0 {
			t.Errorf("%s: %q, problems %v", name, w.names(), w.listing.Problems)
		}
	}
}

// TestIndexes of which several name the same shards, as merge_index leaves them, and raw files that are there already.
func TestIndexes(t *testing.T) {
	data, other := []byte("data"), []byte("other")
	coded := gzipOf(t, data)
	f := &files{data: map[string][]byte{
		"a/s.z": coded, "a/index.json": index(t, entry("s", "s.z", data, coded, "gz", nil)),
		"b/s.z": coded, "b/s": other, "b/index.json": index(t, entry("s", "s.z", data, coded, "gz", nil)),
		"index.json": index(t, entry("a/s", "a/s.z", data, coded, "gz", nil), entry("b/s", "b/s.z", data, coded, "gz", nil)),
	}}
	w := wrap(t, f, true, 1<<20)
	if want := []string{"a/index.json", "a/s", "b/index.json", "b/s", "b/s.z", "index.json"}; !slices.Equal(w.names(), want) || len(w.listing.Problems) > 0 {
		t.Fatalf("there are %q, want %q; problems %v", w.names(), want, w.listing.Problems)
	}
	for name, want := range map[string][]byte{"a/s": data, "b/s": other} {
		if got, err := w.read(t, name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	checkIndex(t, w, 2)

	f.data["index.json"] = index(t, entry("a/s", "a/s.z", data, coded, "gz", func(raw, _ map[string]any) { raw["bytes"] = 5 }))
	f.data["b/index.json"] = index(t, entry("t", "s.z", data, coded, "br", nil))
	w = wrap(t, f, false, 0)
	if len(w.listing.Problems) != 2 || !slices.Contains(w.names(), "b/s.z") {
		t.Errorf("there are %q, problems %v", w.names(), w.listing.Problems)
	}
	// Each of a/ and the root has one of two indexes that contradict each other: what the refused one names stays.
	if !slices.Contains(w.names(), "a/s") || !slices.Contains(w.names(), "a/s.z") {
		t.Errorf("there are %q", w.names())
	}
}
