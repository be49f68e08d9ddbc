package pack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/pack/corpus/corpustest"
)

func TestCompressedGivesTheSameBytes(t *testing.T) {
	lines := "{\"text\": \"one document\"}\n{\"text\": \"and another\"}\n"
	_, want := runPack(t, Options{Sources: []string{corpustest.Dir(t, map[string]string{"a.jsonl": lines, "b.txt": "plain text", "c.json": lines})}})
	skipped := "\x5a\x2a\x4d\x18\x03\x00\x00\x00xyz"
	for what, files := range map[string]map[string]string{
		"gzip":             {"a.jsonl.gz": corpustest.Gzip(t, lines), "b.txt.gz": corpustest.Gzip(t, "plain text"), "c.json.gz": corpustest.Gzip(t, lines)},
		"zstd":             {"a.jsonl.zst": corpustest.Zstd(t, lines), "b.txt.zst": corpustest.Zstd(t, "plain text"), "c.json.zst": corpustest.Zstd(t, lines)},
		"other names":      {"a.ndjson": corpustest.Gzip(t, lines), "b": corpustest.Zstd(t, "plain text"), "c.JSON.zstd": corpustest.Zstd(t, lines)},
		"plain, so named":  {"a.jsonl.gz": lines, "b.zst": "plain text", "c.json.gz": lines},
		"the other format": {"a.jsonl.gz": corpustest.Zstd(t, lines), "b.gz": corpustest.Zstd(t, "plain text"), "c.json.zst": corpustest.Gzip(t, lines)},
		"in two members":   {"a.jsonl.gz": corpustest.Gzip(t, lines[:30]) + corpustest.Gzip(t, lines[30:]), "b.zst": corpustest.Zstd(t, "plain ") + skipped + corpustest.Zstd(t, "text"), "c.json": lines},
		"skipped first":    {"a.jsonl.zst": skipped + corpustest.Zstd(t, lines), "b.gz": corpustest.Gzip(t, "") + corpustest.Gzip(t, "plain text"), "c.json": lines},
	} {
		dir := corpustest.Dir(t, files)
		if _, got := runPack(t, Options{Sources: []string{dir}}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the directory gives other bytes", what)
		}
		var each []string
		for name := range files {
			each = append(each, filepath.Join(dir, name))
		}
		if result, _ := runPack(t, Options{Sources: each, Index: memoryIndex}); result.Documents != 5 || result.Skipped != 0 {
			t.Errorf("%s: %d documents of the files, %d skipped", what, result.Documents, result.Skipped)
		}
	}
}

func TestCompressedBinariesAreSkipped(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.txt": strings.Repeat("text ", 100), "b.gz": corpustest.Gzip(t, "\x00\x01"), "c.tar.zst": corpustest.Zstd(t, "name\x00\x00")})
	if result, _ := runPack(t, Options{Sources: []string{dir}}); result.Documents != 1 || result.Skipped != 2 {
		t.Errorf("%d documents, %d skipped", result.Documents, result.Skipped)
	}
}

func TestTruncatedSourceNamesFileAndOffset(t *testing.T) {
	lines := corpustest.Gzip(t, strings.Repeat("{\"text\": \"a document\"}\n", 1000))
	cut := len(lines) - 5
	dir := corpustest.Dir(t, map[string]string{"a.jsonl.gz": lines[:cut]})
	out := filepath.Join(t.TempDir(), "out")
	_, err := run(context.Background(), Options{Sources: []string{dir}, Out: out})
	want := fmt.Sprintf("read %s: line 1001: the gzip stream is cut off at byte %d of the file", filepath.Join(dir, "a.jsonl.gz"), cut)
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Error("the output directory is still there")
	}
}

func TestProgressCountsStoredBytes(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.txt.gz": corpustest.Gzip(t, strings.Repeat("some words ", 200_000)), "b.txt": strings.Repeat("more words ", 50_000)})
	stored := int64(0)
	for _, data := range readDir(t, dir) {
		stored += int64(len(data))
	}
	last := int64(0)
	result, _ := runPack(t, Options{Sources: []string{dir}, Progress: func(done, total int64) {
		if total != stored || done < last || done > total {
			t.Fatalf("%d of %d after %d, want a total of %d", done, total, last, stored)
		}
		last = done
	}})
	if last != stored || result.BytesRead != stored {
		t.Errorf("the last call says %d, the result %d, want %d", last, result.BytesRead, stored)
	}
}
