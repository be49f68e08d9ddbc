package parquet

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestEncryptedColumn has a column whose metadata is encrypted under a plain footer: where it lies is not known. The file is not broken,
// and the column says why it cannot be read.
func TestEncryptedColumn(t *testing.T) {
	plain := chunk{place: place{start: 4, bytes: 10}}
	f := &File{size: 100, Rows: 6, Columns: make([]Column, 2), Groups: []Group{{Rows: 6, chunks: []chunk{{place: place{encrypted: true}}, plain}}}}
	if err := f.check(); err != nil {
		t.Error(err)
	}
	if err := f.Groups[0].chunks[0].readable(&f.Columns[0]); !errors.Is(err, ErrUnread) || !strings.Contains(err.Error(), "is encrypted") {
		t.Error(err)
	}
	f.Groups[0].chunks[1].start = 95
	if err := f.check(); !errors.Is(err, ErrBroken) {
		t.Errorf("a column beyond the file: %v", err)
	}
}

// TestEncryptedFiles has files that pyarrow and parquet-mr encrypted. Columns that are not encrypted are read, which pyarrow does only for
// those before the first encrypted one.
func TestEncryptedFiles(t *testing.T) {
	for file, columns := range map[string]map[string]bool{ // whether it is encrypted
		"encrypted-tokens":                 {"text": false, "raw": false, "input_ids": true},
		"encrypted-text":                   {"text": true, "raw": false, "input_ids": false},
		"encrypted-all":                    {"text": true, "raw": true, "input_ids": true},
		"encrypt_columns_plaintext_footer": {"int64_field": false, "float_field": true, "double_field": true},
	} {
		data := golden(t, file+".parquet")
		f, err := Open(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		for name, encrypted := range columns {
			got, err := column(t, data, name)
			at, _ := f.Find(name)
			switch {
			case encrypted && (!errors.Is(err, ErrUnread) || !strings.Contains(err.Error(), "is encrypted") || !strings.HasPrefix(f.Columns[at].Kind, "encrypted ")):
				t.Errorf("%s, %s is %s: %v", file, name, f.Columns[at].Kind, err)
			case !encrypted && name == "int64_field" && (err != nil || len(got) != 50 || got[1] != "2000000000000 3000000000000"):
				t.Errorf("%s, %s: %v, %v", file, name, got, err)
			case !encrypted && name != "int64_field" && (err != nil || !slices.Equal(got, want(name))):
				t.Errorf("%s, %s: %v, %v", file, name, got, err)
			}
		}
		if start := f.Groups[0].Start; file == "encrypted-all" && start != 4 {
			t.Errorf("%s: its row group begins at %d: a part of the file that begins there would leave it out", file, start)
		}
	}
	data := golden(t, "encrypted-footer.parquet")
	if _, err := Open(bytes.NewReader(data), int64(len(data))); !errors.Is(err, ErrUnread) || !strings.Contains(err.Error(), "its footer is encrypted") {
		t.Error(err)
	}
}

// TestRepeatedWithoutAnnotation has the rows that pyarrow reads of a file whose footer says that there are none.
func TestRepeatedWithoutAnnotation(t *testing.T) {
	data := golden(t, "repeated_no_annotation.parquet")
	for name, want := range map[string][]string{
		"id":                        {"1", "2", "3", "4", "5", "6"},
		"phoneNumbers.phone.number": {"null", "null", "null", "5555555555", "1111111111", "1111111111 2222222222 3333333333"},
	} {
		if got, err := column(t, data, name); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestRowsThatTheFooterLeavesOut has the row groups count rows that the footer does not, as in repeated_no_annotation.parquet of
// apache/parquet-testing.
func TestRowsThatTheFooterLeavesOut(t *testing.T) {
	f := &File{size: 100, Columns: make([]Column, 1), Groups: []Group{{Rows: 4, chunks: []chunk{{place: place{start: 4}}}}, {Rows: 2, chunks: []chunk{{place: place{start: 4}}}}}}
	if err := f.check(); err != nil || f.Rows != 6 {
		t.Errorf("%d rows, %v", f.Rows, err)
	}
	f.Groups[1].Rows, f.Rows = 1<<62, 0
	f.Groups = append(f.Groups, f.Groups[1])
	if err := f.check(); !errors.Is(err, ErrBroken) {
		t.Errorf("%d rows, %v", f.Rows, err)
	}
	f.Groups, f.Rows = f.Groups[:1], 3
	if err := f.check(); !errors.Is(err, ErrBroken) {
		t.Errorf("%d rows, %v", f.Rows, err)
	}
}
