package layout

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
)

// litdataFile writes a chunk as LitData's BinaryWriter does.
func litdataFile(items ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(items)))
	at := uint32(4 * (len(items) + 2))
	b = binary.LittleEndian.AppendUint32(b, at)
	for _, item := range items {
		at += uint32(len(item))
		b = binary.LittleEndian.AppendUint32(b, at)
	}
	return append(b, bytes.Join(items, nil)...)
}

// litdataIndex writes an index of one chunk; chunk and config replace or add members.
func litdataIndex(size, items int, dim any, replace ...map[string]any) []byte {
	chunk := map[string]any{"chunk_bytes": size, "chunk_size": items, "dim": dim, "filename": "chunk-0-0.bin"}
	config := map[string]any{"compression": nil, "data_format": []string{"no_header_numpy:5"}, "encryption": nil, "item_loader": "TokensLoader"}
	for i, m := range replace {
		maps.Copy([]map[string]any{chunk, config}[i], m)
	}
	out, err := json.Marshal(map[string]any{"chunks": []any{chunk}, "config": config, "updated_at": "1"})
	if err != nil {
		panic(err)
	}
	return out
}

func TestLitdataTokensGolden(t *testing.T) {
	v := checkGolden(t, "litdata-tokens")
	checkGoldenViews(t, v, "litdata-tokens")
	if n := v.Sets[0].Documents(); n != 24 { // the items that the writer was given
		t.Errorf("%d documents, want 24", n)
	}
	if _, ok := readView(t, v, "megatron.idx"); !ok {
		t.Error("the documents make no Megatron index")
	}
}

func TestLitdataThatCannotBeReadHere(t *testing.T) {
	data := litdataFile([]byte{1, 0})
	for why, config := range map[string]map[string]any{
		"compressed": {"compression": "zstd"},
		"encrypted":  {"encryption": map[string]any{"algorithm": "fernet", "level": "chunk"}},
	} {
		size := len(data)
		if why == "compressed" {
			size += 1000 // the size before compression
		}
		_, s := oneSet(t, files{"chunk-0-0.bin": data, "index.json": litdataIndex(size, 1, 1, nil, config)})
		if s.DType != DTypeUnknown || s.Samples() != 1 || !strings.Contains(s.NoTokens, why) {
			t.Errorf("%s: dtype %s, %d samples, NoTokens %q", why, s.DType, s.Samples(), s.NoTokens)
		}
	}
}

func TestLitdataItemsAreServedAsTheyAre(t *testing.T) {
	for dataset, why := range map[string]string{"litdata": "trees of leaves", "litdata-zstd": "compressed"} {
		v, s := oneSet(t, golden(t, dataset))
		e := expected(t, dataset)
		if s.Format != "litdata" || len(s.Shards) != e.Shards || s.Samples() != *e.Samples || !strings.Contains(s.NoTokens, why) {
			t.Errorf("%s: format %s, %d shards, %d samples, NoTokens %q", dataset, s.Format, len(s.Shards), s.Samples(), s.NoTokens)
		}
		if _, ok := readView(t, v, "tokens.bin"); ok {
			t.Errorf("%s: tokens.bin exists", dataset)
		}
	}
}

// The bytes that facts about the writer give for two items of u16.
func TestLitdataChunkByHand(t *testing.T) {
	chunk := []byte{2, 0, 0, 0, 0x10, 0, 0, 0, 0x16, 0, 0, 0, 0x1a, 0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0}
	if got := litdataFile(chunk[16:22], chunk[22:]); !bytes.Equal(got, chunk) {
		t.Fatalf("the test's writer gives %x", got)
	}
	for _, dim := range []any{5, nil} {
		v, s := oneSet(t, files{"chunk-0-0.bin": chunk, "index.json": litdataIndex(len(chunk), 2, dim)})
		if s.DType != U16 || s.Tokens() != 5 || s.Documents() != 2 {
			t.Errorf("dtype %s, %d tokens, %d documents", s.DType, s.Tokens(), s.Documents())
		}
		if got, _ := readView(t, v, "tokens.bin"); !bytes.Equal(got, chunk[16:]) {
			t.Errorf("tokens.bin = %x", got)
		}
	}
}

