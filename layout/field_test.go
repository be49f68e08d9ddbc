package layout

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// samples reads the directory fields of the only set of a dataset: for each field the bytes of each sample, and its
// entry in fields.json. Fields that are not shown have none.
func samples(t testing.TB, v *Volume) (values map[string][][]byte, about fieldsJSON) {
	t.Helper()
	files := entries(t, v, "fields")
	if err := json.Unmarshal(files[fieldsIndex], &about); err != nil {
		t.Fatal(err)
	}
	values = map[string][][]byte{}
	shown := 1
	for _, f := range about.Fields {
		if f.Missing != "" {
			continue
		}
		dtype, err := ParseDType(f.DType)
		if err != nil {
			t.Fatal(err)
		}
		item := int64(dtype.Size())
		of := make([][]byte, about.Samples)
		if f.Kind == "dense" {
			shown++
			header := NPYHeader(dtype, append([]int64{about.Samples}, f.Shape...)...)
			raw, ok := bytes.CutPrefix(files[f.File+".npy"], header)
			if !ok || int64(len(raw)) != f.Bytes {
				t.Fatalf("%s.npy has %d bytes behind its header, want %d", f.File, len(raw), f.Bytes)
			}
			for i := range of {
				n := int64(len(raw)) / about.Samples
				of[i] = raw[int64(i)*n : int64(i+1)*n]
			}
		} else {
			shown += 2
			offsets, ok := bytes.CutPrefix(files[f.File+".offsets.npy"], NPYHeader(I64, about.Samples+1))
			raw, sound := bytes.CutPrefix(files[f.File+".values.npy"], NPYHeader(dtype, f.Bytes/item))
			if !ok || !sound || int64(len(raw)) != f.Bytes || int64(len(offsets)) != 8*(about.Samples+1) {
				t.Fatalf("%s has %d bytes of offsets and %d of values", f.File, len(offsets), len(raw))
			}
			at := func(i int64) int64 { return item * int64(binary.LittleEndian.Uint64(offsets[8*i:])) }
			for i := range about.Samples {
				of[i] = raw[at(i):at(i+1)]
			}
			if at(0) != 0 || at(about.Samples) != f.Bytes {
				t.Fatalf("the offsets of %s go from %d to %d, want 0 to %d", f.File, at(0), at(about.Samples), f.Bytes)
			}
		}
		values[f.Name] = of
	}
	if shown != len(files) {
		t.Errorf("%d files in fields, want %d", len(files), shown)
	}
	return values, about
}

// webdatasetReads is an independent reading of archives as webdataset reads them: the samples of all, and the reason
// why it would fail.
func webdatasetReads(t testing.TB, archives ...[]byte) (out []map[string]string, fails string) {
	t.Helper()
	expression := regexp.MustCompile(`^((?:.*/|)[^.]+)[.]([^/]*)$`)
	meta := regexp.MustCompile(`^__[^/]*__($|/)`)
	for _, archive := range archives {
		var current map[string]string
		for r := tar.NewReader(bytes.NewReader(archive)); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, err.Error()
			}
			m := expression.FindStringSubmatch(h.Name)
			if !isRegular(h) || meta.MatchString(h.Name) || m == nil {
				continue
			}
			if current == nil || current["__key__"] != m[1] {
				current = map[string]string{"__key__": m[1]}
				out = append(out, current)
			}
			name := strings.ToLower(m[2])
			if _, twice := current[name]; twice {
				return nil, "twice"
			}
			data, err := io.ReadAll(r)
			if err != nil {
				return nil, err.Error()
			}
			current[name] = string(data)
		}
	}
	return out, ""
}

