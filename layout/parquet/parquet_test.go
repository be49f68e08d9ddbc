package parquet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// column returns what a column holds: a text or a list of numbers for each row.
func column(t testing.TB, data []byte, name string) (rows []string, err error) {
	f, err := Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	at, why := f.Find(name)
	if why != "" {
		return nil, errors.New(why)
	}
	isText := f.Columns[at].Text
	for g := range f.Groups {
		err := f.Values(t.Context(), g, at, func(v Value) error {
			switch {
			case v.First && v.Null:
				rows = append(rows, "null")
			case isText:
				rows = append(rows, string(v.Bytes))
			case v.First:
				rows = append(rows, fmt.Sprint(v.Number))
			default:
				rows[len(rows)-1] += fmt.Sprint(" ", v.Number)
			}
			return nil
		})
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func golden(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// want is what tests/data/golden/parquet_files.py writes.
func want(name string) (rows []string) {
	for i := range 100 {
		text := fmt.Sprintf("document %d %s", i, strings.Repeat("é", i%7))
		switch name {
		case "text", "raw":
			if i%10 == 3 {
				text = map[string]string{"text": "null", "raw": ""}[name]
			}
			rows = append(rows, text)
		case "meta.source":
			rows = append(rows, fmt.Sprint("s", i))
		default:
			var list []string
			for k := range i % 5 {
				list = append(list, fmt.Sprint(i+k))
			}
			if list == nil {
				list = []string{"null"}
			}
			rows = append(rows, strings.Join(list, " "))
		}
	}
	return rows
}

func TestFilesOfPyArrow(t *testing.T) {
	for _, file := range []string{"plain", "dictionary", "groups", "gzip", "lz4", "delta"} {
		for _, name := range []string{"text", "raw", "meta.source", "input_ids", "wide"} {
			got, err := column(t, golden(t, file+".parquet"), name)
			if err != nil || !reflect.DeepEqual(got, want(name)) {
				t.Errorf("%s, %s: %q, %v", file, name, got, err)
			}
		}
	}
	if got, err := column(t, golden(t, "empty.parquet"), "text"); err != nil || len(got) != 0 {
		t.Errorf("empty: %q, %v", got, err)
	}
}

func TestSentences(t *testing.T) {
	data := golden(t, "plain.parquet")
	for name, want := range map[string]string{
		"body": `there is no column "body", name the one that holds the text with --text-key: "id" is i64, "text" is text, "raw" is binary`,
		"meta": `column "meta" is nested, and has no texts of its own: "meta.source" is text, "meta.n" is i32`,
	} {
		if _, err := column(t, data, name); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := column(t, golden(t, "brotli.parquet"), "text"); !errors.Is(err, ErrUnread) ||
		!strings.Contains(err.Error(), `column "text" is compressed by Brotli: write it with zstd or snappy`) {
		t.Errorf("brotli: got %v", err)
	}
	for what, data := range map[string][]byte{
		"its footer is encrypted":                               append(append([]byte{}, data[:len(data)-4]...), "PARE"...),
		"it does not end with PAR1, so it is cut off":           data[:len(data)-1],
		"its footer is said to have 2147483647 bytes, the file": append(append([]byte{}, data[:len(data)-8]...), "\xff\xff\xff\x7fPAR1"...),
		"it has 5 bytes":                                        data[:5],
	} {
		if _, err := column(t, data, "text"); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %s", err, what)
		}
	}
}

func TestEveryTruncation(t *testing.T) {
	for _, file := range []string{"plain", "groups", "delta"} {
		data := golden(t, file+".parquet")
		for n := range len(data) {
			if _, err := Open(bytes.NewReader(data[:n]), int64(n)); err == nil {
				t.Errorf("%s: %d of %d bytes are taken", file, n, len(data))
			}
		}
	}
}

// hostile is a file with the given footer.
func hostile(footer []byte) []byte {
	data := append([]byte(Magic), footer...)
	return append(data, byte(len(footer)), byte(len(footer)>>8), 0, 0, 'P', 'A', 'R', '1')
}

// A list says that it has 2^31-1 row groups.
func TestCountsAreNotBelieved(t *testing.T) {
	for _, footer := range [][]byte{
		{0x49, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07}, {0x29, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07}, bytes.Repeat([]byte{0x1c}, 1000),
		{0x1b, 0xff, 0xff, 0xff, 0xff, 0x07, 0x88},
	} {
		data := hostile(footer)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Open(bytes.NewReader(data), int64(len(data)))
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; err == nil || used > 1<<20 {
			t.Errorf("%x: %v, %d bytes were allocated", footer, err, used)
		}
	}
}

// FuzzFile changes one place of a good file: it gives the same rows, other ones, or an error, and takes no more memory
// than a page may.
func FuzzFile(f *testing.F) {
	files := [][]byte{}
	for _, name := range []string{"plain", "dictionary", "groups", "gzip", "lz4", "delta"} {
		files = append(files, golden(f, name+".parquet"))
	}
	for i := range files {
		f.Add(i, 100, []byte{0xff}, 1)
		f.Add(i, len(files[i])-20, []byte{0xff, 0xff, 0xff, 0xff, 0x0f}, 3)
	}
	f.Fuzz(func(t *testing.T, file, at int, change []byte, of int) {
		data := bytes.Clone(files[uint(file)%uint(len(files))])
		copy(data[uint(at)%uint(len(data)):], change)
		name := []string{"text", "raw", "input_ids", "wide", "meta.source"}[uint(of)%5]
		rows, err := column(t, data, name)
		if err != nil {
			return
		}
		if f, err := Open(bytes.NewReader(data), int64(len(data))); err != nil || int64(len(rows)) != f.Rows {
			t.Errorf("%d rows of %d, %v", len(rows), f.Rows, err)
		}
	})
}
