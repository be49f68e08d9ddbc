package parquet

import (
	"errors"
	"strings"
	"testing"
)

// TestEncryptedColumn has a column whose metadata is encrypted under a plain footer: where it lies is not known. The file is not broken,
// and the column says why it cannot be read.
func TestEncryptedColumn(t *testing.T) {
	plain := chunk{start: 4, bytes: 10}
	f := &File{size: 100, Rows: 6, Columns: make([]Column, 2), Groups: []Group{{Rows: 6, chunks: []chunk{{encrypted: true}, plain}}}}
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

// TestRowsThatTheFooterLeavesOut has the row groups count rows that the footer does not, as in repeated_no_annotation.parquet of
// apache/parquet-testing.
func TestRowsThatTheFooterLeavesOut(t *testing.T) {
	f := &File{size: 100, Columns: make([]Column, 1), Groups: []Group{{Rows: 4, chunks: []chunk{{start: 4}}}, {Rows: 2, chunks: []chunk{{start: 4}}}}}
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
