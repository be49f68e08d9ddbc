package layout

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// datatroveSmall is what datatrove's TokenizedFile writes for the documents [1,2,3] and [9,50256].
func datatroveSmall() files {
	return files{
		"x.ds":          {1, 0, 2, 0, 3, 0, 9, 0, 0x50, 0xc4},
		"x.ds.index":    {3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0},
		"x.ds.loss":     {1, 1, 0, 1, 1},
		"x.ds.metadata": []byte("gpt2|2\n5\n5 T"),
	}
}

func TestDatatroveGolden(t *testing.T) {
	v := checkTokenSets(t, "datatrove", "datatrove", 2)
	if want := []string{"tokenizer gpt2"}; !slices.Equal(v.Sets[0].Notes, want) {
		t.Errorf("notes %q, want %q", v.Sets[0].Notes, want)
	}
}

func TestDatatroveTypeByArithmetic(t *testing.T) {
	wide := files{"x.ds": make([]byte, 20), "x.ds.index": datatroveSmall()["x.ds.index"]}
	narrow := datatroveSmall()
	delete(narrow, "x.ds.metadata")
	early := datatroveSmall()
	early["x.ds.metadata"] = []byte("gpt2\n5\n5 T")
	for _, c := range []struct {
		f    files
		want DType
	}{{wide, U32}, {narrow, U16}, {early, U16}, {datatroveSmall(), U16}} {
		v, s := oneSet(t, c.f)
		if s.DType != c.want || s.Tokens() != 5 || s.Documents() != 2 {
			t.Errorf("%s, %d tokens, %d documents; want %s, 5, 2", s.DType, s.Tokens(), s.Documents(), c.want)
		}
		if got, _ := readView(t, v, "documents.npy"); !slices.Equal(int64s(got[128:]), []int64{0, 3, 5}) {
			t.Errorf("documents.npy = %x", got)
		}
		if got, ok := readView(t, v, "megatron.idx"); !ok || len(got) != 34+12*2+8*3 {
			t.Errorf("megatron.idx = %x", got)
		}
	}
}

func TestDatatroveWithoutIndex(t *testing.T) {
	f := datatroveSmall()
	delete(f, "x.ds.index")
	v, s := oneSet(t, f)
	if _, ok := readView(t, v, "documents.npy"); ok || s.Tokens() != 5 {
		t.Errorf("%d tokens, documents.npy %v", s.Tokens(), ok)
	}
}

func TestDatatroveBad(t *testing.T) {
	ends := func(v ...uint64) []byte {
		b, _ := binary.Append(nil, binary.LittleEndian, v)
		return b
	}
	for name, c := range map[string]struct {
		file   string
		data   []byte // nil deletes
		object string
		offset int64
	}{
		"no data":                 {"x.ds", nil, "x.ds.index", 0},
		"data cut":                {"x.ds", make([]byte, 8), "x.ds", 8},
		"data cut in a token":     {"x.ds", make([]byte, 9), "x.ds", 9},
		"token size 3":            {"x.ds.metadata", []byte("gpt2|3\n5\n"), "x.ds.metadata", 0},
		"count of 2^63-1":         {"x.ds.metadata", fmt.Appendf(nil, "gpt2|2\n%d\n", int64(math.MaxInt64)), "x.ds", 10},
		"index cut":               {"x.ds.index", ends(3, 5)[:12], "x.ds.index", 12},
		"index empty":             {"x.ds.index", []byte{}, "x.ds.index", 0},
		"index of other data":     {"x.ds.index", ends(3, 4), "x.ds.index", 8},
		"ends go back":            {"x.ds.index", ends(4, 3, 5), "x.ds.index", 8},
		"end of 2^64-1":           {"x.ds.index", ends(math.MaxUint64, 5), "x.ds.index", 0},
		"end past the end":        {"x.ds.index", ends(6, 5), "x.ds.index", 0},
		"loss mask of other data": {"x.ds.loss", []byte{1}, "x.ds.loss", 0},
	} {
		f := datatroveSmall()
		for name, data := range datatroveSmall() {
			f[strings.Replace(name, "x", "y", 1)] = data
		}
		if f[c.file] = c.data; c.data == nil {
			delete(f, c.file)
		}
		v := exercise(t, f)
		if p := v.Problems(); len(p) != 1 || p[0].Object != c.object || p[0].Offset != c.offset {
			t.Errorf("%s: problems %v", name, p)
		}
		if s := v.Sets[0]; len(s.Shards) != 2 || (s.Shards[0].Bad == "") != (c.file == "x.ds.loss") || s.Shards[1].Bad != "" {
			t.Errorf("%s: the shards are not one bad and one good", name)
		}
	}
}

func TestDatatroveNeedsMoreThanAName(t *testing.T) {
	for _, f := range []files{
		{"x.ds": make([]byte, 10)}, {"x.ds": nil}, {"x.ds.loss": {1}}, {"x.ds": make([]byte, 10), "x.ds.metadata": []byte("no numbers\nhere")},
	} {
		if v := exercise(t, f); len(v.Sets) != 0 || len(v.Problems()) != 0 {
			t.Errorf("%v: %d sets, problems %v", slices.Collect(maps.Keys(f)), len(v.Sets), v.Problems())
		}
	}
}

func TestDatatroveTruncation(t *testing.T) {
	for name := range datatroveSmall() {
		sweep(t, datatroveSmall(), name)
		f := datatroveSmall()
		delete(f, "x.ds.metadata")
		sweep(t, f, name)
	}
}

// FuzzDatatrove writes the index of a sound shard again, from the documents that were read.
func FuzzDatatrove(f *testing.F) {
	for _, data := range []files{datatroveSmall(), {"x.ds": make([]byte, 20), "x.ds.index": datatroveSmall()["x.ds.index"]}} {
		f.Add(data["x.ds"], data["x.ds.index"], data["x.ds.metadata"])
	}
	f.Fuzz(func(t *testing.T, data, ends, metadata []byte) {
		v := exercise(t, files{"x.ds": data, "x.ds.index": ends, "x.ds.metadata": metadata})
		for _, s := range v.Sets {
			if s.Bad() != nil {
				continue
			}
			documents, ok := readView(t, v, "documents.npy")
			if again := documents[min(len(documents), 136):]; !ok || !bytes.Equal(again, ends) {
				t.Errorf("read and written again: %x, was %x", again, ends)
			}
			if tokens, ok := readView(t, v, "tokens.bin"); !ok || !bytes.Equal(tokens, data) {
				t.Errorf("tokens.bin = %x", tokens)
			}
		}
	})
}
