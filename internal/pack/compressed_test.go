package pack

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func gzipped(t testing.TB, text string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Name, w.Extra = "a name", []byte("more") // so that there are more places to end in
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func zstded(t testing.TB, text string) string {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // EncodeAll leaves nothing to write
	return string(w.EncodeAll([]byte(text), nil))
}

func TestCompressedGivesTheSameBytes(t *testing.T) {
	lines := "{\"text\": \"one document\"}\n{\"text\": \"and another\"}\n"
	_, want := runPack(t, Options{Sources: []string{writeFiles(t, map[string]string{"a.jsonl": lines, "b.txt": "plain text", "c.json": lines})}})
	skipped := "\x5a\x2a\x4d\x18\x03\x00\x00\x00xyz"
	for what, files := range map[string]map[string]string{
		"gzip":             {"a.jsonl.gz": gzipped(t, lines), "b.txt.gz": gzipped(t, "plain text"), "c.json.gz": gzipped(t, lines)},
		"zstd":             {"a.jsonl.zst": zstded(t, lines), "b.txt.zst": zstded(t, "plain text"), "c.json.zst": zstded(t, lines)},
		"other names":      {"a.ndjson": gzipped(t, lines), "b": zstded(t, "plain text"), "c.JSON.zstd": zstded(t, lines)},
		"plain, so named":  {"a.jsonl.gz": lines, "b.zst": "plain text", "c.json.gz": lines},
		"the other format": {"a.jsonl.gz": zstded(t, lines), "b.gz": zstded(t, "plain text"), "c.json.zst": gzipped(t, lines)},
		"in two members":   {"a.jsonl.gz": gzipped(t, lines[:30]) + gzipped(t, lines[30:]), "b.zst": zstded(t, "plain ") + skipped + zstded(t, "text"), "c.json": lines},
		"skipped first":    {"a.jsonl.zst": skipped + zstded(t, lines), "b.gz": gzipped(t, "") + gzipped(t, "plain text"), "c.json": lines},
	} {
		dir := writeFiles(t, files)
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
	dir := writeFiles(t, map[string]string{"a.txt": strings.Repeat("text ", 100), "b.gz": gzipped(t, "\x00\x01"), "c.tar.zst": zstded(t, "name\x00\x00")})
	if result, _ := runPack(t, Options{Sources: []string{dir}}); result.Documents != 1 || result.Skipped != 2 {
		t.Errorf("%d documents, %d skipped", result.Documents, result.Skipped)
	}
}

// read returns what a file of that name and content decompresses to.
func read(name, content string) (string, error) {
	s, err := newStream(name, io.NopCloser(strings.NewReader(content)))
	if err != nil {
		return "", err
	}
	defer s.close()
	text, err := io.ReadAll(s)
	return string(text), err
}

func TestEveryTruncation(t *testing.T) {
	text := strings.Repeat("some text, again and again. ", 20)
	for name, content := range map[string]string{"a.gz": gzipped(t, text), "a.zst": zstded(t, text)} {
		for n := range len(content) {
			_, err := read(name, content[:n])
			if want := fmt.Sprintf("stream is cut off at byte %d of the file", n); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %d of %d bytes: got %v", name, n, len(content), err)
			}
		}
		if got, err := read(name, content); got != text || err != nil {
			t.Errorf("%s: got %d bytes, %v", name, len(got), err)
		}
		for n := 1; n < len(content); n++ { // the second member is cut off
			if _, err := read(name, content+content[:n]); err == nil {
				t.Errorf("%s, %d bytes of a second member: no error", name, n)
			}
		}
	}
}

// A flipped bit gives an error or changes nothing: both formats have a checksum.
func TestEveryFlippedBit(t *testing.T) {
	text := strings.Repeat("some text, again and again. ", 20)
	for name, content := range map[string]string{"a.gz": gzipped(t, text), "a.zst": zstded(t, text)} {
		for bit := 8 * 4; bit < 8*len(content); bit++ { // after the magic
			flipped := []byte(content)
			flipped[bit/8] ^= 1 << (bit % 8)
			if got, err := read(name, string(flipped)); err == nil && got != text {
				t.Errorf("%s, bit %d: other text and no error", name, bit)
			}
		}
	}
}

func TestTruncatedSourceNamesFileAndOffset(t *testing.T) {
	lines := gzipped(t, strings.Repeat("{\"text\": \"a document\"}\n", 1000))
	cut := len(lines) - 5
	dir := writeFiles(t, map[string]string{"a.jsonl.gz": lines[:cut]})
	out := filepath.Join(t.TempDir(), "out")
	_, err := Run(context.Background(), Options{Sources: []string{dir}, Out: out})
	want := fmt.Sprintf("read %s: line 1001: the gzip stream is cut off at byte %d of the file", filepath.Join(dir, "a.jsonl.gz"), cut)
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Error("the output directory is still there")
	}
}

func TestZstdWindow(t *testing.T) {
	hi := "\x11\x00\x00hi" // the last block, raw
	for _, tc := range []struct{ what, header, want string }{
		{"128 MiB", "\x00\x88", ""},
		{"2 GiB", "\x00\xa8", "needs more than 128 MiB"},
		{"256 MiB", "\x00\x90", "needs more than 128 MiB"},
		{"one segment of 1 TiB", "\xe0\x00\x00\x00\x00\x00\x01\x00\x00", "needs more than 128 MiB"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := read("a", zstdMagic+tc.header+hi)
		runtime.ReadMemStats(&after)
		if tc.want == "" && (got != "hi" || err != nil) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %q, %v", tc.what, got, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 300<<20 {
			t.Errorf("%s: %d bytes were allocated", tc.what, used)
		}
	}
}