// checkWebdataset compares the fields of archives with that reading.
func checkWebdataset(t *testing.T, f files) {
	t.Helper()
	var archives [][]byte
	v := index(t, f)
	for _, h := range v.Sets[0].Shards {
		archives = append(archives, f[h.Name])
	}
	want, fails := webdatasetReads(t, archives...)
	if fails != "" {
		t.Fatal(fails)
	}
	got, about := samples(t, v)
	if int(about.Samples) != len(want) {
		t.Fatalf("%d samples, want %d", about.Samples, len(want))
	}
	names := map[string]bool{}
	for i, sample := range want {
		for name, data := range sample {
			if name == "__key__" {
				continue
			}
			names[name] = true
			if values := got[name]; values == nil && name != "" {
				t.Errorf("no field %q", name)
			} else if values != nil && string(values[i]) != data {
				t.Errorf("sample %d: %q is %q, want %q", i, name, values[i], data)
			}
		}
		for name, values := range got {
			if _, ok := sample[name]; !ok && len(values[i]) > 0 {
				t.Errorf("sample %d: %q is %q, want nothing", i, name, values[i])
			}
		}
	}
	if len(about.Fields) != len(names) {
		t.Errorf("fields %+v, want %v", about.Fields, names)
	}
}

func member0(name, data string) tar.Header { return tar.Header{Name: name, Linkname: data} }

func TestWebdatasetFields(t *testing.T) {
	checkWebdataset(t, golden(t, "webdataset"))
	long := strings.Repeat("long/", 40) + "name"
	one := tarOf(t, member0("a.jpg", "12"), member0("a.CLS", "7"), member0("a.seg.png", ""), member0("b.jpg", "345"),
		member0("readme", "no field"), member0("__meta__/x.json", "{}"), member0("b.cls", "8"), member0("dir/.hidden", "h"),
		member0(long+".jpg", "long"), tar.Header{Name: long + ".cls", Typeflag: tar.TypeSymlink, Linkname: "elsewhere"})
	two := tarOf(t, member0("b.jpg", "again"), member0("c.txt", "only here"), member0("d.", "no name"), member0("é.ÄÖ", "ü"))
	checkWebdataset(t, files{"train-0.tar": one, "train-1.tar": two, "train-2.tar": tarOf(t, member0("none", "x"))})
	checkWebdataset(t, files{"train-0.tar": tarOf(t, member0("none", "x"))})
}

func TestWebdatasetFieldsAreRefused(t *testing.T) {
	good := tarOf(t, member0("a.jpg", "12"), member0("b.jpg", strings.Repeat("x", 2000)))
	many := make([]tar.Header, maxFields+1)
	for i := range many {
		many[i] = member0(fmt.Sprintf("a.%d", i), "")
	}
	for what, c := range map[string]struct {
		archive []byte
		why     string
	}{
		"cut in a member": {good[:2500], "b.tar is bad"},
		"twice":           {tarOf(t, member0("a.jpg", "1"), member0("a.JPG", "2")), `b.tar: sample "a" has the field "jpg" twice`},
		"own":             {tarOf(t, member0("a.__key__", "1")), `b.tar: a sample cannot have a field "__key__"`},
		"many":            {tarOf(t, many...), "samples of b.tar have more than"},
		"a long name":     {tarOf(t, member0("a."+strings.Repeat("x", 300), "1")), "b.tar: a sample cannot have a field"},
	} {
		v := index(t, files{"a.tar": good, "b.tar": c.archive})
		if list, err := v.Views[len(v.Views)-1].Entries(t.Context()); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %d files, %v; want %q", what, len(list), err, c.why)
		}
	}
}

