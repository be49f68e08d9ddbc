package layout

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// safetensorsFile writes a header of n bytes (its own length when n is 0) and the data.
func safetensorsFile(header string, n uint64, data ...byte) []byte {
	if n == 0 {
		n = uint64(len(header))
	}
	return append(append(binary.LittleEndian.AppendUint64(nil, n), header...), data...)
}

// entries returns the content of the files of a view that is a directory, by name.
func entries(t testing.TB, v *Volume, path string) map[string][]byte {
	t.Helper()
	for _, view := range v.Views {
		if view.Path == path && view.Entries != nil {
			list, err := view.Entries(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			out := map[string][]byte{}
			for _, f := range list {
				if out[f.Name] != nil {
					t.Errorf("%s shows %s twice", path, f.Name)
				}
				out[f.Name] = readFile(t, f)
			}
			return out
		}
	}
	t.Fatalf("no view is called %s", path)
	return nil
}

// wantProblems fails unless exactly the problems that are wanted are there: "object: part of the detail".
func wantProblems(t testing.TB, v *Volume, want ...string) {
	t.Helper()
	got := v.Problems()
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		object, detail, _ := strings.Cut(want[i], ": ")
		ok = got[i].Object == object && strings.Contains(got[i].Detail, detail)
	}
	if !ok {
		t.Errorf("problems %v, want %q", got, want)
	}
}

func TestSafetensorsGolden(t *testing.T) {
	f := golden(t, "safetensors")
	v, s := oneSet(t, f)
	if s.Format != "safetensors" || s.Samples() != -1 || !slices.Equal(s.Notes, []string{"10 tensors"}) {
		t.Errorf("format %s, %d samples, notes %q", s.Format, s.Samples(), s.Notes)
	}
	got := entries(t, v, "tensors/model.safetensors")
	sizes := map[string]int{
		"model.layers.0.weight.bin": 96, "model.layers.0.scale.bin": 4, "model%2Flayers.1%2Fweight.npy": 128 + 60,
		"half.npy": 134, "double.npy": 160, "ids.npy": 184, "mask.npy": 131, "bytes.npy": 133, "step.npy": 132, "empty.npy": 128,
	}
	for name, size := range sizes {
		if len(got[name]) != size {
			t.Errorf("%s has %d bytes, want %d", name, len(got[name]), size)
		}
	}
	if len(got) != len(sizes) {
		t.Errorf("%d files, want %d", len(got), len(sizes))
	}
	if ids := got["ids.npy"]; !bytes.Contains(ids[:128], []byte("'<i8', 'fortran_order': False, 'shape': (7,)")) || ids[128+8*6] != 6 {
		t.Errorf("ids.npy = %q", ids)
	}
	if step := got["step.npy"]; !bytes.Contains(step[:128], []byte("'shape': ()")) || binary.LittleEndian.Uint32(step[128:]) != 1234 {
		t.Errorf("step.npy = %q", step)
	}
	if mask := got["mask.npy"]; !bytes.Equal(mask[128:], []byte{1, 0, 1}) {
		t.Errorf("mask.npy = %q", mask)
	}
}

func TestSafetensorsShardedGolden(t *testing.T) {
	f := golden(t, "safetensors-sharded")
	v, s := oneSet(t, f)
	if len(s.Shards) != len(v.Views) || s.Notes[0] != "20 tensors" {
		t.Errorf("%d shards, %d views, notes %q", len(s.Shards), len(v.Views), s.Notes)
	}
	const shard = "model-00001-of-00002.safetensors"
	if f[shard] == nil {
		t.Fatalf("the golden dataset has no %s", shard)
	}
	delete(f, shard)
	v = index(t, f)
	wantProblems(t, v, "model.safetensors.index.json: the index names "+shard+", which is missing")
	if bad := v.Sets[0].Bad(); bad == nil || bad.Name != shard {
		t.Errorf("bad shard %v", bad)
	}
}