// A small file that decompresses to much costs time, not memory.
func TestBomb(t *testing.T) {
	const size = 32 << 20
	for name, word := range map[string]string{"a.txt": "word ", "b.jsonl": strings.Repeat(" ", 4095) + "\n"} {
		dir := writeFiles(t, map[string]string{name: zstded(t, strings.Repeat(word, size/len(word)))})
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		var before, now runtime.MemStats
		runtime.ReadMemStats(&before)
		s := fileSource{files: []inputFile{{path: path, size: info.Size(), kind: kindOf(name)}}, key: "text", limit: maxDocument, lastCut: newEncoder(t, "").LastCut}
		bytes, read := 0, int64(0)
		err = s.Documents(context.Background(), func(d Document) error {
			if bytes += len(d.Text); d.Read < read || d.Read > info.Size() {
				t.Fatalf("%d of %d bytes are read after %d", d.Read, info.Size(), read)
			}
			read = d.Read
			return nil
		})
		runtime.ReadMemStats(&now)
		if err != nil || word == "word " && (bytes != size/5*5 || read != info.Size()) {
			t.Errorf("%s: %d bytes of text, %d of %d read, %v", name, bytes, read, info.Size(), err)
		}
		if used := now.TotalAlloc - before.TotalAlloc; used > 16<<20 {
			t.Errorf("%s: %d bytes were allocated", name, used)
		}
	}
}

func TestLongLineOfABomb(t *testing.T) {
	dir := writeFiles(t, map[string]string{"a.jsonl.gz": gzipped(t, `{"text": "`+strings.Repeat("a", 4<<20))})
	s := fileSource{files: []inputFile{{path: filepath.Join(dir, "a.jsonl.gz"), kind: asJSONL}}, key: "text", limit: 1 << 20, lastCut: newEncoder(t, "").LastCut}
	err := s.Documents(context.Background(), func(Document) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "line 1: the line is too long: more than 1048576 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestJSONByContent(t *testing.T) {
	for _, tc := range []struct {
		what, content string
		want          []string
		err           string
	}{
		{what: "lines", content: "{\"text\": \"a\"}\n{\"text\": \"b\"}", want: []string{"a", "b"}},
		{what: "one line", content: "{\"text\": \"a\"}\n", want: []string{"a"}},
		{what: "one object without a text", content: "{\"name\": \"a\"}\n", want: []string{"{\"name\": \"a\"}\n"}},
		{what: "an object over lines", content: "{\n\"text\": \"a\"}\n", want: []string{"{\n\"text\": \"a\"}\n"}},
		{what: "an array", content: "[{\"text\": \"a\"}]\n", want: []string{"[{\"text\": \"a\"}]\n"}},
		{what: "null", content: "null\n{}", want: []string{"null\n{}"}},
		{what: "a long line", content: "{\"text\": \"" + strings.Repeat("a b ", 100) + "\"}", want: []string{"{\"text\": \"" + strings.Repeat("a b ", 100) + "\"}"}},
		{what: "lines without the key", content: "{\"body\": \"a\"}\n{\"body\": \"b\"}", err: `a.json: line 1: there is no key "text"`},
	} {
		dir := writeFiles(t, map[string]string{"a.json": tc.content})
		s := fileSource{files: []inputFile{{path: filepath.Join(dir, "a.json"), kind: asJSON}}, key: "text", limit: 300, lastCut: newEncoder(t, "").LastCut}
		var got []string
		whole := true
		err := s.Documents(context.Background(), func(d Document) error {
			if whole {
				got = append(got, "")
			}
			got[len(got)-1] += string(d.Text)
			whole = !d.More
			return nil
		})
		if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) || tc.err == "" && (err != nil || !reflect.DeepEqual(got, tc.want)) {
			t.Errorf("%s: got %q, %v", tc.what, got, err)
		}
	}
}

func TestProgressCountsStoredBytes(t *testing.T) {
	dir := writeFiles(t, map[string]string{"a.txt.gz": gzipped(t, strings.Repeat("some words ", 200_000)), "b.txt": strings.Repeat("more words ", 50_000)})
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

// What is no whole zstd stream is an error; what is one comes out as DecodeAll gives it.
func FuzzZstd(f *testing.F) {
	whole := zstded(f, "some text, some text")
	for _, seed := range []string{whole, whole + whole, whole[:10], zstdMagic + "\x00\x88\x11\x00\x00hi"} {
		f.Add([]byte(seed))
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(1<<24))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(d.Close)
	f.Fuzz(func(t *testing.T, content []byte) {
		if !strings.HasPrefix(string(content), zstdMagic) {
			return
		}
		want, wantErr := d.DecodeAll(content, nil)
		s, err := newStream("a", io.NopCloser(bytes.NewReader(content)))
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		got, err := io.ReadAll(io.LimitReader(s, 1<<25))
		if wantErr == nil && (err != nil || !bytes.Equal(got, want)) {
			t.Errorf("got %d bytes, %v; want %d", len(got), err, len(want))
		}
	})
}
