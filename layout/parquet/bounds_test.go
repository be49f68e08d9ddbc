package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// listHead is the head of a field that is a list of structs.
func listHead(delta byte, n int) []byte {
	return binary.AppendUvarint([]byte{delta<<4 | thriftList, 0xf0 | thriftStruct}, uint64(n))
}

// schemaElement is an element of the schema: a required column of 32-bit integers, or a group.
func schemaElement(name string, children int) []byte {
	out := []byte{1<<4 | thriftI32, 2 * typeInt32, 2<<4 | thriftI32, 0, 1<<4 | thriftBinary}
	if children > 0 {
		out = []byte{4<<4 | thriftBinary}
	}
	out = append(binary.AppendUvarint(out, uint64(len(name))), name...)
	if children > 0 {
		out = binary.AppendVarint(append(out, 1<<4|thriftI32), int64(children))
	}
	return append(out, thriftStop)
}

// TestLongNamesOfGroups has many columns below a group of a long name: each took a copy of that name.
func TestLongNamesOfGroups(t *testing.T) {
	const leaves = 2000
	for name, long := range map[string]bool{strings.Repeat("n", maxPath-2): false, strings.Repeat("n", maxPath-1): true, strings.Repeat("n", 1<<20): true} {
		footer := append(listHead(2, leaves+3), schemaElement("root", 2)...)
		footer = append(append(footer, schemaElement("first", 0)...), schemaElement(name, leaves)...)
		for range leaves {
			footer = append(footer, schemaElement("x", 0)...)
		}
		footer = append(footer, thriftStop)
		f := &File{}
		var err error
		if used := allocated(func() { err = f.parse(footer) }); err != nil || len(f.Columns) != leaves+1 || used > 8<<20 {
			t.Fatalf("%d columns, %d bytes were allocated: %v", len(f.Columns), used, err)
		}
		first, last := &f.Columns[0], &f.Columns[leaves]
		if first.Field() != "first" || first.Kind != "i32" || (&chunk{}).readable(first) != nil {
			t.Errorf("the first column is %+v", first)
		}
		err = (&chunk{}).readable(last)
		if errors.Is(err, ErrUnread) != long || (last.Kind != "i32") != long || len(last.Field()) > maxPath+1 || len(last.Name()) > maxPath+1 || len(last.Path) != 2 {
			t.Errorf("a name of %d bytes: %s, %d bytes, %v", len(name), last.Kind, len(last.Field()), err)
		}
	}
}

// TestPlacesOfRowGroups has a column in many row groups: each group takes little, and its rows are counted once for all columns.
func TestPlacesOfRowGroups(t *testing.T) {
	const columns, groups = 20, 500
	footer := append(listHead(2, columns+1), schemaElement("root", columns)...)
	for range columns {
		footer = append(footer, schemaElement("x", 0)...)
	}
	footer = append(footer, listHead(2, groups)...)
	for range groups {
		footer = append(append(append(footer, listHead(1, columns)...), make([]byte, columns)...), thriftStop)
	}
	f := &File{}
	if err := f.parse(append(footer, thriftStop)); err != nil {
		t.Fatal(err)
	}
	var kept []*Paged
	used := allocated(func() {
		for i := range f.Columns {
			kept = append(kept, f.Paged(i))
		}
	})
	if len(kept) != columns || kept[7].Groups() != groups || used > 44*columns*groups {
		t.Errorf("%d columns of %d row groups take %d bytes", len(kept), kept[7].Groups(), used)
	}
}

// TestDeepColumns has 20,000 columns below 32 groups: the path of each takes as much as the rest of it.
func TestDeepColumns(t *testing.T) {
	const leaves, said = 20_000, 650_000
	footer := listHead(2, leaves+maxThriftDepth)
	for range maxThriftDepth - 1 {
		footer = append(footer, 5<<4|thriftI32, 2, thriftStop) // a group of one
	}
	footer = append(binary.AppendVarint(append(footer, 5<<4|thriftI32), leaves), thriftStop)
	footer = append(footer, make([]byte, leaves)...)
	footer = binary.AppendUvarint(append(footer, 4<<4|thriftBinary), said) // by whom the file was written
	footer = append(footer, make([]byte, said+1)...)
	if err := (&File{}).parse(footer); !errors.Is(err, ErrUnread) {
		t.Errorf("%d columns of %d names each are read: %v", leaves, maxThriftDepth, err)
	}
}

// TestFootersThatSwell has a byte for each element of the schema, row group, or column of one: 2 MiB took hundreds.
func TestFootersThatSwell(t *testing.T) {
	const many = 2 << 20
	head := func(delta byte, kind byte, n int) []byte {
		return binary.AppendUvarint([]byte{delta<<4 | thriftList, 0xf0 | kind}, uint64(n))
	}
	schema := append(listHead(2, 1), schemaElement("root", 0)...)
	for name, footer := range map[string][]byte{
		"schema":  append(listHead(2, many), make([]byte, many+1)...),
		"groups":  append(append(slices.Clone(schema), head(2, thriftStruct, many)...), make([]byte, many+1)...),
		"columns": append(append(append(slices.Clone(schema), listHead(2, 1)...), listHead(1, many)...), make([]byte, many+2)...),
		"levels": bytes.Join([][]byte{ // in the statistics of the only column
			schema, listHead(2, 1), listHead(1, 1), {3<<4 | thriftStruct, 0<<4 | thriftStruct, 32}, head(3, thriftI64, many), make([]byte, many+5),
		}, nil),
	} {
		var err error
		if used := allocated(func() { err = (&File{}).parse(footer) }); name == "levels" != !errors.Is(err, ErrUnread) || used > 4*FooterMemory(int64(len(footer))) {
			t.Errorf("%s: %d bytes were allocated for %d: %v", name, used, len(footer), err)
		}
	}
}
