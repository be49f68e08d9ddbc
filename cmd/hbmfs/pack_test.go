package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/pack"
	"github.com/hbmfs/hbmfs/internal/pack/tokenizer"
	"github.com/hbmfs/hbmfs/layout"
)

// packed is how a command line ended.
type packed struct {
	code           int
	stdout, stderr string
}

func runPackLine(t *testing.T, args ...string) packed {
	t.Helper()
	code, stdout, stderr := said(append([]string{"pack"}, args...)...)
	return packed{code, stdout, stderr}
}

// packSource makes a directory of two texts and five lines of JSONL.
func packSource(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.txt": strings.Repeat("some words ", 100), "b.txt": "more",
		"c.jsonl": strings.Repeat("{\"text\": \"a line\", \"body\": \"another\"}\n", 5),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestPackFormats(t *testing.T) {
	source := packSource(t)
	for format, want := range map[string][]string{
		"megatron": {"data_text_document.bin", "data_text_document.idx"},
		"llmc":     {"data_train_000000.bin"},
		"nanogpt":  {"train.bin"},
		"npy":      {"data_00000.npy"},
		"mds":      {"index.json", "shard.00000.mds"},
	} {
		out := filepath.Join(t.TempDir(), "out")
		got := runPackLine(t, "--to", format, source, out)
		if got.code != exitOK || got.stderr != "" || !strings.HasPrefix(got.stdout, out+": ") || !strings.Contains(got.stdout, " tokens (u16) of 7 documents in 1 shards, ") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", format, got.code, got.stdout, got.stderr)
			continue
		}
		want = append(want, layout.ManifestName)
		slices.Sort(want)
		if names := namesIn(t, out); !slices.Equal(names, want) {
			t.Errorf("%s: files %v, want %v", format, names, want)
		}
	}
}

func TestPackJSON(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	got := runPackLine(t, "--json", "--to", "npy", "--tokenizer", "cl100k_base", "--name", "corpus", "--shard-tokens", "100", packSource(t), out)
	var result pack.Result
	if err := json.Unmarshal([]byte(got.stdout), &result); err != nil || got.code != exitOK {
		t.Fatalf("exit %d, %v, stdout %q, stderr %q", got.code, err, got.stdout, got.stderr)
	}
	if result.Format != "npy" || result.DType != "u32" || result.Tokenizer != "cl100k_base" || result.Documents != 7 ||
		len(result.Shards) < 2 || result.Shards[1] != "corpus_00001.npy" || len(result.Files) != len(result.Shards) {
		t.Errorf("got %+v", result)
	}
	var keys map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &keys); err != nil {
		t.Fatal(err)
	}
	want := []string{"bytes_read", "documents", "dropped_tokens", "dtype", "empty", "files", "format", "held_out", "left_out", "repaired", "seconds", "shards", "skipped", "skipped_bytes", "tokenizer", "tokens"}
	if names := slices.Sorted(maps.Keys(keys)); !slices.Equal(names, want) { // scripts depend on them
		t.Errorf("keys %v, want %v", names, want)
	}
}

func TestPackFlagsReachTheRun(t *testing.T) {
	source := packSource(t)
	for _, tc := range []struct {
		args []string
		want func(r pack.Result) bool
	}{
		{[]string{"--include", "*.txt"}, func(r pack.Result) bool { return r.Documents == 2 }},
		{[]string{"--include", "*.txt", "--include", "c*"}, func(r pack.Result) bool { return r.Documents == 7 }},
		{[]string{"--from", "text"}, func(r pack.Result) bool { return r.Documents == 3 }},
		{[]string{"--include", "*.jsonl", "--text-key", "body"}, func(r pack.Result) bool { return r.Tokens == 10 }},
		{[]string{"--include", "*.jsonl", "--eot", "none"}, func(r pack.Result) bool { return r.Tokens == 10 }},
		{[]string{"--include", "*.jsonl"}, func(r pack.Result) bool { return r.Tokens == 15 }},
		{[]string{"--dtype", "i32"}, func(r pack.Result) bool { return r.DType == "i32" }},
		{[]string{"--to", "nanogpt", "--val-fraction", "0.5"}, func(r pack.Result) bool { return slices.Contains(r.Shards, "val.bin") }},
		{[]string{"--to", "mds", "--sample-tokens", "64"}, func(r pack.Result) bool { return r.Tokens%64 == 0 && r.DroppedTokens > 0 }},
		{[]string{"--workers", "1"}, func(r pack.Result) bool { return r.Documents == 7 }},
	} {
		got := runPackLine(t, append(append([]string{"--json"}, tc.args...), source, filepath.Join(t.TempDir(), "out"))...)
		var result pack.Result
		if err := json.Unmarshal([]byte(got.stdout), &result); err != nil || got.code != exitOK || !tc.want(result) {
			t.Errorf("%v: exit %d, %s%s", tc.args, got.code, got.stdout, got.stderr)
		}
	}
}