// TestSafetensorsMissingFilesHaveAnOrder lacks files of several indexes.
func TestSafetensorsMissingFilesHaveAnOrder(t *testing.T) {
	f, want := files{}, []string(nil)
	for i := range 20 {
		name := fmt.Sprintf("m%02d.safetensors", i)
		f[name] = safetensorsFile(`{}`, 0)
		f[name+".index.json"] = fmt.Appendf(nil, `{"weight_map":{"a":"missing-%02d"}}`, i)
		want = append(want, fmt.Sprintf("missing-%02d", i))
	}
	var got []string
	for _, h := range index(t, f).Sets[0].Shards[len(want):] {
		got = append(got, h.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("missing files %q, want %q", got, want)
	}
}

func TestSafetensorsIndexIsCompared(t *testing.T) {
	file := safetensorsFile(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[],"data_offsets":[2,3]}}`, 0, 1, 2, 3)
	for weightMap, want := range map[string][]string{
		`{"a":"x.safetensors","b":"x.safetensors"}`:                     nil,
		`{"a":"x.safetensors"}`:                                         {`x.safetensors: 1 tensors are not in the index, "b" first`},
		`{"a":"x.safetensors","b":"x.safetensors","c":"x.safetensors"}`: {`x.safetensors.index.json: 1 tensors that x.safetensors should hold are not in it, "c" first`},
		`{"a":"x.safetensors","b":"x.safetensors","a":"x.safetensors"}`: {`x.safetensors.index.json: "a" is there twice`},
		`{"a":"../../etc/passwd"}`:                                      {`x.safetensors.index.json: tensor "a" is said to be in "../../etc/passwd": the name leaves`},
		`{"a":"/etc/passwd"}`:                                           {`x.safetensors.index.json: tensor "a" is said to be in "/etc/passwd": the name leaves`},
		`{"a":"x.safetensors","b":"x.safetensors","c":"note.txt"}`:      {`x.safetensors.index.json: the index names d/note.txt, which is not a safetensors file`},
		`{"a":7}`:                              {`x.safetensors.index.json: the JSON cannot be read`},
		`{"a":"x.safetensors","b":"x.safetens`: {`x.safetensors.index.json: the JSON cannot be read`},
	} {
		v := index(t, files{"d/x.safetensors": file, "d/x.safetensors.index.json": []byte(`{"weight_map":` + weightMap + `}`), "d/note.txt": []byte("note")})
		if err := v.Sets[0].Check(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			want[i] = "d/" + strings.ReplaceAll(want[i], "that x.", "that d/x.")
		}
		wantProblems(t, v, want...)
		if got := entries(t, v, "d/tensors/x.safetensors"); !bytes.Equal(got["a.npy"][128:], []byte{1, 2}) {
			t.Errorf("a.npy = %q", got["a.npy"])
		}
	}
}

