package corpus

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/hbmfs/hbmfs/internal/pack/corpus/corpustest"
	"github.com/hbmfs/hbmfs/internal/pack/tokenizer"
	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// opened is the usual tokenizer. All tests share it, since opening one takes a third of a second under the race detector.
var opened = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return tokenizer.Open("") })

func lastCut(t testing.TB) func([]byte) int {
	t.Helper()
	tok, err := opened()
	if err != nil {
		t.Fatal(err)
	}
	return tok.LastCut
}

// corpusOf lists sources.
func corpusOf(t testing.TB, opt Options, sources ...string) *Corpus {
	t.Helper()
	if opt.Cut == nil {
		opt.Cut = lastCut(t)
	}
	c := New(opt)
	for _, s := range sources {
		if err := c.Add(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Tokens(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// outcome is what spans gave.
type outcome struct {
	docs    []string
	leftOut []string // name: reason
	ends    []Position
	seen    []int // documents before each of ends
}

// readSpans reads spans from a position on.
func readSpans(ctx context.Context, c *Corpus, spans []Span, from Position) (o outcome, err error) {
	whole := true
	for _, s := range spans {
		if s.File < from.File {
			continue
		}
		at := Position{}
		if s.File == from.File {
			at = from
		}
		err := c.Read(ctx, s, at, func(b *Block) error {
			if b.LeftOut != nil {
				o.leftOut = append(o.leftOut, filepath.Base(b.LeftOut.Name)+": "+b.LeftOut.Reason)
			}
			if b.Read < 0 || b.Read > s.To-s.From {
				return fmt.Errorf("%d of %d bytes are read", b.Read, s.To-s.From)
			}
			err := b.Documents(func(d Document) error {
				text := string(d.Text)
				if d.Tokens != nil {
					text = fmt.Sprint(d.Tokens)
				}
				if d.Continued == whole {
					return fmt.Errorf("a document is continued: %v, after a whole one: %v", d.Continued, whole)
				}
				if whole {
					o.docs = append(o.docs, "")
				}
				o.docs[len(o.docs)-1] += text
				whole = !d.More
				return nil
			})
			if !b.Next.In {
				o.ends, o.seen = append(o.ends, b.Next), append(o.seen, len(o.docs))
			}
			return err
		})
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

func readAll(t testing.TB, c *Corpus) (outcome, error) {
	t.Helper()
	return readSpans(t.Context(), c, c.Part(0, 1), Position{})
}

func TestKindsByContent(t *testing.T) {
	lines := "{\"text\": \"a\"}\n{\"text\": \"b\"}"
	for _, tc := range []struct {
		what, name, content string
		want                []string
		err                 string
	}{
		{what: "lines", content: lines, want: []string{"a", "b"}},
		{what: "lines under any name", name: "data.txt", content: lines, want: []string{"a", "b"}},
		{what: "one line", content: "{\"text\": \"a\"}\n", want: []string{"a"}},
		{what: "one object without a text", content: "{\"name\": \"a\"}\n", want: []string{"{\"name\": \"a\"}\n"}},
		{what: "an object over lines", content: "{\n\"text\": \"a\"}\n", want: []string{"{\n\"text\": \"a\"}\n"}},
		{what: "an array", content: " [ {\"text\": \"a\\u00e9\"} ,\n{\"x\": [\"]}\"], \"text\": \"b\"}]\n", want: []string{"aé", "b"}},
		{what: "an array of numbers", content: "[1, 2]\n", want: []string{"[1, 2]\n"}},
		{what: "an array in prose", name: "a.md", content: "[{link}](x)", want: []string{"[{link}](x)"}},
		{what: "null", content: "null\n{}", want: []string{"null\n{}"}},
		{what: "a long line", content: "{\"text\": \"" + strings.Repeat("a b ", 100) + "\"}", want: []string{"{\"text\": \"" + strings.Repeat("a b ", 100) + "\"}"}},
		{what: "lines without the key", content: "{\"body\": \"a\"}\n{\"body\": \"b\"}", err: `a.json: line 1: there is no key "text"`},
		{what: "an array without the key", content: "[{\"body\": \"a\"}]", err: `a.json: element 1: there is no key "text", name the one that holds the text with --text-key`},
		{what: "a mixed array", content: "[{\"text\": \"a\"}, 5]", err: `element 2: '5' stands at byte 16, where an object is expected`},
		{what: "an array without commas", content: "[{\"text\": \"a\"} {\"text\": \"a\"}]", err: `element 2: '{' stands at byte 15, where a comma or the end of the array is expected`},
		{what: "two arrays", content: "[{\"text\": \"a\"}][]", err: `element 2: '[' follows the end of the array at byte 15`},
		{what: "half an array", content: "[{\"text\": \"a\"}, {\"te", err: `element 2: the array is cut off at byte 20`},
		{what: "a large element", content: "[{\"text\": \"" + strings.Repeat("a", 300) + "\"}]", err: "more than 300 bytes"},
		{what: "broken lines", content: lines + "\n{", err: "line 3: not a JSON object"},
	} {
		if tc.name == "" {
			tc.name = "a.json"
		}
		dir := corpustest.Dir(t, map[string]string{tc.name: tc.content})
		c := corpusOf(t, Options{}, filepath.Join(dir, tc.name))
		c.limit = 300
		got, err := readAll(t, c)
		if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) || tc.err == "" && (err != nil || !reflect.DeepEqual(got.docs, tc.want)) {
			t.Errorf("%s: got %q, %v", tc.what, got.docs, err)
		}
	}
}

// Every kind of file that is refused has its sentence: as an error where it is named, as a reason where it is found.
func TestRefusals(t *testing.T) {
	binary := "\x01\x02\x03\x04"
	for name, tc := range map[string]struct{ content, want string }{
		"a.pdf":     {"%PDF-1.7\n", "it is a PDF document: extract its text first"},
		"a.png":     {"\x89PNG\r\n\x1a\n", "it is a PNG image"},
		"a.jpg":     {"\xff\xd8\xff\xe0", "it is a JPEG image"},
		"a.gif":     {"GIF89a" + binary, "it is a GIF image"},
		"a.webp":    {"RIFF" + binary, "it is a RIFF file (WebP, WAVE or AVI)"},
		"a.mp4":     {"\x00\x00\x00\x18ftyp", "it is an MP4 or HEIF file"},
		"a.ogg":     {"OggS" + binary, "it is an Ogg file"},
		"a.mp3":     {"ID3" + binary, "it is an MP3 file"},
		"a.flac":    {"fLaC" + binary, "it is a FLAC file"},
		"a.docx":    {"PK\x03\x04", "it is a zip archive (or .docx, .epub, .npz, .pt): unpack it first"},
		"empty.zip": {"PK\x05\x06", "it is an empty zip archive"},
		"a.tar":     {strings.Repeat("x", 257) + "ustar", "it is a tar archive: unpack it first"},
		"a.7z":      {"7z\xbc\xaf\x27\x1c", "it is a 7z archive: unpack it first"},
		"a.rar":     {"Rar!\x1a\x07", "it is a RAR archive: unpack it first"},
		"a.lz4":     {"\x04\x22\x4d\x18", "it is an LZ4 stream: decompress it with lz4 -d"},
		"a.sz":      {"\xff\x06\x00\x00sNaPpY", "it is a snappy stream: decompress it first"},
		"a.out":     {"\x7fELF", "it is a program (ELF)"},
		"a.exe":     {"MZ" + binary, "it is a program (PE)"},
		"a.dylib":   {"\xcf\xfa\xed\xfe", "it is a program (Mach-O)"},
		"a.class":   {"\xca\xfe\xba\xbe", "it is a Java class or a program (Mach-O)"},
		"a.wasm":    {"\x00asm", "it is a WebAssembly module"},
		"a.db":      {"SQLite format 3\x00", "it is an SQLite database"},
		"a.h5":      {"\x89HDF\r\n\x1a\n", "it is an HDF5 file"},
		"a.gguf":    {"GGUF" + binary, "it is GGUF weights"},
		"a.npy":     {"\x93NUMPY", "it is a NumPy array"},
		"a.avro":    {"Obj\x01", "it is an Avro file: convert it to Parquet"},
		"a.orc":     {"ORC" + binary, "it is an ORC file: convert it to Parquet"},
		"enc.pq":    {"PARE" + binary, "it is a Parquet file whose footer is encrypted"},
		"a.feather": {"FEA1" + binary, "it is a Feather V1 file: write it as Arrow IPC or Parquet"},
		"a.warc":    {"WARC/1.0\r\n", "it is a web archive (WARC or WET): extract its texts to JSONL or Parquet first"},
		"a.idx":     {"MMIDIDX\x00", "it is a Megatron index, whose tokens lie beside it"},
		"u16.txt":   {"\xff\xfea\x00", "it is text in UTF-16: convert it with iconv -f UTF-16 -t UTF-8"},
		"a.pkl":     {"\x80\x04\x95", "it is a Python pickle"},
		"nul":       {"a\x00b", "it is no text: byte 1 is NUL"},
		"controls":  {"abc" + strings.Repeat("\x01", 9), "it is no text: 9 of its first 12 bytes are control characters"},
		"invalid":   {"abc" + strings.Repeat("\xff", 9), "it is no text: 9 of its first 12 bytes are not UTF-8"},
		"z.gz":      {corpustest.Gzip(t, "a\x00b"), "it is no text: byte 1 is NUL"},
		"p.gz":      {corpustest.Gzip(t, "PAR1"), "it is a compressed Parquet or Arrow file: decompress it first"},
	} {
		dir := corpustest.Dir(t, map[string]string{name: tc.content})
		path := filepath.Join(dir, name)
		_, err := readAll(t, corpusOf(t, Options{}, path))
		want := "read " + path + ": " + tc.want + ". Pack reads text, JSON Lines, JSON arrays, Parquet, Arrow and token datasets"
		if err == nil || err.Error() != want {
			t.Errorf("%s, named: got %v, want %s", name, err, want)
		}
		for _, opt := range []Options{{}, {Include: []string{"*"}}} {
			got, err := readAll(t, corpusOf(t, opt, dir))
			if err != nil || len(got.docs) != 0 || !slices.Equal(got.leftOut, []string{name + ": " + tc.want}) {
				t.Errorf("%s, found: %q left out, %d documents, %v", name, got.leftOut, len(got.docs), err)
			}
		}
	}
}

// Words that are also a magic are text.
func TestProseThatBeginsLikeAFile(t *testing.T) {
	for _, text := range []string{"MZ is a magic", "ID3 tags", "RIFF", "ORC stands for", "BZh9 is bzip2's", "GIF89a", "PAREIL", "GGUF files", "fLaC"} {
		dir := corpustest.Dir(t, map[string]string{"a.txt": text})
		if got, err := readAll(t, corpusOf(t, Options{}, dir)); err != nil || !slices.Equal(got.docs, []string{text}) {
			t.Errorf("%q: got %q, %q left out, %v", text, got.docs, got.leftOut, err)
		}
	}
}

func TestInvalidUTF8(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.txt": "some text\xff"})
	got, err := readAll(t, corpusOf(t, Options{}, dir))
	if want := "a.txt: it is not UTF-8: 1 of its first 10 bytes are not. Name it, or use --include, and they are replaced"; err != nil || !slices.Equal(got.leftOut, []string{want}) {
		t.Errorf("found: %q, %v", got.leftOut, err)
	}
	for _, c := range []*Corpus{corpusOf(t, Options{}, filepath.Join(dir, "a.txt")), corpusOf(t, Options{Include: []string{"*.txt"}}, dir)} {
		if got, err := readAll(t, c); err != nil || len(got.docs) != 1 {
			t.Errorf("named: %d documents, %v", len(got.docs), err)
		}
	}
}

func TestTextThatEndsInABinary(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"run.sh": strings.Repeat("some words ", sniffBytes) + "\x00\x01"})
	_, err := readAll(t, corpusOf(t, Options{}, dir))
	if want := fmt.Sprintf("byte %d of the text is NUL, so it is no text", 11*sniffBytes); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}

func TestTextBesideColumns(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"README.md": "a card", "a.jsonl": "{\"text\": \"a\"}\n"})
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "layout", "parquet", "testdata", "plain.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data.parquet"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := readAll(t, corpusOf(t, Options{}, dir))
	if want := "README.md: it lies beside Parquet or Arrow files: name it, or use --include"; err != nil || !slices.Equal(got.leftOut, []string{want}) || len(got.docs) != 101 {
		t.Errorf("%q left out, %d documents, %v", got.leftOut, len(got.docs), err)
	}
}

func TestTokensThatAreNull(t *testing.T) {
	c := corpusOf(t, Options{}, filepath.Join("..", "..", "..", "layout", "parquet", "testdata", "holes.parquet"))
	c.opt.Key, c.tokens = "holes", true
	if _, err := readAll(t, c); err == nil || !strings.Contains(err.Error(), `row 1 of column "holes.list.element" has an element that is null, which is no token`) {
		t.Errorf("got %v", err)
	}
}

func TestChangedFile(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.txt": "some text"})
	c := corpusOf(t, Options{}, dir)
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("another text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(t, c); err == nil || !strings.Contains(err.Error(), "the file has changed since it was listed: pack it when nobody writes it") {
		t.Errorf("got %v", err)
	}
}

func TestGlobs(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.txt": "a", "b.txt": "b", "c.md": "c", "sub.txt/d": "d"})
	got, err := readAll(t, corpusOf(t, Options{}, filepath.Join(dir, "*.txt")))
	if err != nil || !slices.Equal(got.docs, []string{"a", "b", "d"}) {
		t.Errorf("got %q, %v", got.docs, err)
	}
	for pattern, want := range map[string]string{"*.rst": "nothing matches", "[": "syntax error in pattern"} {
		if err := New(Options{}).Add(t.Context(), filepath.Join(dir, pattern)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", pattern, err)
		}
	}
}

// samples is a directory with every kind of file, of several blocks where that can be.
func samples(t testing.TB) string {
	var lines, array, text strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&lines, "{\"id\": %d, \"text\": \"line %d %s\"}\n", i, i, strings.Repeat("word ", i%70))
		fmt.Fprintf(&array, ",\n {\"text\": \"element %d %s\"}", i, strings.Repeat("word ", i%70))
		fmt.Fprintf(&text, "a text of %d lines\n", i)
	}
	dir := corpustest.Dir(t, map[string]string{
		"a.jsonl": lines.String(), "b.jsonl.gz": corpustest.Gzip(t, lines.String()), "c.json": "[" + array.String()[1:] + "]",
		"d.txt": strings.Repeat(text.String(), 8), "e.txt": "", "f.bin": "\x00", "g.txt.zst": corpustest.Zstd(t, "small"), "h.txt": "last", "i.txt": "",
	})
	for _, name := range []string{"plain.parquet", "groups.parquet", "stream.arrow"} {
		data, err := os.ReadFile(filepath.Join("..", "..", "..", "layout", "parquet", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestEveryPartHasItsDocumentsOnce(t *testing.T) {
	c := corpusOf(t, Options{Include: []string{"*"}}, samples(t))
	want, err := readAll(t, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(want.docs) < 9000 {
		t.Fatalf("%d documents", len(want.docs))
	}
	for _, n := range []int{2, 3, 7, 64, 1000} {
		var got outcome
		full := 0
		for i := range n {
			part, err := readSpans(t.Context(), c, c.Part(i, n), Position{})
			if err != nil {
				t.Fatal(err)
			}
			if len(part.docs) > 0 {
				full++
			}
			got.docs, got.leftOut = append(got.docs, part.docs...), append(got.leftOut, part.leftOut...)
		}
		if !slices.Equal(got.docs, want.docs) || !slices.Equal(got.leftOut, want.leftOut) || full < min(n, 5) {
			t.Errorf("%d parts, %d with documents: %d documents, %q left out; want %d, %q", n, full, len(got.docs), got.leftOut, len(want.docs), want.leftOut)
		}
	}
}

func TestEveryPositionGivesTheRest(t *testing.T) {
	c := corpusOf(t, Options{Include: []string{"*"}}, samples(t))
	want, err := readAll(t, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(want.ends) < 15 {
		t.Fatalf("%d positions", len(want.ends))
	}
	for i, at := range want.ends {
		got, err := readSpans(t.Context(), c, c.Part(0, 1), at)
		if err != nil || !slices.Equal(got.docs, want.docs[want.seen[i]:]) {
			t.Errorf("%+v: %d documents, want %d (%v)", at, len(got.docs), len(want.docs)-want.seen[i], err)
		}
	}
}

// A part begins within a line, whose number it does not know.
func TestErrorInAPart(t *testing.T) {
	text := strings.Repeat("{\"text\": \"a\"}\n", 100) + "{\n"
	c := corpusOf(t, Options{}, filepath.Join(corpustest.Dir(t, map[string]string{"a.jsonl": text}), "a.jsonl"))
	_, err := readSpans(t.Context(), c, c.Part(1, 2), Position{})
	if err == nil || !strings.Contains(err.Error(), "the line 49 lines behind byte 714: not a JSON object") {
		t.Errorf("got %v", err)
	}
}

// A small file that decompresses to much costs time, not memory.
func TestBomb(t *testing.T) {
	for _, tc := range []struct {
		name, piece string
		size        int // decompressed
		compress    func(testing.TB, string) string
	}{
		{"a.txt", "word ", 64 << 20, corpustest.Zstd},
		{"b.jsonl", strings.Repeat(" ", 4095) + "\n", 64 << 20, corpustest.Zstd},
		{"c.jsonl", "{\"text\": \"a\"}\n", 40 << 20, corpustest.Gzip}, // many lines take long
	} {
		text := strings.Repeat(tc.piece, tc.size/len(tc.piece))
		c := corpusOf(t, Options{}, filepath.Join(corpustest.Dir(t, map[string]string{tc.name: tc.compress(t, text)}), tc.name))
		runtime.GC()
		var before, now runtime.MemStats
		runtime.ReadMemStats(&before)
		bytes, read := 0, int64(0)
		err := c.Read(t.Context(), c.Part(0, 1)[0], Position{}, func(b *Block) error {
			if b.Read < read || b.Read > c.Total {
				return fmt.Errorf("%d of %d bytes are read after %d", b.Read, c.Total, read)
			}
			read = b.Read
			return b.Documents(func(d Document) error { bytes += len(d.Text); return nil })
		})
		runtime.ReadMemStats(&now)
		if err != nil || tc.name == "a.txt" && bytes != len(text) || read != c.Total {
			t.Errorf("%s: %d bytes of text, %d of %d read, %v", tc.name, bytes, read, c.Total, err)
		}
		if used := now.TotalAlloc - before.TotalAlloc; used > uint64(tc.size)*5/8 {
			t.Errorf("%s: %d bytes were allocated", tc.name, used)
		}
	}
}

func TestLongLineOfABomb(t *testing.T) {
	dir := corpustest.Dir(t, map[string]string{"a.jsonl.gz": corpustest.Gzip(t, `{"text": "`+strings.Repeat("a", 4<<20))})
	c := corpusOf(t, Options{}, filepath.Join(dir, "a.jsonl.gz"))
	c.limit = 1 << 20
	if _, err := readAll(t, c); err == nil || !strings.Contains(err.Error(), "line 1: the line is too long: more than 1048576 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestLineLimit(t *testing.T) {
	for length, ok := range map[int]bool{999: true, 1000: false} {
		line := `{"text": "` + strings.Repeat("x", length-12) + `"}` + "\n"
		c := corpusOf(t, Options{}, filepath.Join(corpustest.Dir(t, map[string]string{"a.jsonl": "\n" + line}), "a.jsonl"))
		c.limit = 1000
		_, err := readAll(t, c)
		if ok != (err == nil) || (err != nil && !strings.Contains(err.Error(), "line 2: the line is too long: more than 1000 bytes")) {
			t.Errorf("%d bytes: got %v", length, err)
		}
	}
}

func TestTextWithoutAPlaceToCut(t *testing.T) {
	c := cutter{r: strings.NewReader("some words " + strings.Repeat("1", 5000)), piece: 100, limit: 1000, last: lastCut(t)}
	var got []string
	err := c.parts(func(text []byte, _ bool) error { got = append(got, string(text)); return nil })
	if err == nil || !strings.Contains(err.Error(), "no place within 1000 bytes after byte 10 of the text is one where it can be cut for tokenizing") {
		t.Errorf("got %v", err)
	}
	if !reflect.DeepEqual(got, []string{"some words"}) {
		t.Errorf("parts %q", got)
	}
}

// A text that is cut into parts must give the tokens of the whole.
func TestPiecesGiveTheTokensOfTheWhole(t *testing.T) {
	var long strings.Builder
	for i := 0; long.Len() < 100<<10; i++ {
		fmt.Fprintf(&long, "line %d:\t'tis  a   text\r\n\r\n  with spaces, числа %d и 数字。\n", i, i*i)
	}
	text := long.String()
	for _, name := range []string{"gpt2", "cl100k_base", "o200k_base"} {
		tok, err := tokenizer.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		encoder := tok.NewEncoder()
		whole, _, err := encoder.Append(nil, []byte(text), false)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint32
		parts := 0
		c := cutter{r: strings.NewReader(text), piece: 20 << 10, limit: maxDocument, last: tok.LastCut}
		err = c.parts(func(text []byte, _ bool) error {
			parts++
			got, _, err = encoder.Append(got, text, parts > 1)
			return err
		})
		if err != nil || parts < 3 || !reflect.DeepEqual(got, whole) {
			t.Errorf("%s: %d parts give %d tokens, the whole %d (%v)", name, parts, len(got), len(whole), err)
		}
	}
}

// The scanner takes nothing that encoding/json refuses, and finds the same text.
func FuzzTextOf(f *testing.F) {
	for _, seed := range []string{`{"text": "a\u00e9\ud83d\ude00\n"}`, `{"a": [1, {"text": "x"}], "text": "b", "text": "c"}`, `{"\u0074ext": "a"}`, `{}`,
		`{"text": "\ud800"}`, `{"text":"a","b":tru}`, `{"text": "a", }`, "{\"text\": \"\xff\"}", `{"text": 5}`, ` {"text" : "" } `, `{"b":01,"text":"a"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var object map[string]json.RawMessage
		var want string
		wantErr := json.Unmarshal(line, &object)
		value, ok := object["text"]
		isText := wantErr == nil && ok && len(value) > 0 && value[0] == '"'
		if isText {
			if err := json.Unmarshal(value, &want); err != nil {
				t.Fatal(err)
			}
		}
		got, repaired, err := textOf(line, "text")
		if isText != (err == nil) || isText && (string(got) != want || repaired != !utf8.Valid(value)) {
			t.Fatalf("%q: got %q, %v, %v; want %q, %v", line, got, repaired, err, want, wantErr)
		}
	})
}