// FuzzWebdatasetFields compares the fields of an archive with the independent reading: they have the same bytes, or none
// are shown.
func FuzzWebdatasetFields(f *testing.F) {
	f.Add(golden(f, "webdataset")["shard-000000.tar"])
	f.Add(golden(f, "tar")["pax.tar"])
	f.Add(golden(f, "tar")["gnu.tar"])
	f.Add(tarOf(f, member0("a.jpg", "12"), member0("a.cls", ""), member0("b.CLS", "3")))
	f.Fuzz(func(t *testing.T, data []byte) {
		v := index(t, files{"x.tar": data})
		if len(v.Sets) != 1 || v.Sets[0].Format != "webdataset" {
			return
		}
		all, err := v.Sets[0].samplesOf(t.Context())
		if err != nil {
			return
		}
		want, fails := webdatasetReads(t, data)
		if fails != "" || len(want) != int(all.samples) {
			t.Fatalf("%d samples, want %d (%s)", all.samples, len(want), fails)
		}
		for _, of := range all.fields {
			for i, sample := range want {
				var edges [2]int64
				if of.missing != "" {
					continue
				}
				if err := of.index.Starts(t.Context(), edges[:], int64(i)); err != nil {
					t.Fatal(err)
				}
				value := make([]byte, edges[1]-edges[0])
				if _, err := of.values.ReadAt(t.Context(), value, edges[0]); err != nil && len(value) > 0 && err != io.EOF || string(value) != sample[of.name] {
					t.Errorf("%q of sample %d is %q (%v), want %q", of.name, i, value, err, sample[of.name])
				}
			}
		}
	})
}

// FuzzSampleKey compares the key with the expression of webdataset.
func FuzzSampleKey(f *testing.F) {
	expression := regexp.MustCompile(`^((?:.*/|)[^.]+)[.]([^/]*)$`)
	for _, name := range []string{"a.b", "a/b.c.d", ".h", "d/.h", "d.e/.h", "d.e/f/.h", "//.x", "/.x", "a//.x", "a\n/b.c", "a.\nb/c.d", "a.b\n", "x", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if regexp.MustCompile(`^__[^/]*__($|/)`).MatchString(name) {
			return
		}
		key, extension, ok := sampleKey(name)
		m := expression.FindStringSubmatch(name)
		if ok != (m != nil) || ok && (key != m[1] || extension != m[2]) {
			t.Errorf("%q: key %q, extension %q, %t; want %q", name, key, extension, ok, m)
		}
	})
}

// mdsColumnsOf writes a shard of columns, each of a name, an encoding and a size (0 for variable), with the bytes of
// each sample's values.
func mdsColumnsOf(t testing.TB, columns [][3]any, values ...[][]byte) files {
	t.Helper()
	var names, encodings, sizes []any
	for _, c := range columns {
		names, encodings = append(names, c[0]), append(encodings, c[1])
		if c[2] == 0 {
			sizes = append(sizes, nil)
		} else {
			sizes = append(sizes, c[2])
		}
	}
	about := map[string]any{"column_names": names, "column_encodings": encodings, "column_sizes": sizes}
	text, err := json.Marshal(about)
	if err != nil {
		t.Fatal(err)
	}
	var raw [][]byte
	for _, sample := range values {
		var head, body []byte
		for k, v := range sample {
			if sizes[k] == nil {
				head = binary.LittleEndian.AppendUint32(head, uint32(len(v)))
			}
			body = append(body, v...)
		}
		raw = append(raw, append(head, body...))
	}
	shard := mdsFileOf(string(text), raw...)
	return files{"index.json": mdsIndexOf(mdsShardOf(len(values), shard, "", nil, about)), "shard.00000.mds": shard}
}

func mdsValue(code int, shape []byte, values string) []byte {
	var b []byte
	if code > 0 {
		b = append(b, byte(code))
	}
	return append(append(append(b, byte(len(shape)<<2)), shape...), values...)
}

