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
	entries, err := os.ReadDir(filepath.Join("..", "tests", "testdata"))
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