func TestLitdataTypes(t *testing.T) {
	for format, want := range map[string]DType{
		"no_header_tensor:16": I32, "no_header_tensor:18": I64, "no_header_tensor:20": U16, "no_header_tensor:11": U8,
		"no_header_numpy:5": U16, "no_header_numpy:6": U32, "no_header_numpy:0": I8, "no_header_numpy:12": 0,
		"no_header_numpy:99": 0, "no_header_tensor:-1": 0, "no_header_tensor": 0, "tensor:16": 0, "": 0,
	} {
		data := litdataFile(make([]byte, 8))
		v := index(t, files{"chunk-0-0.bin": data, "index.json": litdataIndex(len(data), 1, nil, nil, map[string]any{"data_format": []string{format}})})
		if s := v.Sets[0]; s.DType != want || (want == 0) != (s.NoTokens != "") {
			t.Errorf("%s: dtype %s, NoTokens %q", format, s.DType, s.NoTokens)
		}
	}
}

// TestLitdataIndexOfParquetFiles is a directory that litdata.index_parquet_dataset was called for.
func TestLitdataIndexOfParquetFiles(t *testing.T) {
	f := golden(t, "parquet-plain")
	var chunks []map[string]any
	for name, data := range f {
		chunks = append(chunks, map[string]any{"chunk_bytes": 7 * len(data), "chunk_size": 10, "dim": nil, "filename": name})
	}
	list, err := json.Marshal(map[string]any{"chunks": chunks, "config": map[string]any{
		"compression": nil, "data_format": []string{"Int64"}, "data_spec": nil, "encryption": nil, "item_loader": "ParquetLoader"}})
	if err != nil {
		t.Fatal(err)
	}
	f["index.json"] = list
	if _, s := oneSet(t, f); s.Format != "parquet" || len(s.Shards) != len(f)-1 {
		t.Errorf("%s of %d shards", s.Format, len(s.Shards))
	}
	if _, err := Index(t.Context(), f.objects(), Options{Format: "litdata"}); err == nil || !strings.Contains(err.Error(), "--format parquet") {
		t.Errorf("error %v should name the format that shows them", err)
	}
}

func TestLitdataHostileIndex(t *testing.T) {
	data := litdataFile([]byte{1, 0, 2, 0}, []byte{3, 0})
	patch := func(at int, v uint32) []byte {
		out := bytes.Clone(data)
		binary.LittleEndian.PutUint32(out[at:], v)
		return out
	}
	chunk := func(key string, v any) []byte {
		return litdataIndex(len(data), 2, 3, map[string]any{key: v})
	}
	for _, c := range []struct {
		name    string
		index   []byte
		chunk   []byte
		problem string
	}{
		{"size", litdataIndex(len(data)+1, 2, 3), data, "the index says"},
		{"negative size", litdataIndex(-5, 2, 3), data, "the index says 0"},
		{"items", litdataIndex(len(data), 3, 3), data, "tokens follow"},
		{"huge items", litdataIndex(len(data), 1<<40, 3), data, "cannot count"},
		{"items of 2^63", chunk("chunk_size", json.RawMessage("9223372036854775808")), data, "names \"\""},
		{"negative items", litdataIndex(len(data), -1, 3), data, "cannot count"},
		{"tokens", litdataIndex(len(data), 2, 4), data, "the index says 4"},
		{"name is a number", chunk("filename", 7), data, "names \"\""},
		{"outside", chunk("filename", "../../etc/passwd"), data, "leaves the dataset"},
		{"absolute", chunk("filename", "/etc/passwd"), data, "leaves the dataset"},
		{"missing", chunk("filename", "chunk-9-9.bin"), data, "not there"},
		{"itself", chunk("filename", "index.json"), data, "itself"},
		{"header count", litdataIndex(len(data), 2, 3), patch(0, 0xffffffff), "the file counts 4294967295"},
		{"first offset", litdataIndex(len(data), 2, 3), patch(4, 18), "entry 0"},
		{"last offset", litdataIndex(len(data), 2, 3), patch(12, 20), "entry 2"},
		{"past the end", litdataIndex(len(data), 2, 3), patch(8, 0xfffffff0), "lies outside"},
		{"backward", litdataIndex(len(data), 2, 3), patch(8, 4), "lies outside"},
		{"between tokens", litdataIndex(len(data), 2, 3), patch(8, 19), "no whole number"},
	} {
		v := exercise(t, files{"chunk-0-0.bin": c.chunk, "index.json": c.index})
		if p := fmt.Sprint(v.Problems()); !strings.Contains(p, c.problem) {
			t.Errorf("%s: problems %s, want %q", c.name, p, c.problem)
		}
		for _, view := range v.Views {
			if view.File == nil {
				continue
			}
			if f, err := view.File(t.Context()); err == nil {
				t.Errorf("%s: %s exists, %d bytes", c.name, view.Path, f.Size())
			}
		}
	}
}