func TestMDSFields(t *testing.T) {
	columns := [][3]any{
		{"any", "ndarray", 0}, {"b", "bytes", 0}, {"fixed", "ndarray:float16:2,1", 4}, {"mix", "ndarray", 0}, {"n", "int", 8},
		{"pil", "pil", 0}, {"rows", "ndarray:uint8", 0}, {"s", "str", 0}, {"square", "ndarray:int16", 0}, {"wrong", "int32", 8},
	}
	values := [][][]byte{
		{mdsValue(33, []byte{2}, "aaaabbbb"), nil, []byte("1122"), mdsValue(8, []byte{1}, "x"), []byte("12345678"), []byte("p"),
			mdsValue(0, []byte{1, 2}, "ab"), []byte("text"), mdsValue(0, []byte{1, 2}, "abcd"), []byte("12345678")},
		{mdsValue(33, []byte{1}, "cccc"), []byte("bytes"), []byte("3344"), mdsValue(9, []byte{1}, "x"), []byte("abcdefgh"), nil,
			mdsValue(0, []byte{2, 2}, "cdef"), nil, mdsValue(0, []byte{1, 2}, "efgh"), []byte("12345678")},
		{mdsValue(33, []byte{1}, "dddd"), nil, []byte("5566"), mdsValue(9, []byte{1}, "x"), []byte("ABCDEFGH"), nil,
			mdsValue(0, []byte{1, 2}, "gh"), []byte("é"), mdsValue(0, []byte{1, 2}, "ijkl"), []byte("12345678")},
	}
	v := index(t, mdsColumnsOf(t, columns, values...))
	got, about := samples(t, v)
	want := map[string][]string{
		"any": {"aaaabbbb", "cccc", "dddd"}, "b": {"", "bytes", ""}, "fixed": {"1122", "3344", "5566"}, "n": {"12345678", "abcdefgh", "ABCDEFGH"},
		"rows": {"ab", "cdef", "gh"}, "s": {"text", "", "é"}, "square": {"abcd", "efgh", "ijkl"},
	}
	for name, of := range want {
		for i := range of {
			if got[name] == nil || string(got[name][i]) != of[i] {
				t.Errorf("%s of sample %d: %q, want %q", name, i, got[name], of[i])
			}
		}
	}
	forms := map[string]string{
		"any": "ragged int32 []", "b": "ragged uint8 []", "fixed": "dense float16 [2 1]", "mix": "holds int8, those before it uint8",
		"n": "dense int64 []", "pil": `its encoding "pil" is none`, "rows": "ragged uint8 [2]", "s": "ragged uint8 []",
		"square": "dense int16 [1 2]", "wrong": "contradicts its encoding",
	}
	for _, f := range about.Fields {
		if form := fmt.Sprintf("%s %s %v %s", f.Kind, f.DType, f.Shape, f.Missing); !strings.Contains(form, forms[f.Name]) {
			t.Errorf("%s: %s, want %s", f.Name, form, forms[f.Name])
		}
	}
	if len(about.Fields) != len(forms) || len(got) != len(want) {
		t.Errorf("fields %+v", about.Fields)
	}
	if _, about := samples(t, index(t, mdsColumnsOf(t, columns))); about.Samples != 0 || len(about.Fields) != len(forms) {
		t.Errorf("without samples: %+v", about)
	}
}

// The tokens are a field, too.
func TestMDSTokensAreAField(t *testing.T) {
	for _, dataset := range []string{"mds", "mds-shape", "mds-multi"} {
		v := index(t, golden(t, dataset))
		tokens, _ := readView(t, v, "tokens.bin")
		if got, _ := samples(t, v); !bytes.Equal(slices.Concat(got["tokens"]...), tokens) {
			t.Errorf("%s: the field has other tokens", dataset)
		}
	}
}

// hex of the values of a field, for comparisons.
func hexOf(values [][]byte) string { return fmt.Sprintf("%x", values) }

