package layout

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// shardOf gives a shard of each format that the golden datasets have, and whose shards no index names, by the format's name.
func shardOf(t *testing.T) map[string]*Object {
	out := map[string]*Object{}
	entries, err := os.ReadDir(filepath.Join("..", "tests", "data", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		for _, s := range index(t, golden(t, e.Name())).Sets {
			if h := s.Shards[0]; len(h.Objects) == 1 && !shardsAreNamed(s) && out[s.Format] == nil && h.Name == h.Objects[0].Name {
				out[s.Format] = h.Objects[0]
			}
		}
	}
	return out
}

// TestEachGapInEachFormat leaves each number out of five shards of each format, by all ways of numbering.
func TestEachGapInEachFormat(t *testing.T) {
	shards := shardOf(t)
	if len(shards) < 8 {
		t.Fatalf("there are shards of %v only", slices.Sorted(maps.Keys(shards)))
	}
	for format, o := range shards {
		data := make([]byte, o.Size)
		if _, err := o.ReadAt(t.Context(), data, 0); err != nil {
			t.Fatal(err)
		}
		base := baseOf(o.Name)
		extension := base[strings.IndexByte(base, '.'):]
		for scheme, first := range map[string]int{"x-%05d-of-00005": 0, "y-%05d-of-00005": 1, "x_%06d": 0, "y_%d": 1} {
			for gap := first - 1; gap < first+5; gap++ {
				f := files{}
				for i := first; i < first+5; i++ {
					if i != gap {
						f[fmt.Sprintf(scheme, i)+extension] = data
					}
				}
				v := index(t, f)
				found := slices.ContainsFunc(v.Problems(), func(p Problem) bool {
					return strings.Contains(p.Detail, fmt.Sprintf("files %d are missing", gap)) || strings.Contains(p.Detail, "4 of the 5")
				})
				counted := strings.Contains(scheme, "-of-")
				invisible := gap < first || !counted && (gap == first+4 || gap == 0) // without a count, the last number may be any, and the first 0 or 1
				if len(v.Sets) > 0 && found == invisible {
					t.Errorf("%s, %s without %d: the gap is found: %v; %v", format, scheme, gap, found, v.Problems())
				}
			}
		}
	}
}

// copies makes five shards of each format whose shards have several objects, as the format names them. Some are named by what the format's writer
// calls them, with the number at the beginning or in the middle.
func copies(t *testing.T) map[string]func(number int) files {
	t.Helper()
	of := func(dataset, stem string, pattern string) func(int) files {
		f := golden(t, dataset)
		return func(number int) files {
			out := files{}
			for name, data := range f {
				if end, ok := strings.CutPrefix(name, stem); ok {
					out[fmt.Sprintf(pattern, number)+end] = data
				}
			}
			if len(out) == 0 {
				t.Fatalf("%s has no shard %s", dataset, stem)
			}
			return out
		}
	}
	return map[string]func(int) files{
		"datatrove":         of("datatrove", "00000_unshuffled.ds", "%05d_unshuffled.ds"),
		"olmo":              of("olmo", "part-0-00000.", "part-0-%05d."),
		"olmo's processes":  of("olmo", "part-0-00000.", "part-%d-00000."),
		"megatron":          of("megatron", "corpus_text_document.", "corpus_%02d_text_document."),
		"megatron, counted": of("megatron", "corpus_text_document.", "corpus-%05d-of-00005_text_document."),
		"fairseq":           of("fairseq", "train.", "train%d."),
		"webdataset":        of("webdataset", "shard-000000", "shard-%06d"),
		"Spark's parquet":   of("parquet-plain", "part-0", "part-%05d-0a1b2c3d-7e8f-4a5b-9c0d-112233445566-c000"),
		"FineWeb's parquet": of("parquet-plain", "part-0", "%03d_00000"),
		"parquet, counted":  of("parquet-plain", "part-0", "train_%d_of_5"),
		"Hugging Face's":    of("parquet-plain", "part-0", "train-%05d-of-00005"),
		"Automodel":         of("automodel-u16", "shard_000000", "shard_%06d"),
		"GGUF": func(n int) files {
			return files{fmt.Sprintf("m-%05d-of-00005.gguf", n): gguf(3, []string{"a"}, []string{"t"})}
		},
		"safetensors, loose": of("safetensors", "model", "model-%05d-of-00005"),
	}
}

// TestEachMissingShard leaves each of five shards out, and each object of each: the data alone, and what lies beside it alone.
func TestEachMissingShard(t *testing.T) {
	for what, shard := range copies(t) {
		for first := range 2 {
			all := files{}
			for i := first; i < first+5; i++ {
				maps.Copy(all, shard(i))
			}
			whole := index(t, all)
			for _, s := range whole.Sets {
				if err := s.Check(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			if p := whole.Problems(); len(p) > 0 || len(whole.Sets) != 1 {
				t.Fatalf("%s from %d: the whole has %d sets, problems %v", what, first, len(whole.Sets), p)
			}
			for i := first; i < first+5; i++ {
				lone := slices.Sorted(maps.Keys(shard(i)))
				for _, without := range append([][]string{lone}, each(lone)...) {
					f := maps.Clone(all)
					for _, name := range without {
						delete(f, name)
					}
					v := index(t, f)
					for _, s := range v.Sets {
						if err := s.Check(t.Context(), nil); err != nil {
							t.Fatal(err)
						}
					}
					counted := strings.Contains(lone[0], "of")
					// Without a count, the last number may be any, and the first 0 or 1.
					invisible := len(without) == len(lone) && !counted && (i == first+4 || i == 0)
					found := len(v.Problems()) > 0
					if invisible && found || !invisible && !found && (whole.Sets[0].Tokens() < 0 || v.Sets[0].Tokens() != whole.Sets[0].Tokens()) {
						t.Errorf("%s from %d without %v: %d of %d tokens, problems %v", what, first, without, v.Sets[0].Tokens(), whole.Sets[0].Tokens(), v.Problems())
					}
				}
			}
		}
	}
}

func each(names []string) (out [][]string) {
	for _, name := range names {
		out = append(out, []string{name})
	}
	return out
}

// TestIndexedShards leaves each shard out of the golden datasets whose index names them all.
func TestIndexedShards(t *testing.T) {
	tried := 0
	for _, dataset := range []string{"mds", "mds-bytes", "mds-multi", "mds-split", "mds-zstd", "litdata", "litdata-tokens", "litdata-arrow", "litdata-zstd", "safetensors-sharded", "megatron-pieces"} {
		all := golden(t, dataset)
		for name := range all {
			if strings.HasSuffix(name, "index.json") || strings.HasSuffix(name, ".idx") {
				continue
			}
			f := maps.Clone(all)
			delete(f, name)
			v := index(t, f)
			for _, s := range v.Sets {
				if err := s.Check(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			if tried++; len(v.Problems()) == 0 {
				t.Errorf("%s without %s: nothing is said", dataset, name)
			}
			for _, view := range v.Views {
				if view.Path != "tokens.npy" {
					continue
				}
				if _, err := view.File(t.Context()); err == nil {
					t.Errorf("%s without %s: it shows tokens.npy", dataset, name)
				}
			}
		}
	}
	if tried < 20 {
		t.Errorf("%d shards were left out", tried)
	}
}

// TestHashesInNames has names of Hugging Face's, each with a hash of its own.
func TestHashesInNames(t *testing.T) {
	f := files{}
	for i := range 3 {
		f[fmt.Sprintf("train-%05d-of-00003-%016x.parquet", i, 0x6f3344faa23e9b0a+uint64(i)<<60)] = parquetFixture(t, "plain")
	}
	if p := index(t, f).Problems(); len(p) > 0 {
		t.Errorf("the whole: %v", p)
	}
	for name := range f {
		less := maps.Clone(f)
		delete(less, name)
		if p := index(t, less).Problems(); len(p) != 1 {
			t.Errorf("without %s: %v", name, p)
		}
	}
}

// TestSiblingsOutsideTheSet has one array that NumPy could not concatenate with the others.
func TestSiblingsOutsideTheSet(t *testing.T) {
	plain := append(NPYHeader(U16, 100), make([]byte, 200)...)
	rows := append(NPYHeader(U16, 10, 10), make([]byte, 200)...)
	for what, odd := range map[string][]byte{
		"Fortran order":     []byte(strings.Replace(string(rows), "False", "True ", 1)),
		"big-endian":        []byte(strings.Replace(string(plain), "<u2", ">u2", 1)),
		"another row shape": rows,
		"another type":      append(NPYHeader(U32, 50), make([]byte, 200)...),
		"another format":    []byte("this is some text and no array at all"),
	} {
		v := index(t, files{"a_000.npy": plain, "a_001.npy": plain, "a_002.npy": odd, "a_003.npy": plain, "b.npy": odd})
		if !slices.ContainsFunc(v.Problems(), func(p Problem) bool { return p.Object == "a_002.npy" }) {
			t.Errorf("%s: nothing is said of it: %v", what, v.Problems())
		}
		v2 := index(t, files{"a_8.npy": plain, "a_9.npy": plain, "a_10.npy": odd, "a_11.npy": plain})
		if !slices.ContainsFunc(v2.Problems(), func(p Problem) bool { return p.Object == "a_10.npy" }) {
			t.Errorf("%s: nothing is said of a number with more digits: %v", what, v2.Problems())
		}
		if slices.ContainsFunc(v.Problems(), func(p Problem) bool { return p.Object == "b.npy" && what != "another format" }) {
			t.Errorf("%s: a file of another name is reported: %v", what, v.Problems())
		}
	}
}

// TestNumbersThatAreNone has names with digits that count nothing.
func TestNumbersThatAreNone(t *testing.T) {
	data := append(NPYHeader(U16, 100), make([]byte, 200)...)
	for _, names := range [][]string{
		{"llama-7.npy", "llama-13.npy", "llama-70.npy"},
		{"2019.npy", "2020.npy", "2021.npy"},
		{"a.1.2.npy", "a.1.9.npy"},
		{"x-99999999999999999999-of-5.npy"},
		{"x-00001-of-99999999999999999999.npy", "x-00002-of-99999999999999999999.npy"},
		{"-of-.npy"},
		{"a-2024-01-03.npy", "a-2024-01-04.npy", "a-2024-01-08.npy"},
		{"CC-MAIN-2023-06_0000.npy", "CC-MAIN-2023-14_0000.npy", "CC-MAIN-2024-10_0000.npy"},
	} {
		f := files{}
		for _, name := range names {
			f[name] = data
		}
		if p := index(t, f).Problems(); len(p) > 0 {
			t.Errorf("%v: %v", names, p)
		}
	}
	huge := files{"x-00001-of-9000000000000000000.npy": data, "x-9000000000000000000-of-9000000000000000000.npy": data}
	if p := index(t, huge).Problems(); len(p) != 1 {
		t.Errorf("%v", p)
	}
}