func TestPackListsTokenizers(t *testing.T) {
	got := runPackLine(t, "--tokenizer", "list")
	if want := strings.Join(tokenizer.Names(), "\n") + "\n"; got.code != exitOK || got.stdout != want || got.stderr != "" {
		t.Errorf("exit %d, stdout %q, want %q", got.code, got.stdout, want)
	}
}

func TestPackMistakes(t *testing.T) {
	source := packSource(t)
	tokens := filepath.Join(t.TempDir(), "tokens")
	if got := runPackLine(t, source, tokens); got.code != exitOK {
		t.Fatal(got.stderr)
	}
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{}, exitUsage, "pack needs at least one source and the output directory: usage: hbmfs pack SOURCE... OUT"},
		{[]string{source}, exitUsage, "pack needs at least one source"},
		{[]string{"--colour", source, "OUT"}, exitUsage, "unknown flag --colour: hbmfs pack --help lists the flags"},
		{[]string{"--to", "parquet", source, "OUT"}, exitUsage, `--to: "parquet" is none of megatron, llmc`},
		{[]string{"--from", "csv", source, "OUT"}, exitUsage, `--from: "csv" is none of auto, text`},
		{[]string{"--tokenizer", "gpt5", source, "OUT"}, exitUsage, `tokenizer "gpt5" is none of gpt2`},
		{[]string{"--tokenizer", "gpt2", tokens, "OUT"}, exitUsage, "the source is tokenized already"},
		{[]string{"--eot", "soon", source, "OUT"}, exitUsage, `eot "soon"`},
		{[]string{"--document-end", "x", tokens, "OUT"}, exitUsage, `document end "x" is not a token`},
		{[]string{"--dtype", "u32", source, "OUT"}, exitUsage, "megatron cannot hold dtype u32"},
		{[]string{"--shard-tokens", "5kb", source, "OUT"}, exitUsage, `--shard-tokens: "5kb" is no number such as 2048, 64k, 100M, 1.5G or 1T`},
		{[]string{"--shard-tokens", "-5", source, "OUT"}, exitUsage, `"-5" is no number such as`},
		{[]string{"--shard-tokens", "99999999999G", source, "OUT"}, exitUsage, "is no whole number, or one that is too large"},
		{[]string{"--sample-tokens", "5", source, "OUT"}, exitUsage, "only mds takes --sample-tokens"},
		{[]string{"--val-fraction", "1", "--to", "llmc", source, "OUT"}, exitUsage, "the validation fraction is 1"},
		{[]string{"--workers", "-1", source, "OUT"}, exitUsage, "there cannot be -1 workers"},
		{[]string{"--include", "[", source, "OUT"}, exitUsage, `glob "["`},
		{[]string{"--name", "a/b", source, "OUT"}, exitUsage, `name "a/b" cannot start a file name`},
		{[]string{"--from", "tokens", source, "OUT"}, exitFailed, "holds no tokens that this program can read"},
		{[]string{source + "/none", "OUT"}, exitFailed, "no such file or directory"},
		{[]string{source, tokens, "OUT"}, exitFailed, "some sources are text and some are tokens"},
		{[]string{"--text-key", "none", source, "OUT"}, exitFailed, `c.jsonl: line 1: there is no key "none"`},
		{[]string{source, tokens}, exitFailed, "is not empty: choose another directory, or use --force"},
	} {
		out := filepath.Join(t.TempDir(), "out")
		args := slices.Clone(tc.args)
		if n := len(args); n > 0 && args[n-1] == "OUT" {
			args[n-1] = out
		}
		got := runPackLine(t, args...)
		if got.code != tc.code || got.stdout != "" || !strings.HasPrefix(got.stderr, "hbmfs: ") || !strings.Contains(got.stderr, tc.want) ||
			strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%v: exit %d, stdout %q, stderr %q; want exit %d and %q", tc.args, got.code, got.stdout, got.stderr, tc.code, tc.want)
		}
		if _, err := os.Stat(out); !os.IsNotExist(err) {
			t.Errorf("%v: the output directory is there", tc.args)
		}
	}
}

func TestPackForceReplacesAnEarlierPack(t *testing.T) {
	source, out := packSource(t), filepath.Join(t.TempDir(), "out")
	for _, args := range [][]string{{"--to", "npy"}, {"--to", "nanogpt", "--force"}} {
		if got := runPackLine(t, append(args, source, out)...); got.code != exitOK {
			t.Fatalf("%v: %s", args, got.stderr)
		}
	}
	if names := namesIn(t, out); !slices.Equal(names, []string{layout.ManifestName, "train.bin"}) {
		t.Errorf("left: %v", names)
	}
}