func TestArrowFields(t *testing.T) {
	v := index(t, files{"a.arrow": arrowFixture(t, "behind"), "b.arrow": arrowFixture(t, "behind")})
	got, about := samples(t, v)
	want := map[string]string{
		"large":     "[78 78 78 78 78 78 78 78]",
		"raw":       "[6162 6162 6162 6162 6162 6162 6162 6162]",
		"square":    "[" + strings.TrimSpace(strings.Repeat("0000803f00000040 ", 8)) + "]",
		"input_ids": "[010000000200000003000000  0400000005000000 06000000 010000000200000003000000  0400000005000000 06000000]",
	}
	missing := map[string]string{
		"null": "all of its values are null", "text": `column "text" has nulls`, "flag": "it is a column of bool", "point": "it is a column of struct",
		"pairs": "it is a column of map", "word": "it is a column of dictionary",
	}
	for _, f := range about.Fields {
		if hex := hexOf(got[f.Name]); f.Missing == "" && hex != want[f.Name] {
			t.Errorf("%s: %s, want %s", f.Name, hex, want[f.Name])
		}
		if why := missing[f.Name]; !strings.HasPrefix(f.Missing, why) || (why == "") != (f.Missing == "") {
			t.Errorf("%s: missing %q, want %q", f.Name, f.Missing, why)
		}
	}
	if len(about.Fields) != len(want)+len(missing) || about.Samples != 8 {
		t.Errorf("%+v", about)
	}
	for name, want := range map[string]string{
		"sliced-i32": "[010000000200000003000000  0400000005000000 06000000]", "fixed-i32": "[010000000200000003000000 040000000500000006000000 070000000800000009000000]", "empty": "[]",
	} {
		if got, _ := samples(t, index(t, files{"x": arrowFixture(t, name)})); hexOf(got["input_ids"]) != want {
			t.Errorf("%s: %s, want %s", name, hexOf(got["input_ids"]), want)
		}
	}
}

