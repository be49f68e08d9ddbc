package pack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hbmfs/hbmfs/internal/pack/corpus/corpustest"
	"github.com/hbmfs/hbmfs/internal/pack/tokenizer"
	"github.com/hbmfs/hbmfs/internal/text/usage"
	"github.com/hbmfs/hbmfs/layout"
)

// opened are the embedded tokenizers that tests share, by name: to open one takes a second under the race detector.
var opened sync.Map

// run is Run with a tokenizer that may be shared.
func run(ctx context.Context, o Options) (Result, error) {
	o.open = func(name string) (*tokenizer.Tokenizer, error) {
		if t, ok := opened.Load(name); ok {
			return t.(*tokenizer.Tokenizer), nil
		}
		t, err := tokenizer.Open(name)
		if err == nil {
			opened.Store(name, t)
		}
		return t, err
	}
	return Run(ctx, o)
}

func runPack(t testing.TB, o Options) (Result, map[string][]byte) {
	t.Helper()
	if o.Out == "" {
		o.Out = filepath.Join(t.TempDir(), "out")
	}
	result, err := run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	files := readDir(t, o.Out)
	checkManifest(t, files)
	return result, files
}

func newEncoder(t testing.TB, name string) *tokenizer.Encoder {
	t.Helper()
	tok, err := tokenizer.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	opened.Store(name, tok)
	return tok.NewEncoder()
}

// The tokens of these words are OpenAI's (tiktoken, r50k_base, cl100k_base and o200k_base).
func TestKnownTokens(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.txt": "hello world"})
	for _, tc := range []struct {
		tokenizer string
		want      []uint32
		dtype     string
	}{
		{"", []uint32{31373, 995, 50256}, "u16"},
		{"cl100k_base", []uint32{15339, 1917, 100257}, "i32"},
		{"o200k_base", []uint32{24912, 2375, 199999}, "i32"},
	} {
		result, files := runPack(t, Options{Sources: []string{dir}, Tokenizer: tc.tokenizer})
		got := readMegatron(t, files["data_text_document.idx"], files["data_text_document.bin"])
		if !reflect.DeepEqual(got, [][]uint32{tc.want}) || result.DType != tc.dtype {
			t.Errorf("%q: got %v as %s, want %v as %s", tc.tokenizer, got, result.DType, tc.want, tc.dtype)
		}
	}
}

// What goes around documents goes around each that has tokens, in every format, and names in texts are tokens where they are asked for.
func TestTokensAroundDocuments(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.jsonl": `{"text": "a<|endoftext|>"}` + "\n" + `{"text": ""}` + "\n" + `{"text": "a"}` + "\n"})
	a := newEncoder(t, "gpt2")
	letter, _, err := a.Append(nil, []byte("a"), false)
	if err != nil || len(letter) != 1 {
		t.Fatal(letter, err)
	}
	of := func(o Options) []uint32 {
		o.Sources, o.Format, o.DType = []string{dir}, NPY, "u16"
		result, files := runPack(t, o)
		if result.Empty != 1 {
			t.Errorf("%+v: %d empty documents", o, result.Empty)
		}
		return array(files["data_00000.npy"][npyData:], 2)
	}
	if got, want := of(Options{BOS: "7", SpecialText: true, EOT: "<|endoftext|>"}), []uint32{7, letter[0], 50256, 50256, 7, letter[0], 50256}; !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
	if got := of(Options{BOS: "7", EOT: "none"}); len(got) < 8 || slices.Contains(got, 50256) || got[len(got)-2] != 7 {
		t.Errorf("without special tokens in texts: %d", got)
	}
	for want, o := range map[string]Options{
		"say it with --bos":              {BOS: "auto"},
		"only a tokenizer.json":          {AddSpecial: true},
		"leave one of them out":          {AddSpecial: true, BOS: "7"},
		`bos "<s>" is neither auto nor `: {BOS: "<s>"},
	} {
		o.Sources, o.Out = []string{dir}, t.TempDir()
		var wrong usage.Error
		if _, err := run(t.Context(), o); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}

// sampleCorpus is a directory with nested, hidden, binary and empty files, JSONL, and a text of several parts.
func sampleCorpus(t testing.TB) string {
	var long strings.Builder
	for i := 0; long.Len() < 600<<10; i++ {
		fmt.Fprintf(&long, "line %d:\t'tis  a   text\r\n\r\n  with spaces, числа %d и 数字。\n", i, i*i)
	}
	var lines strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&lines, "{\"id\": %d, \"text\": \"document %d \\u00e9\"}\n", i, i)
	}
	return corpustest.Dir(t, map[string]string{
		"a.txt": "first", "b/long.txt": long.String(), "b/c.jsonl": lines.String() + "\n  \n", "d.bin": "a\x00b", "empty.md": "",
		".git/config": "hidden", "z.txt": "last",
	})
}