func TestLitdataIndexThatIsNone(t *testing.T) {
	for _, text := range []string{
		`{"chunks": [`, `{"chunks": [{]}`, `{"chunks": []} x`, `{"chunks": [], "chunks": []}`, `{"chunks": [3, "a"], "config": 4}`,
		`{"config": {"chunks": []}}`, `{"a": "chunks", "b": []}`, `["chunks"]`, `{"chunks": {}}`, `{"chunks": [` + strings.Repeat("[", 5000),
	} {
		for _, s := range exercise(t, files{"index.json": []byte(text)}).Sets {
			if s.Format == "litdata" {
				t.Errorf("%.40s is taken for an index", text)
			}
		}
	}
}

func TestLitdataOneBadChunkLeavesTheOthers(t *testing.T) {
	f := golden(t, "litdata-tokens")
	name := expected(t, "litdata-tokens").Splits[""].Files[1]
	f[name] = f[name][:len(f[name])-1]
	v := index(t, f)
	bad := 0
	for _, h := range v.Sets[0].Shards {
		if h.Bad != "" {
			bad++
		}
	}
	if bad != 1 || len(v.Problems()) != 1 || v.Problems()[0].Object != name {
		t.Errorf("%d bad chunks, problems %v", bad, v.Problems())
	}
}

func TestLitdataTruncation(t *testing.T) {
	for _, dataset := range []string{"litdata-tokens", "litdata"} {
		f := golden(t, dataset)
		sweep(t, f, "index.json")
		sweep(t, f, expected(t, dataset).Splits[""].Files[0])
	}
}

// FuzzLitdata writes what it read again and compares: a chunk that is believed is its tokens and its documents.
func FuzzLitdata(f *testing.F) {
	for _, items := range [][][]byte{{{1, 0, 2, 0}, {3, 0}}, {{}}, {}} {
		data := litdataFile(items...)
		f.Add(litdataIndex(len(data), len(items), nil), data)
	}
	f.Add([]byte(`{"chunks": [{"filename": "chunk-0-0.bin"}], "config": {}}`), []byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, index, data []byte) {
		v := exercise(t, files{"chunk-0-0.bin": data, "index.json": index})
		for _, s := range v.Sets {
			if s.Format != "litdata" || s.Bad() != nil || s.NoTokens != "" || len(s.Shards) != 1 {
				continue
			}
			if s.Shards[0].Name != "chunk-0-0.bin" {
				continue
			}
			tokens, ok := readView(t, v, "tokens.bin")
			starts := make([]int64, s.Documents()+1)
			if err := s.Shards[0].Index.Starts(t.Context(), starts, 0); err != nil || !ok {
				t.Fatalf("a chunk that was checked has no views: %v", err)
			}
			var items [][]byte
			for i := range starts[1:] {
				items = append(items, tokens[starts[i]*int64(s.DType.Size()):starts[i+1]*int64(s.DType.Size())])
			}
			if again := litdataFile(items...); !bytes.Equal(again, data) {
				t.Errorf("read and written again: %x, was %x", again, data)
			}
		}
	})
}