func TestSafetensorsHostileHeaders(t *testing.T) {
	one := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"a":{"dtype":%q,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	for want, file := range map[string][]byte{
		"a header of 100000001 bytes":                   safetensorsFile(one("U8", "[4]", "[0,4]"), 100_000_001, 1, 2, 3, 4),
		"a header of 9223372036854775808":               safetensorsFile(one("U8", "[4]", "[0,4]"), 1<<63, 1, 2, 3, 4),
		"a header of 4000 bytes":                        safetensorsFile(one("U8", "[4]", "[0,4]"), 4000, 1, 2, 3, 4),
		`expected 4 bytes`:                              safetensorsFile(one("U8", "[4]", "[0,9223372036854775807]"), 0, 1, 2, 3, 4),
		"the data_offsets [-1,3]":                       safetensorsFile(one("U8", "[4]", "[-1,3]"), 0, 1, 2, 3, 4),
		"the data_offsets [3,1]":                        safetensorsFile(one("U8", "[4]", "[3,1]"), 0, 1, 2, 3, 4),
		"ends at 5 of the data, which has 4 bytes":      safetensorsFile(one("U8", "[5]", "[0,5]"), 0, 1, 2, 3, 4),
		"shape [9223372036854775808], expected a list":  safetensorsFile(one("U8", "[9223372036854775808]", "[0,4]"), 0, 1, 2, 3, 4),
		"more than any file can hold":                   safetensorsFile(one("U8", "[4294967296,4294967296]", "[0,4]"), 0, 1, 2, 3, 4),
		"the shape [-2,-2], expected a list":            safetensorsFile(one("U8", "[-2,-2]", "[0,4]"), 0, 1, 2, 3, 4),
		"expected 3 bytes":                              safetensorsFile(one("U8", "[3]", "[0,4]"), 0, 1, 2, 3, 4),
		"[1152921504606846976], which is more than any": safetensorsFile(one("I64", "[1152921504606846976]", "[0,4]"), 0, 1, 2, 3, 4),
		"expected 1.5 bytes":                            safetensorsFile(one("F4", "[3]", "[0,4]"), 0, 1, 2, 3, 4),
		"expected [begin, end]":                         safetensorsFile(one("U8", "[4]", "[0,4,4]"), 0, 1, 2, 3, 4),
		`"dtype" of tensor "a" is there twice`:          safetensorsFile(`{"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}`, 0, 1, 2, 3, 4),
		`"a" is there twice`:                            safetensorsFile(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}`, 0, 1, 2, 3, 4),
		"overlaps":                                      safetensorsFile(`{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}`, 0, 1, 2, 3, 4),
		"leaves 1 bytes unused":                         safetensorsFile(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}`, 0, 1, 2, 3, 4),
		"the tensors end at":                            safetensorsFile(one("U8", "[2]", "[0,2]"), 0, 1, 2, 3, 4),
		"the file has 12 bytes":                         safetensorsFile(`{}`, 0, 1, 2),
		"expected the end":                              safetensorsFile(`{} {}`, 0),
		"its header is not UTF-8":                       safetensorsFile("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, 1, 2, 3, 4),
		"must be an object of strings":                  safetensorsFile(`{"__metadata__":{"a":1}}`, 0),
		"expected a key":                                safetensorsFile(`{]`, 0),
		"a header of 2336927755350992246 bytes":         []byte("version https://git-lfs.github.com/spec/v1"),
		"the length of the header alone":                []byte("short"),
		"expected a value":                              safetensorsFile("\x00\x00\x00\x00", 0),
	} {
		v := index(t, files{"x.safetensors": file, "y.safetensors": safetensorsFile(one("U8", "[1]", "[0,1]"), 0, 9)})
		if err := v.Sets[0].Check(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		wantProblems(t, v, "x.safetensors: "+want)
		if got := entries(t, v, "tensors/y.safetensors"); len(got) != 1 {
			t.Errorf("%s: the sound file shows %d tensors", want, len(got))
		}
	}
}

func TestSafetensorsUnusualTensors(t *testing.T) {
	file := safetensorsFile(`{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"..":{"dtype":"F4","shape":[2],"data_offsets":[1,2]},`+
		`"../../etc/passwd":{"dtype":"F64X","shape":[9],"data_offsets":[2,4]},"a\u0000%":{"dtype":"C64","shape":[0],"data_offsets":[4,4]},`+
		`"`+strings.Repeat("n", 201)+`":{"dtype":"I8","shape":[1,1],"data_offsets":[4,5]},`+
		`"vast":{"dtype":"I64","shape":[0,4611686018427387904],"data_offsets":[5,5]}}`, 0, 1, 2, 3, 4, 5)
	v := index(t, files{"noname": file})
	if err := v.Sets[0].Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, v, "noname: its name is empty", `noname: tensor "../../etc/passwd" has the type "F64X"`, "noname: needs more than 200 bytes")
	got := entries(t, v, "tensors/noname")
	for name, want := range map[string]string{"%2E..bin": "\x02", "%2E.%2F..%2Fetc%2Fpasswd.bin": "\x03\x04", "a%00%25.bin": "", "vast.bin": ""} {
		if data, ok := got[name]; !ok || string(data) != want {
			t.Errorf("%s = %q, %v; want %q", name, data, ok, want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d files", len(got))
	}
}

func TestSafetensorsTruncation(t *testing.T) {
	sweep(t, golden(t, "safetensors"), "model.safetensors")
	sharded := golden(t, "safetensors-sharded")
	sweep(t, sharded, "model.safetensors.index.json")
}

// FuzzSafetensors writes a header that was believed again: it must mean the same tensors, which cover the data.
func FuzzSafetensors(f *testing.F) {
	f.Add(golden(f, "safetensors")["model.safetensors"])
	f.Add(safetensorsFile(`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}  `, 0, 1))
	f.Add(safetensorsFile(`{"__metadata__":{"a":"b"}}`, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		exercise(t, files{"x.safetensors": data})
		h, err := safetensorsRead(t.Context(), headerBudget{}, Bytes("x", data))
		if err != nil {
			return
		}
		tensors := h.Tensors
		base := 8 + int64(binary.LittleEndian.Uint64(data))
		type info struct {
			DType   string  `json:"dtype"`
			Shape   []int64 `json:"shape"`
			Offsets []int64 `json:"data_offsets"`
		}
		header := map[string]info{}
		var covered []byte
		for _, x := range tensors {
			header[x.Name] = info{x.DType, x.Shape, []int64{x.Begin - base, x.End - base}}
			covered = append(covered, data[x.Begin:x.End]...)
		}
		if !bytes.Equal(covered, data[base:]) {
			t.Errorf("the tensors cover %d bytes of %d", len(covered), len(data[base:]))
		}
		written, err := json.Marshal(header)
		if err != nil {
			t.Fatal(err)
		}
		again, err := safetensorsRead(t.Context(), headerBudget{}, Bytes("y", safetensorsFile(string(written), 0, covered...)))
		if err != nil || len(again.Tensors) != len(tensors) {
			t.Fatalf("written again: %d tensors were there: %v", len(tensors), err)
		}
		for _, x := range again.Tensors {
			if was := header[x.Name]; was.DType != x.DType || !slices.Equal(was.Shape, x.Shape) {
				t.Errorf("tensor %q was %v, is %v", x.Name, was, x)
			}
		}
	})
}

func TestSafetensorsIndexName(t *testing.T) {
	for base, want := range map[string]string{
		"model.safetensors":                "model.safetensors.index.json",
		"model-00001-of-00002.safetensors": "model.safetensors.index.json",
		"a-b-1-of-9.safetensors":           "a-b.safetensors.index.json",
		"one-of-two.safetensors":           "one-of-two.safetensors.index.json",
		"-1-of-2.safetensors":              "-1-of-2.safetensors.index.json",
	} {
		if got := safetensorsIndexName(base); got != want {
			t.Errorf("%s: %s, want %s", base, got, want)
		}
	}
}