func TestSameBytesWhateverTheWorkers(t *testing.T) {
	dir := sampleCorpus(t)
	for _, format := range []string{Megatron, MDS} {
		var first map[string][]byte
		for _, workers := range []int{1, 4} {
			result, files := runPack(t, Options{Sources: []string{dir}, Format: format, Workers: workers})
			if first == nil {
				first = files
			} else if !reflect.DeepEqual(files, first) {
				t.Errorf("%s: 4 workers give other bytes than 1", format)
			}
			if result.Documents != 5003 || result.Empty != 1 || result.Skipped != 1 {
				t.Errorf("%s: %d documents, %d empty, %d skipped", format, result.Documents, result.Empty, result.Skipped)
			}
		}
	}
}

func TestHostileJSONL(t *testing.T) {
	for _, tc := range []struct{ name, line, want string }{
		{"no JSON", `{"text": "a"`, "line 2: not a JSON object"},
		{"an array", `["a"]`, "line 2: not a JSON object"},
		{"no key", `{"body": "a"}`, `line 2: there is no key "text"`},
		{"null", `{"text": null}`, `line 2: the value of "text" is not a string`},
		{"a number", `{"text": 5}`, `line 2: the value of "text" is not a string`},
		{"deep", strings.Repeat("[", 1<<20), "line 2: not a JSON object"},
	} {
		dir := corpustest.Dir(t, map[string]string{"a.jsonl": "{\"text\": \"fine\"}\n" + tc.line + "\n"})
		out := filepath.Join(t.TempDir(), "out")
		_, err := run(context.Background(), Options{Sources: []string{dir}, Out: out})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %.300v, want %q", tc.name, err, tc.want)
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the output directory is still there", tc.name)
		}
	}
}

func TestInvalidUTF8IsReplacedAndCounted(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.jsonl": "{\"text\": \"a\xffb\"}\n{\"text\": \"plain\"}", "b.txt": "ok", "c/d.txt": "a\xff b"})
	result, files := runPack(t, Options{Sources: []string{filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "c", "d.txt")},
		From: "auto", Include: []string{"*"}})
	if result.Repaired != 2 || result.Documents != 3 {
		t.Errorf("%d documents, %d repaired", result.Documents, result.Repaired)
	}
	tok := newEncoder(t, "")
	want, _, err := tok.Append(nil, []byte("a\ufffdb"), false)
	if err != nil {
		t.Fatal(err)
	}
	got := readMegatron(t, files["data_text_document.idx"], files["data_text_document.bin"])
	if !reflect.DeepEqual(got[0], append(want, 50256)) {
		t.Errorf("got %v, want %v", got[0], want)
	}
}

func TestNothingToPack(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"an empty directory": {}, "an empty file": {"a.txt": ""}, "empty JSONL": {"a.jsonl": "\n\n"},
	} {
		for _, format := range Formats() {
			out := filepath.Join(t.TempDir(), "out")
			_, err := run(context.Background(), Options{Sources: []string{corpustest.Dir(t, files)}, Out: out, Format: format})
			if err == nil || !strings.Contains(err.Error(), "hold no documents") {
				t.Errorf("%s: got %v", name, err)
			}
			if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: the output directory is still there", name)
			}
		}
	}
}

