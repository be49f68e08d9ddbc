package layout

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func le(values ...any) []byte {
	var b bytes.Buffer
	for _, v := range values {
		if s, ok := v.(string); ok {
			b.WriteString(s)
			continue
		}
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// fairseqFiles are what MMapIndexedDatasetBuilder writes of the documents [1 2 3] and [10 11] as u16.
func fairseqFiles() files {
	return files{
		"train.idx": le(megatronMagic, uint64(1), uint8(8), uint64(2), []int32{3, 2}, []int64{0, 6}),
		"train.bin": le([]uint16{1, 2, 3, 10, 11}),
	}
}

// viewOf returns the path of the first view of that base name.
func viewOf(v *Volume, base string) string {
	for _, view := range v.Views {
		if strings.HasSuffix(view.Path, base) {
			return view.Path
		}
	}
	return "none"
}

func TestGoldenOfOtherProjects(t *testing.T) {
	for _, dataset := range []string{"fairseq", "packed", "pbin"} {
		checkGoldenViews(t, checkGolden(t, dataset), dataset)
	}
}

func TestFairseq(t *testing.T) {
	v, s := oneSet(t, fairseqFiles())
	if s.Format != "fairseq" || s.DType != U16 || s.Shards[0].Tokens != 5 || s.Shards[0].Documents != 2 {
		t.Errorf("%+v", s)
	}
	if got, ok := readView(t, v, viewOf(v, "tokens.bin")); !ok || !bytes.Equal(got, le([]uint16{1, 2, 3, 10, 11})) {
		t.Errorf("tokens.bin: %x, %v", got, ok)
	}
	want := le(megatronMagic, uint64(1), uint8(8), uint64(2), uint64(3), []int32{3, 2}, []int64{0, 6}, []int64{0, 1, 2})
	found := false
	for _, view := range v.Views {
		if strings.HasSuffix(view.Path, ".idx") {
			got, ok := readView(t, v, view.Path)
			found = found || ok && bytes.Equal(got, want)
		}
	}
	if !found {
		t.Errorf("no view is Megatron's index")
	}
}

func TestFairseqProblems(t *testing.T) {
	for want, change := range map[string]func(f files){
		`the data, "train.bin", is missing`:                               func(f files) { delete(f, "train.bin") },
		`the data, "train.bin", has 9 bytes, which is no whole number of`: func(f files) { f["train.bin"] = f["train.bin"][:9] },
		"element type 77 is not known":                                    func(f files) { f["train.idx"][17] = 77 },
		"which is before the sequence before it":                          func(f files) { f["train.idx"][26+8] = 99 },
		"the data has 8 bytes, the index counts at least 10":              func(f files) { f["train.bin"] = f["train.bin"][:8] },
		"the data has 12 bytes, the index counts 10":                      func(f files) { f["train.bin"] = append(f["train.bin"], 1, 2) },
	} {
		f := fairseqFiles()
		change(f)
		checkProblem(t, f, want)
		if v := index(t, f); strings.HasPrefix(want, "the data has ") {
			if _, ok := readView(t, v, viewOf(v, "tokens.bin")); ok {
				t.Errorf("%s: a stream is shown", want)
			}
		}
	}
}

// TestFairseqOverflowedPointers has sound lengths: the tokens are shown without documents.
func TestFairseqOverflowedPointers(t *testing.T) {
	f := fairseqFiles()
	copy(f["train.idx"][26+8+8:], le(int64(-6)))
	v, s := oneSet(t, f)
	if got, ok := readView(t, v, viewOf(v, "tokens.bin")); !ok || len(got) != 10 || s.Tokens() != 5 || s.Documents() != -1 {
		t.Errorf("%d bytes of tokens, %d tokens, %d documents", len(got), s.Tokens(), s.Documents())
	}
	for _, view := range []string{"documents.npy", "megatron.idx"} {
		if got, ok := readView(t, v, viewOf(v, view)); ok {
			t.Errorf("%s is shown: %x", view, got)
		}
	}
	_, s = oneSet(t, files{"a.idx": le(megatronMagic, uint64(1), uint8(8), uint64(0)), "a.bin": {}})
	if s.Format != "fairseq" || s.Documents() != 0 {
		t.Errorf("no sequences: %s, %d documents", s.Format, s.Documents())
	}
}

// checkProblem indexes and checks files, and looks for a problem.
func checkProblem(t *testing.T, f files, want string) {
	t.Helper()
	v := index(t, f)
	for _, s := range v.Sets {
		if err := s.Check(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range v.Problems() {
		if strings.Contains(p.Detail, want) {
			return
		}
	}
	t.Errorf("problems %v, want %s", v.Problems(), want)
}

func TestHeadedTokens(t *testing.T) {
	for _, tc := range []struct {
		name, format string
		data         []byte
		dtype        DType
		start        int
	}{
		{"train_0000000000.bin", "packed", le("LITPKDS", uint64(1), uint8(8), uint64(4), []uint16{1, 2, 3, 4}), U16, 24},
		{"a.pbin", "pbin", le(uint64(8), uint32(4), []uint32{1, 70000}, "\x80\x04\x95"), U32, 12},
	} {
		v, s := oneSet(t, files{tc.name: tc.data})
		size := int(s.Shards[0].Tokens) * tc.dtype.Size()
		if s.Format != tc.format || s.DType != tc.dtype {
			t.Errorf("%s: %s of %s", tc.name, s.Format, s.DType)
		}
		if got, ok := readView(t, v, viewOf(v, "tokens.bin")); !ok || !bytes.Equal(got, tc.data[tc.start:tc.start+size]) {
			t.Errorf("%s: %x, %v", tc.name, got, ok)
		}
	}
	packed := func(change func(b []byte)) files {
		b := le("LITPKDS", uint64(1), uint8(8), uint64(4), []uint16{1, 2, 3, 4})
		change(b)
		return files{"a.bin": b}
	}
	checkProblem(t, packed(func(b []byte) { b[16] = 5 }), "the header counts 5 tokens of 2 bytes: the file has 32")
	checkProblem(t, packed(func(b []byte) { b[16] = 3 }), "the header counts 3 tokens of 2 bytes: the file has 32")
	checkProblem(t, packed(func(b []byte) { b[23] = 0xff }), "tokens of 2 bytes: the file has 32")
	checkProblem(t, packed(func(b []byte) { b[7] = 2 }), "version 2 is not known, 1 is")
	checkProblem(t, packed(func(b []byte) { b[15] = 99 }), "element type 99 is not known")
	checkProblem(t, files{"a.pbin": le(uint64(8), uint32(3), "xxxxxxxx")}, "a token is said to have 3 bytes, 1, 2 and 4 are known")
	checkProblem(t, files{"a.pbin": le(uint64(9), uint32(1), "xxxxxxxx")}, "the data is said to have 9 bytes of tokens of 1: the file has 20")
}

func testdata(t testing.TB, name ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, name...)...))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestNamedFormats(t *testing.T) {
	length := le(uint64(5))
	sum := crc32.Checksum(length, crc32.MakeTable(crc32.Castagnoli))
	record := append(append(length, le((sum>>15|sum<<17)+0xa282ead8)...), "hello1234"...)
	parquet := parquetFixture(t, "two")
	for name, tc := range map[string]struct {
		data   []byte
		format string
		want   string
	}{
		"val.bin":            {append(le(uint32(20240522), uint32(1), uint32(3)), make([]byte, 2000)...), "llmc-eval", "llm.c's evaluation file"},
		"a.tfrecord":         {record, "records", "TFRecord: read it through the mount"},
		"a.array_record":     {testdata(t, "records", "data.array_record"), "records", "ArrayRecord or Riegeli records"},
		"train-0000.parquet": {parquet, "parquet", "several columns hold lists of integers"},
	} {
		_, s := oneSet(t, files{name: tc.data})
		if s.Format != tc.format || !strings.Contains(s.NoTokens, tc.want) || s.DType != DTypeUnknown {
			t.Errorf("%s: %s, %q", name, s.Format, s.NoTokens)
		}
	}
}

func TestGGUF(t *testing.T) {
	data := testdata(t, "gguf", "model.gguf")
	v, s := oneSet(t, files{"model.gguf": data})
	if s.Format != "gguf" || len(s.Notes) != 1 || s.Notes[0] != "3 tensors" {
		t.Fatalf("%s, notes %q", s.Format, s.Notes)
	}
	entries, err := s.ggufFiles(t.Context(), v.Objects[0])
	if err != nil {
		t.Fatal(err)
	}
	var values [24]float32
	for i := range values {
		values[i] = float32(i)
	}
	var names []string
	for _, f := range entries {
		names = append(names, f.Name)
		raw := make([]byte, f.Body.Size())
		if _, err := f.Body.ReadAt(t.Context(), raw, 0); err != nil && int64(len(raw)) != f.Body.Size() {
			t.Fatal(err)
		}
		switch f.Name {
		case "blk.0%2Fa.npy":
			if want := append(NPYHeader(F32, 2, 3, 4), le(values)...); !bytes.Equal(raw, want) {
				t.Errorf("%s: %d bytes, want %d", f.Name, len(raw), len(want))
			}
		case "blk.1.q.bin": // blocks of a scale (f16) and 32 i8
			if len(raw) != 4*34 || raw[2] != 0 || int8(raw[2+31]) != 127 {
				t.Errorf("%s: %x", f.Name, raw)
			}
		}
	}
	if strings.Join(names, " ") != "blk.0%2Fa.npy blk.0.half.npy blk.1.q.bin" {
		t.Errorf("files %v", names)
	}
	for n := range len(data) { // cut off anywhere
		o := Bytes("model.gguf", data[:n])
		if h, ok := ggufProbe(o, data[:min(n, 4096)]).(tensorHead); ok && h.bad == "" {
			if _, err := ggufRead(t.Context(), headerBudget{}, o); err == nil && n < len(data)-56 {
				t.Errorf("%d of %d bytes: no error", n, len(data))
			}
		}
	}
}

// FuzzGGUF changes one place of a good file: tensors lie in the file, or there is an error.
func FuzzGGUF(f *testing.F) {
	good := testdata(f, "gguf", "model.gguf")
	f.Add(8, []byte{0xff, 0xff, 0xff})
	f.Add(24, []byte{0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, at int, change []byte) {
		data := bytes.Clone(good)
		copy(data[uint(at)%uint(len(data)):], change)
		tensors, err := ggufRead(t.Context(), headerBudget{}, Bytes("model.gguf", data))
		for _, x := range tensors {
			if err == nil && (x.begin < 0 || x.end < x.begin || x.end > int64(len(data))) {
				t.Errorf("%s lies at %d to %d of %d", x.name, x.begin, x.end, len(data))
			}
		}
	})
}
