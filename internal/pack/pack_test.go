package pack

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) {
	const memory, room = "/dev/shm", 1 << 30
	var st syscall.Statfs_t
	if syscall.Statfs(memory, &st) == nil && int64(st.Bavail)*st.Bsize > room { // these tests sync thousands of files
		if err := os.Setenv("TMPDIR", memory); err != nil {
			panic(err)
		}
	}
	leaks.Main(m)
}

// readDir returns all files of a directory by name.
func readDir(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = data
	}
	return files
}

// listed is a Source of documents that are tokens already.
type listed [][]uint32

func (l listed) Documents(ctx context.Context, yield func(Document, int64) error) error {
	for _, d := range l {
		half := len(d) / 2 // in two parts, so that every writer meets documents that come in pieces
		if err := yield(Document{Tokens: d[:half], More: true}, 0); err != nil {
			return err
		}
		if err := yield(Document{Tokens: d[half:], Continued: true}, 0); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// packTokens runs a plan over documents of tokens.
func packTokens(t testing.TB, o Options, docs [][]uint32, vocabulary int64) (Result, map[string][]byte, error) {
	t.Helper()
	if o.Out == "" {
		o.Out = filepath.Join(t.TempDir(), "out")
	}
	in := &input{source: listed(docs), tokens: true, vocabulary: vocabulary}
	p, err := newPlan(&o, in)
	if err != nil {
		return Result{}, nil, err
	}
	out, err := newOutput(o.Out, o.Force)
	if err != nil {
		return Result{}, nil, err
	}
	defer out.close()
	w := p.newWriter(out)
	if err := w.begin(false); err != nil {
		return Result{}, nil, err
	}
	result, err := p.run(context.Background(), out, in, w)
	if err != nil {
		if undone := out.abort(); undone != nil {
			t.Error(undone)
		}
	}
	return result, readDir(t, o.Out), err
}

func mustPack(t testing.TB, o Options, docs [][]uint32, vocabulary int64) (Result, map[string][]byte) {
	t.Helper()
	result, files, err := packTokens(t, o, docs, vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	checkManifest(t, files)
	return result, files
}

// checkManifest verifies every file against the manifest, and that there is no other file.
func checkManifest(t testing.TB, files map[string][]byte) *layout.Manifest {
	t.Helper()
	m, err := layout.ParseManifest(files[layout.ManifestName])
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Files)+1 != len(files) {
		t.Errorf("the manifest lists %d files, the directory has %d and itself", len(m.Files), len(files)-1)
	}
	for _, f := range m.Files {
		if err := f.Verify(context.Background(), bytes.NewReader(files[f.Name])); err != nil {
			t.Error(err)
		}
	}
	return m
}

// number reads a little-endian integer of size bytes.
func number(p []byte, size int) int64 {
	var wide [8]byte
	copy(wide[:], p[:size])
	return int64(binary.LittleEndian.Uint64(wide[:]))
}

func array(p []byte, size int) []uint32 {
	var out []uint32
	for ; len(p) > 0; p = p[size:] {
		out = append(out, uint32(number(p, size)))
	}
	return out
}

// readMegatron is a reader of its own: documents of a .bin and its .idx.
func readMegatron(t testing.TB, idx, bin []byte) [][]uint32 {
	t.Helper()
	size := map[byte]int{8: 2, 4: 4}[idx[17]]
	n, d := int(number(idx[18:], 8)), int(number(idx[26:], 8))
	if string(idx[:9]) != "MMIDIDX\x00\x00" || number(idx[9:], 8) != 1 || size == 0 || d != n+1 || len(idx) != 34+12*n+8*d {
		t.Fatalf("the index of %d bytes has a wrong head: %x", len(idx), idx[:34])
	}
	var docs [][]uint32
	for i := range n {
		length, at := number(idx[34+4*i:], 4), number(idx[34+4*n+8*i:], 8)
		if number(idx[34+12*n+8*i:], 8) != int64(i) {
			t.Fatalf("document %d does not start at its sequence", i)
		}
		docs = append(docs, array(bin[at:at+length*int64(size)], size))
	}
	if number(idx[34+12*n+8*n:], 8) != int64(n) {
		t.Fatal("the documents do not end with the sequences")
	}
	return docs
}

// readMDS is a reader of its own: the samples of a shard, and the offset of the first one's tokens.
func readMDS(t testing.TB, data []byte, fixed bool, size int) (docs [][]uint32, first int64) {
	t.Helper()
	n := int(number(data, 4))
	begin := number(data[4:], 4)
	if !json.Valid(data[4+4*(n+1) : begin]) {
		t.Fatalf("the config is no JSON: %q", data[4+4*(n+1):begin])
	}
	for i := range n {
		from, to := number(data[4+4*i:], 4), number(data[8+4*i:], 4)
		s := data[from:to]
		if !fixed {
			if int(number(s, 4)) != len(s)-4 || s[4]>>2 != 1 {
				t.Fatalf("sample %d has a wrong head: %x", i, s[:5])
			}
			width := 1 << (s[4] & 3)
			if int(number(s[5:], width))*size != len(s)-5-width {
				t.Fatalf("sample %d has a wrong shape: %x", i, s[:10])
			}
			from += int64(5 + width)
		}
		if i == 0 {
			first = from
		}
		docs = append(docs, array(data[from:to], size))
	}
	if int(number(data[4+4*n:], 4)) != len(data) {
		t.Fatal("the shard goes on after the last sample")
	}
	return docs, first
}

// manyDocs are documents of many lengths, one of them longer than what the MDS writer holds back.
func manyDocs(limit uint32) [][]uint32 {
	var docs [][]uint32
	next := uint32(0)
	for _, n := range []int{1, 2, 3, 255, 256, 1000, 65535, 65536, 70001, 5} {
		d := make([]uint32, n)
		for i := range d {
			next = next*1664525 + 1013904223
			d[i] = next % limit
		}
		docs = append(docs, d)
	}
	return docs
}

func TestGoldenBytes(t *testing.T) {
	h := func(s string) []byte { // hex with spaces
		var out []byte
		for _, f := range strings.Fields(s) {
			var b byte
			if _, err := fmt.Sscanf(f, "%02x", &b); err != nil {
				t.Fatal(err)
			}
			out = append(out, b)
		}
		return out
	}
	docs := [][]uint32{{50256, 1}, {2, 3}}
	_, files := mustPack(t, Options{Format: LLMC}, docs, 65536)
	want := append(h("88 d8 34 01 01 00 00 00 04 00 00 00"), make([]byte, 1012)...)
	want = append(want, h("50 c4 01 00 02 00 03 00")...)
	if got := files["data_train_000000.bin"]; !bytes.Equal(got, want) {
		t.Errorf("llm.c: %x", got)
	}
	_, files = mustPack(t, Options{Format: LLMC, DType: "u32"}, docs, 65536)
	if got := files["data_train_000000.bin"][:16]; !bytes.Equal(got, h("a1 d9 34 01 07 00 00 00 04 00 00 00 00 00 00 00")) {
		t.Errorf("llm.c, u32: %x", got)
	}
	_, files = mustPack(t, Options{}, [][]uint32{{1, 2, 3}, {10, 11, 12, 13}}, 65536)
	if got := files["data_text_document.bin"]; !bytes.Equal(got, h("01 00 02 00 03 00 0a 00 0b 00 0c 00 0d 00")) {
		t.Errorf("Megatron .bin: %x", got)
	}
	want = h(`4d 4d 49 44 49 44 58 00 00 01 00 00 00 00 00 00 00 08 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00
		03 00 00 00 04 00 00 00  00 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00
		00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00`)
	if got := files["data_text_document.idx"]; !bytes.Equal(got, want) {
		t.Errorf("Megatron .idx: %x", got)
	}
	_, files = mustPack(t, Options{Format: MDS, DType: "i32"}, [][]uint32{{1, 2, 3, 4}}, 65536)
	shard := files["shard.00000.mds"]
	if got := shard[number(shard[4:], 4):]; !bytes.Equal(got, h("12 00 00 00 04 04 01 00 00 00 02 00 00 00 03 00 00 00 04 00 00 00")) {
		t.Errorf("MDS sample: %x", got)
	}
}

func TestRoundTrip(t *testing.T) {
	docs := manyDocs(1 << 16)
	flat := slices.Concat(docs...)
	for _, dtype := range []string{"u16", "i32"} {
		size := map[string]int{"u16": 2, "i32": 4}[dtype]
		_, files := mustPack(t, Options{DType: dtype}, docs, 65536)
		if got := readMegatron(t, files["data_text_document.idx"], files["data_text_document.bin"]); !reflect.DeepEqual(got, docs) {
			t.Errorf("%s: Megatron gives other documents", dtype)
		}
		_, files = mustPack(t, Options{Format: NanoGPT, DType: dtype}, docs, 65536)
		if got := array(files["train.bin"], size); !slices.Equal(got, flat) {
			t.Errorf("%s: nanoGPT gives other tokens", dtype)
		}
		_, files = mustPack(t, Options{Format: MDS, DType: dtype}, docs, 65536)
		got, first := readMDS(t, files["shard.00000.mds"], false, size)
		if !reflect.DeepEqual(got, docs) {
			t.Errorf("%s: MDS gives other samples", dtype)
		}
		if first%4096 != 0 {
			t.Errorf("%s: MDS tokens start at %d", dtype, first)
		}
	}
}

func TestFlatShardsAreExact(t *testing.T) {
	docs := manyDocs(1 << 16)
	flat := slices.Concat(docs...)
	result, files := mustPack(t, Options{Format: LLMC, ShardTokens: 10007}, docs, 65536)
	var got []uint32
	for i, name := range result.Shards {
		data := files[name]
		n := int(number(data[8:], 4))
		if len(data) != 1024+2*n || (i < len(result.Shards)-1 && n != 10007) {
			t.Fatalf("%s has %d tokens in %d bytes", name, n, len(data))
		}
		got = append(got, array(data[1024:], 2)...)
	}
	if !slices.Equal(got, flat) || len(result.Shards) != (len(flat)+10006)/10007 {
		t.Errorf("%d llm.c shards give other tokens", len(result.Shards))
	}
	if result.Documents != int64(len(docs)) || result.Tokens != int64(len(flat)) {
		t.Errorf("%d tokens and %d documents are counted", result.Tokens, result.Documents)
	}
	_, files = mustPack(t, Options{Format: NPY, DType: "u32"}, docs, 65536)
	data := files["data_00000.npy"]
	wantHead := fmt.Sprintf("\x93NUMPY\x01\x00\xf6\x0f{'descr': '<u4', 'fortran_order': False, 'shape': (%d,), } ", len(flat))
	if !strings.HasPrefix(string(data), wantHead) || data[4095] != '\n' {
		t.Errorf("the .npy header is %q", data[:128])
	}
	if !slices.Equal(array(data[4096:], 4), flat) {
		t.Error(".npy gives other tokens")
	}
}

func TestDocumentsStayWholeInShards(t *testing.T) {
	docs := manyDocs(1 << 16)
	result, files := mustPack(t, Options{ShardTokens: 1000}, docs, 65536)
	var got [][]uint32
	for _, name := range result.Shards {
		got = append(got, readMegatron(t, files[strings.TrimSuffix(name, "bin")+"idx"], files[name])...)
	}
	if !reflect.DeepEqual(got, docs) || len(result.Shards) < 4 || result.Shards[1] != "data_00001_text_document.bin" {
		t.Errorf("Megatron shards %v give other documents", result.Shards)
	}
	result, files = mustPack(t, Options{Format: MDS, ShardTokens: 1000}, docs, 65536)
	got = nil
	for _, name := range result.Shards {
		samples, first := readMDS(t, files[name], false, 2)
		if first%4096 != 0 {
			t.Errorf("the tokens of %s start at %d", name, first)
		}
		got = append(got, samples...)
	}
	if !reflect.DeepEqual(got, docs) || len(result.Shards) < 4 {
		t.Errorf("MDS shards %v give other samples", result.Shards)
	}
	var index mdsIndex
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	if index.Version != 2 || len(index.Shards) != len(result.Shards) || index.Shards[0].ColumnEncodings[0] != "ndarray:uint16" {
		t.Errorf("index.json is %s", files["index.json"])
	}
}

func TestFixedSamplesAreOneArray(t *testing.T) {
	docs := manyDocs(1 << 16)
	flat := slices.Concat(docs...)
	result, files := mustPack(t, Options{Format: MDS, SampleTokens: 2048, ShardTokens: 65536}, docs, 65536)
	var got []uint32
	for _, name := range result.Shards {
		samples, first := readMDS(t, files[name], true, 2)
		if first%4096 != 0 || len(samples[0]) != 2048 {
			t.Errorf("%s: tokens at %d, samples of %d", name, first, len(samples[0]))
		}
		got = append(got, slices.Concat(samples...)...)
	}
	if whole := len(flat) / 2048 * 2048; !slices.Equal(got, flat[:whole]) || result.DroppedTokens != int64(len(flat)-whole) {
		t.Errorf("%d tokens are there and %d dropped, of %d", len(got), result.DroppedTokens, len(flat))
	}
	if result.Tokens != int64(len(got)) {
		t.Errorf("%d tokens are counted", result.Tokens)
	}
	_, files, err := packTokens(t, Options{Format: MDS, SampleTokens: 2048}, [][]uint32{{1}}, 65536)
	if err == nil || len(files) > 0 {
		t.Errorf("less than a sample: %v, %d files", err, len(files))
	}
}

func TestValidationSplit(t *testing.T) {
	var docs [][]uint32
	for i := range 100 {
		docs = append(docs, []uint32{uint32(i), 999})
	}
	result, files := mustPack(t, Options{Format: NanoGPT, ValFraction: 0.1}, docs, 65536)
	train, val := array(files["train.bin"], 2), array(files["val.bin"], 2)
	if len(train) != 180 || len(val) != 20 || val[0] != 9 || val[2] != 19 || result.Documents != 100 {
		t.Errorf("train has %d tokens, val %v, documents %d", len(train), val, result.Documents)
	}
	_, files = mustPack(t, Options{Format: LLMC, ValFraction: 0.5}, docs, 65536)
	if files["data_val_000000.bin"] == nil || files["data_train_000000.bin"] == nil {
		t.Error("llm.c lacks a split")
	}
}

func TestNarrowing(t *testing.T) {
	big := [][]uint32{{1, 70000}}
	for _, o := range []Options{{DType: "u16"}, {Format: MDS, DType: "u16"}, {Format: NPY, DType: "u16"}} {
		_, files, err := packTokens(t, o, big, 1<<31)
		if !errors.Is(err, errNarrow) || !strings.Contains(err.Error(), "token 70000 as u16") || len(files) > 0 {
			t.Errorf("%s: %v, %d files left", o.Format, err, len(files))
		}
	}
	if _, _, err := packTokens(t, Options{}, [][]uint32{{1 << 31}}, 1<<31); !errors.Is(err, errNarrow) {
		t.Errorf("i32: %v", err)
	}
	for format, want := range map[string]string{Megatron: "i32", LLMC: "u32", NanoGPT: "u32", NPY: "u32", MDS: "i32"} {
		if result, _ := mustPack(t, Options{Format: format}, big, 100277); result.DType != want {
			t.Errorf("%s: auto is %s, want %s", format, result.DType, want)
		}
		if result, _ := mustPack(t, Options{Format: format}, [][]uint32{{1}}, 65536); result.DType != "u16" {
			t.Errorf("%s: auto is %s for 65536 tokens", format, result.DType)
		}
	}
}

func TestRefusedOptions(t *testing.T) {
	for _, tc := range []struct {
		o    Options
		want string
	}{
		{Options{Format: "parquet"}, `format "parquet" is not known`},
		{Options{DType: "u32"}, "megatron cannot hold dtype u32"},
		{Options{Format: LLMC, DType: "i32"}, "llmc cannot hold dtype i32"},
		{Options{Format: NanoGPT, ShardTokens: 5}, "nanogpt is one file"},
		{Options{Format: LLMC, ShardTokens: 1 << 31}, "llmc holds up to"},
		{Options{SampleTokens: 5}, "only mds takes"},
		{Options{ValFraction: 0.5}, "only nanogpt and llmc"},
		{Options{Format: LLMC, ValFraction: 1}, "validation fraction"},
		{Options{EOT: "soon"}, `eot "soon"`},
		{Options{BOS: "<s>"}, `bos "<s>"`},
		{Options{SpecialText: true}, "tokenized already"},
		{Options{AddSpecial: true}, "tokenized already"},
		{Options{Name: "../x"}, "cannot start a file name"},
		{Options{Name: "two\nlines"}, "cannot start a file name"},
		{Options{Name: strings.Repeat("x", 201)}, "200 leave room"},
		{Options{Tokenizer: "gpt2"}, "tokenized already"},
		{Options{ShardTokens: -1}, "must not be negative"},
	} {
		_, files, err := packTokens(t, tc.o, [][]uint32{{1}}, 65536)
		if err == nil || !strings.Contains(err.Error(), tc.want) || len(files) > 0 {
			t.Errorf("%+v: got %v, want %q", tc.o, err, tc.want)
		}
	}
}