func TestMostlyBinarySourceIsRefused(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"README": "text", "shard": strings.Repeat("\x00", 100)})
	o := Options{Sources: []string{dir}, Out: filepath.Join(t.TempDir(), "out")}
	_, err := run(context.Background(), o)
	if err == nil || !strings.Contains(err.Error(), "100 of the sources' 104 bytes are neither text nor tokens") || len(readDir(t, o.Out)) > 0 {
		t.Errorf("got %v", err)
	}
	o.From = "text"
	if result, _ := runPack(t, o); result.Documents != 1 || result.Skipped != 1 {
		t.Errorf("--from text: %d documents, %d skipped", result.Documents, result.Skipped)
	}
}

func TestInclude(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.go": "a", "a.txt": "b", "sub/b.go": "c", "sub/c.bin": "x\x00y"})
	for _, tc := range []struct {
		globs []string
		want  int64
	}{
		{nil, 3}, {[]string{"*.go"}, 2}, {[]string{"sub/*"}, 1}, {[]string{"*.go", "*.txt"}, 3},
	} {
		if result, _ := runPack(t, Options{Sources: []string{dir}, Include: tc.globs}); result.Documents != tc.want {
			t.Errorf("%v: %d documents, want %d", tc.globs, result.Documents, tc.want)
		}
	}
	if _, err := run(context.Background(), Options{Sources: []string{dir}, Include: []string{"["}, Out: t.TempDir()}); err == nil {
		t.Error("a broken glob is taken")
	}
}

func TestCancelLeavesNothing(t *testing.T) {
	dir := sampleCorpus(t)
	for _, format := range Formats() {
		out := corpustest.Dir(t, map[string]string{"mine": "keep"})
		ctx, cancel := context.WithCancel(context.Background())
		o := Options{Sources: []string{dir}, Out: out, Format: format, Force: true, Workers: 2}
		if format != NanoGPT {
			o.ShardTokens = 10_000 // some shards are complete by then
		}
		batches := 0
		o.Progress = func(int64, int64) {
			if batches++; batches == 2 {
				cancel()
			}
		}
		if _, err := run(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v", format, err)
		}
		cancel()
		if files := readDir(t, out); len(files) != 1 || string(files["mine"]) != "keep" {
			t.Errorf("%s: left behind: %v", format, files)
		}
	}
}

// TestFailureLeavesNoDirectories has an output whose parents are made, too.
func TestFailureLeavesNoDirectories(t *testing.T) {
	top := corpustest.Dir(t, map[string]string{"mine": "keep"})
	o := Options{Sources: []string{corpustest.Dir(t, map[string]string{"a.txt": ""})}, Out: filepath.Join(top, "a", "b", "c")}
	if _, err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("nothing to pack: got %v", err)
	}
	if _, err := os.Lstat(filepath.Join(top, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory is left behind: %v", err)
	}
	o.Sources = []string{corpustest.Dir(t, map[string]string{"a.txt": "text"})}
	if _, err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if files := readDir(t, o.Out); len(files) != 3 {
		t.Errorf("%d files, want a .bin, an .idx and the manifest", len(files))
	}
}

func TestForce(t *testing.T) {
	src := corpustest.Dir(t, map[string]string{"a.txt": strings.Repeat("some words ", 100)})
	out := corpustest.Dir(t, map[string]string{"mine": "keep"})
	o := Options{Sources: []string{src}, Out: out, Format: NPY, ShardTokens: 50}
	if _, err := run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("not empty: got %v", err)
	}
	o.Force = true
	first, err := run(context.Background(), o)
	if err != nil || len(first.Shards) < 3 {
		t.Fatalf("%d shards, %v", len(first.Shards), err)
	}
	o.ShardTokens = 0 // one shard: those of the run before must go, or a loader would read them as well
	if _, err := run(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	files := readDir(t, out)
	if len(files) != 3 || string(files["mine"]) != "keep" || files["data_00000.npy"] == nil {
		t.Errorf("left: %v", len(files))
	}
	o.Format = NanoGPT
	if err := os.WriteFile(filepath.Join(out, "train.bin"), []byte("theirs"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "no earlier pack wrote it") {
		t.Errorf("somebody else's file: got %v", err)
	}
	if files := readDir(t, out); string(files["train.bin"]) != "theirs" || files["data_00000.npy"] == nil {
		t.Error("a refused run changed the directory")
	}
}

func TestOutputInsideTheSource(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.txt": "text", "out/b.txt": "older"})
	result, err := run(context.Background(), Options{Sources: []string{dir}, Out: filepath.Join(dir, "out"), Force: true})
	if err != nil || result.Documents != 1 {
		t.Errorf("%d documents, want only the one outside the output (%v)", result.Documents, err)
	}
}

func TestLinks(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"real/a.txt": "text", "other.txt": "not below it"})
	for link, target := range map[string]string{"link": "real", "real/b.txt": "../other.txt", ".hidden": "real"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{"real", "real/", "link", ".hidden"} {
		if result, _ := runPack(t, Options{Sources: []string{dir + "/" + source}}); result.Documents != 1 {
			t.Errorf("%s: %d documents, want the file that is no link", source, result.Documents)
		}
	}
	t.Chdir(dir)
	if result, _ := runPack(t, Options{Sources: []string{"."}, Out: filepath.Join(t.TempDir(), "out")}); result.Documents != 2 {
		t.Errorf("the current directory: %d documents, want 2", result.Documents)
	}
}