func TestLitDataFields(t *testing.T) {
	be := func(n ...uint32) (b []byte) {
		for _, v := range n {
			b = binary.BigEndian.AppendUint32(b, v)
		}
		return b
	}
	le := func(n ...uint32) (b []byte) {
		for _, v := range n {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		return b
	}
	formats := []string{"int", "jpeg", "tensor", "numpy", "no_header_numpy:9", "pickle", "bool", "tensor"}
	leaf := `{"type": null, "context": null, "children_spec": []}`
	spec := `[1, {"type": "builtins.dict", "context": "[\"n\", \"tree\"]", "children_spec": [` + leaf + `, {"type": "builtins.list", "context": "null", "children_spec": [` +
		strings.Repeat(leaf+",", 6) + leaf + `]}]}]`
	var items [][]byte // the first with tensors as LitData writes them, the second with one of earlier versions
	for _, values := range [][][]byte{
		{[]byte("12345678"), []byte("jpeg"), append(be(1, 2, 1, 2), "aaaabbbb"...), append(le(1, 2, 2, 1), "abcd"...), []byte("ffff"), []byte("p"), {1}, append(be(1, 0), "aaaa"...)},
		{[]byte("abcdefgh"), nil, append(le(1, 2, 1, 2), "ccccdddd"...), append(le(1, 2, 1, 1), "ef"...), nil, []byte("p"), {0}, append(be(11, 0), "a"...)},
	} {
		var head, body []byte
		for _, v := range values {
			head, body = append(head, le(uint32(len(v)))...), append(body, v...)
		}
		items = append(items, append(head, body...))
	}
	chunk, at := le(2), 4*uint32(len(items)+2)
	for _, item := range items {
		chunk, at = append(chunk, le(at)...), at+uint32(len(item))
	}
	chunk = slices.Concat(append([][]byte{chunk, le(at)}, items...)...)
	dataset := func(chunk []byte) files {
		index, err := json.Marshal(map[string]any{
			"chunks": []any{map[string]any{"chunk_bytes": len(chunk), "chunk_size": 2, "dim": nil, "filename": "chunk-0-0.bin"}},
			"config": map[string]any{"compression": nil, "data_format": formats, "data_spec": spec, "item_loader": "PyTreeLoader"},
		})
		if err != nil {
			t.Fatal(err)
		}
		return files{"index.json": index, "chunk-0-0.bin": chunk}
	}
	got, about := samples(t, index(t, dataset(chunk)))
	want := map[string]string{
		"n": "int64 dense [] 12345678 abcdefgh", "tree.0": "uint8 ragged [] jpeg ", "tree.1": "float32 dense [1 2] aaaabbbb ccccdddd", "tree.2": "int16 ragged [1] abcd ef",
		"tree.3": "float32 ragged [] ffff ", "tree.4": `its format "pickle" is none`, "tree.5": "bool dense [] \x01 \x00", "tree.6": "holds uint8, those before it float32",
	}
	for _, f := range about.Fields {
		is := fmt.Sprint(f.DType, " ", f.Kind, " ", f.Shape, " ", f.Missing)
		if f.Missing == "" {
			is += string(got[f.Name][0]) + " " + string(got[f.Name][1])
		}
		if !strings.Contains(is, want[f.Name]) {
			t.Errorf("%s: %q, want %q", f.Name, is, want[f.Name])
		}
	}
	if len(about.Fields) != len(want) {
		t.Errorf("%+v", about)
	}
	first := int(binary.LittleEndian.Uint32(chunk[4:]))
	for at := range 8 { // the size of each leaf
		bad := bytes.Clone(chunk)
		bad[first+4*at]++
		if list, err := index(t, dataset(bad)).Views[6].Entries(t.Context()); err == nil || !strings.Contains(err.Error(), "chunk-0-0.bin is bad") {
			t.Errorf("size %d: %d files, %v", at, len(list), err)
		}
	}
	v := index(t, golden(t, "litdata-tokens"))
	tokens, _ := readView(t, v, "tokens.bin")
	if got, about := samples(t, v); !bytes.Equal(slices.Concat(got["data"]...), tokens) || len(about.Fields) != 1 {
		t.Errorf("%+v", about)
	}
	v = index(t, golden(t, "litdata-arrow"))
	if _, err := v.Views[6].Entries(t.Context()); err == nil || !strings.Contains(err.Error(), "rows in Arrow's format") || len(v.Problems()) > 0 {
		t.Errorf("%v, problems %v", err, v.Problems())
	}
}

func TestNPYFields(t *testing.T) {
	npy := func(values string, shape ...int64) []byte { return append(NPYHeader(F16, shape...), values...) }
	for what, c := range map[string]struct {
		files files
		want  string
	}{
		"dense":   {files{"a.npy": npy("aabbccdd", 2, 2), "b.npy": npy("eeffgghh", 2, 2)}, "data dense [2 2] [6161626263636464 6565666667676868]"},
		"ragged":  {files{"x/lat/a.npy": npy("aabb", 1, 2), "x/lat/b.npy": npy("eeffgghh", 2, 2)}, "lat ragged [2] [61616262 6565666667676868]"},
		"flat":    {files{"a.npy": npy("aa", 1), "b.npy": npy("eeff", 2), "c.npy": npy("", 0)}, "data ragged [] [6161 65656666 ]"},
		"scalars": {files{"a.npy": npy("aa"), "b.npy": npy("ee")}, "data dense [] [6161 6565]"},
	} {
		v := index(t, c.files)
		v.Views = slices.DeleteFunc(v.Views, func(view View) bool { return baseOf(view.Path) != "fields" })
		v.Views[0].Path = "fields"
		got, about := samples(t, v)
		if is := fmt.Sprint(about.Fields[0].Name, " ", about.Fields[0].Kind, " ", about.Fields[0].Shape, " ", hexOf(got[about.Fields[0].Name])); is != c.want {
			t.Errorf("%s: %s, want %s", what, is, c.want)
		}
	}
	for name, why := range map[string]string{"npy-fortran": "Fortran order", "npy-bigendian": "are none that are shown"} {
		_, s := oneSet(t, golden(t, name))
		if fields, err := s.Fields(t.Context()); err != nil || len(fields) != 1 || !strings.Contains(fields[0].Missing, why) {
			t.Errorf("%s: %+v, %v", name, fields, err)
		}
	}
}