func TestPackWarns(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{"a.txt": "an \xff invalid byte", "b.bin": "\x00", "c.txt": strings.Repeat("word ", 100)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := runPackLine(t, "--include", "*.txt", "--to", "mds", "--sample-tokens", "90", dir, filepath.Join(t.TempDir(), "out"))
	for _, want := range []string{"invalid UTF-8 in 1 documents was replaced", "tokens fill no sample and were left out"} {
		if got.code != exitOK || !strings.Contains(got.stderr, want) {
			t.Errorf("exit %d, stderr %q, want %q", got.code, got.stderr, want)
		}
	}
	got = runPackLine(t, "--to", "nanogpt", "--val-fraction", "0.001", packSource(t), filepath.Join(t.TempDir(), "out"))
	if want := "warning: 0.001 of 7 documents is less than one: there is no validation split\n"; got.code != exitOK || got.stderr != want {
		t.Errorf("exit %d, stderr %q, want %q", got.code, got.stderr, want)
	}
	got = runPackLine(t, dir, filepath.Join(t.TempDir(), "out"))
	want := "left out: " + dir + "/a.txt: it is not UTF-8: 1 of its first 17 bytes are not. Name it, or use --include, and they are replaced\n" +
		"left out: " + dir + "/b.bin: it is no text: byte 0 is NUL\n"
	if got.code != exitOK || got.stderr != want {
		t.Errorf("exit %d, stderr %q, want %q", got.code, got.stderr, want)
	}
}

func TestPackInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var stdout, stderr bytes.Buffer
	out := filepath.Join(t.TempDir(), "out")
	code := run(ctx, []string{"hbmfs", "pack", packSource(t), out}, &stdout, &stderr)
	if code != exitSignal || stderr.String() != "hbmfs: interrupted\n" {
		t.Errorf("exit %d, stderr %q", code, stderr.String())
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Error("the output directory is there")
	}
}

// What pack writes, inspect finds sound.
func TestPackVerifies(t *testing.T) {
	source := packSource(t)
	for _, format := range pack.Formats() {
		out := filepath.Join(t.TempDir(), "out")
		if got := runPackLine(t, "--to", format, source, out); got.code != exitOK {
			t.Fatalf("%s: %s", format, got.stderr)
		}
		if code, stdout, stderr := said("inspect", "--verify", out); code != exitOK {
			t.Errorf("%s: inspect --verify ends with %d: %s%s", format, code, stdout, stderr)
		}
	}
}

// A source may be an address: its bytes are those of the file beside it.
func TestPackOverHTTP(t *testing.T) {
	dir := t.TempDir()
	lines := strings.Repeat("{\"text\": \"a document of the web\"}\n", 50_000)
	if err := os.WriteFile(filepath.Join(dir, "web.jsonl"), []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	local, remote := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
	if got := runPackLine(t, filepath.Join(dir, "web.jsonl"), local); got.code != exitOK {
		t.Fatal(got.stderr)
	}
	if got := runPackLine(t, server.URL+"/web.jsonl", remote); got.code != exitOK {
		t.Fatal(got.stderr)
	}
	for _, name := range namesIn(t, local) {
		want, err := os.ReadFile(filepath.Join(local, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(remote, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, want %d (%v)", name, len(got), len(want), err)
		}
	}
	got := runPackLine(t, server.URL+"/none.jsonl", filepath.Join(t.TempDir(), "out"))
	if got.code != exitFailed || !strings.Contains(got.stderr, "none.jsonl") {
		t.Errorf("a missing file: exit %d, %s", got.code, got.stderr)
	}
	if got := runPackLine(t, "ftp://host/file", filepath.Join(t.TempDir(), "out")); got.code != exitUsage || !strings.Contains(got.stderr, "there are s3://") {
		t.Errorf("ftp: exit %d, %s", got.code, got.stderr)
	}
}

func TestPackPartAndJoin(t *testing.T) {
	source, top := packSource(t), t.TempDir()
	one := filepath.Join(top, "one")
	if got := runPackLine(t, "--to", "npy", source, one); got.code != exitOK {
		t.Fatal(got.stderr)
	}
	for _, part := range []string{"1", "0"} {
		if got := runPackLine(t, "--to", "npy", "--part", part+"/2", source, filepath.Join(top, "parts", part)); got.code != exitOK {
			t.Fatal(got.stderr)
		}
	}
	joined := filepath.Join(top, "joined")
	if got := runPackLine(t, "--join", joined, filepath.Join(top, "parts", "1"), filepath.Join(top, "parts", "0")); got.code != exitOK || !strings.Contains(got.stdout, "of 7 documents in 1 shards") {
		t.Fatalf("%s%s", got.stdout, got.stderr)
	}
	for _, name := range namesIn(t, one) {
		want, _ := os.ReadFile(filepath.Join(one, name))
		if got, err := os.ReadFile(filepath.Join(joined, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs (%v)", name, err)
		}
	}
	for want, args := range map[string][]string{
		"--part: \"2/2\" is no part: write I/N, with I from 0 to N-1": {"--part", "2/2", source, filepath.Join(top, "x")},
		"--to was said when the parts were packed: leave it out":      {"--join", "--to", "mds", filepath.Join(top, "x"), one},
		"--save-every 0s: want a time such as 20s":                    {"--save-every", "0s", source, filepath.Join(top, "x")},
	} {
		if got := runPackLine(t, args...); got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%v: exit %d, %s", args, got.code, got.stderr)
		}
	}
}