// memoryIndex recognizes the files of a directory as package cache does, without importing it.
func memoryIndex(ctx context.Context, dir string) (*layout.Volume, error) {
	var objects []*layout.Object
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		objects = append(objects, layout.Bytes(e.Name(), data))
	}
	return layout.Index(ctx, objects, layout.Options{})
}

func TestPackTokensAgain(t *testing.T) {
	docs := manyDocs(50000)
	for i := range docs {
		docs[i] = append(docs[i], 50256)
	}
	first := filepath.Join(t.TempDir(), "first")
	_, llmc, err := packTokens(t, Options{Format: LLMC, Out: first, ShardTokens: 10000}, docs, 65536)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Sources: []string{first}, Index: memoryIndex, DocumentEnd: "50256"}
	result, files := runPack(t, o)
	if got := readMegatron(t, files["data_text_document.idx"], files["data_text_document.bin"]); !reflect.DeepEqual(got, docs) {
		t.Errorf("%d documents come back, want %d", len(got), len(docs))
	}
	if result.Tokenizer != "" || result.Empty != 0 {
		t.Errorf("tokenizer %q, %d empty", result.Tokenizer, result.Empty)
	}
	o.Format, o.ShardTokens, o.Out = LLMC, 10000, ""
	if _, files := runPack(t, o); !reflect.DeepEqual(files["data_train_000003.bin"], llmc["data_train_000003.bin"]) {
		t.Error("llm.c to llm.c gives other bytes")
	}
	o.Sources, o.Format, o.ShardTokens = []string{filepath.Join(first, "data_train_000001.bin")}, NanoGPT, 0
	if result, files := runPack(t, o); !bytes.Equal(files["train.bin"], llmc["data_train_000001.bin"][1024:]) || result.Tokens != 10000 {
		t.Error("one shard gives other tokens")
	}
	if _, err := run(context.Background(), Options{Sources: []string{first, corpustest.Dir(t, map[string]string{"a": "b"})},
		Index: memoryIndex, Out: filepath.Join(t.TempDir(), "x")}); err == nil || !strings.Contains(err.Error(), "some are tokens") {
		t.Errorf("text and tokens: got %v", err)
	}
}

func TestPackMegatronAgainKeepsDocuments(t *testing.T) {
	docs := manyDocs(1 << 16)
	first := filepath.Join(t.TempDir(), "first")
	_, want, err := packTokens(t, Options{Out: first}, docs, 65536)
	if err != nil {
		t.Fatal(err)
	}
	_, files := runPack(t, Options{Sources: []string{first}, Index: memoryIndex})
	for _, name := range []string{"data_text_document.bin", "data_text_document.idx"} {
		if !bytes.Equal(files[name], want[name]) {
			t.Errorf("%s differs after a round trip", name)
		}
	}
	_, files = runPack(t, Options{Sources: []string{filepath.Join(first, "data_text_document.bin")}, Index: memoryIndex, Format: MDS, DType: "u32"})
	if got, _ := readMDS(t, files["shard.00000.mds"], false, 4); !reflect.DeepEqual(got, docs) {
		t.Error("the .bin alone, as MDS, gives other samples")
	}
}
