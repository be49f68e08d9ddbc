package parquet

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestListsOfOtherShapes has rows of lists of two lists of two numbers, and one that is not.
func TestListsOfOtherShapes(t *testing.T) {
	type entry struct{ rep, def byte } // an element, or a list without elements
	var (
		even  = []entry{{0, 2}, {2, 2}, {1, 2}, {2, 2}}
		flat  = []entry{{0, 2}, {2, 2}, {2, 2}, {2, 2}}
		three = []entry{{0, 2}, {1, 2}, {2, 2}, {2, 2}}
		long  = []entry{{0, 2}, {2, 2}, {1, 2}, {2, 2}, {1, 2}, {2, 2}}
		short = []entry{{0, 2}, {2, 2}}
		empty = []entry{{0, 0}}
		holey = []entry{{0, 2}, {2, 2}, {1, 1}}
	)
	levels := func(of []entry, level func(entry) byte) []byte {
		var runs []byte
		for _, e := range of {
			runs = append(runs, 1<<1, level(e))
		}
		return append(binary.LittleEndian.AppendUint32(nil, uint32(len(runs))), runs...)
	}
	for name, rows := range map[string][][]entry{
		"": {even, even, even}, "flat": {even, flat, even}, "three": {even, three, even}, "long": {even, long, short}, "short": {even, short, long}, "last": {even, short},
		"empty": {even, empty, even}, "holey": {even, holey, even},
	} {
		var pages [][]byte
		values := 0
		for _, of := range [][][]entry{rows[:1], rows[1:]} { // of each page
			var all []entry
			for _, row := range of {
				all = append(all, row...)
			}
			body := append(levels(all, func(e entry) byte { return e.rep }), levels(all, func(e entry) byte { return e.def })...)
			pages = append(pages, pageOf(pageData, len(all), encPlain, append(body, make([]byte, 4*len(all))...)))
			values += len(all)
		}
		column := Column{Path: []string{"x"}, physical: typeInt32, size: 4, bits: 32, maxRep: 2, maxDef: 2, listDef: 2}
		c, r := pagedOf(column, int64(values), pages...)
		c.Rows, c.Each = []int64{100, 100 + int64(len(rows))}, []int64{2, 2}
		c.Rows = append([]int64{0}, c.Rows...)
		c.chunks, c.Elements = append(c.chunks, c.chunks[0]), []int64{0, -1}
		_, err := c.Pages(t.Context(), r, 1)
		if errors.Is(err, ErrUneven) != (name != "") || name != "" && !strings.HasPrefix(err.Error(), `row 101 of column "x" has another shape`) {
			t.Errorf("%s: %v", name, err)
		}
		if c.Each = nil; name == "" {
			continue
		}
		if _, err := c.Pages(t.Context(), r, 1); err != nil {
			t.Errorf("%s, of any shape: %v", name, err)
		}
	}
}

// TestBytesBehindValues has pages of a writer that leaves bytes behind the values, as fastparquet does.
func TestBytesBehindValues(t *testing.T) {
	const behind = "\xff\xff\xff\xff\xff\xff\xff\xff"
	footer := append(listHead(2, 2), schemaElement("root", 1)...)
	footer = append(append(footer, schemaElement("x", 0)...), 4<<4|thriftBinary)
	const by = "fastparquet-python version 2026.9.0 (build 0)"
	footer = append(append(binary.AppendUvarint(footer, uint64(len(by))), by...), thriftStop)
	f := &File{}
	if err := f.parse(footer); err != nil || !f.Columns[0].padded {
		t.Fatalf("%+v, %v", f.Columns, err)
	}
	var body []byte
	for _, text := range []string{"one", "", "three"} {
		body = append(binary.LittleEndian.AppendUint32(body, uint32(len(text))), text...)
	}
	levels := []byte{4, 0, 0, 0, 2 << 1, 1, 1 << 1, 0} // two values and a null
	column := Column{Path: []string{"x"}, physical: typeBytes, Bytes: true, padded: true, maxDef: 1}
	c, r := pagedOf(column, 3, pageOf(pageData, 3, encPlain, []byte(string(levels)+string(body[:11])+behind)))
	pages, err := c.Pages(t.Context(), r, 0)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	starts, err := c.Starts(t.Context(), r, &pages[0], nil)
	if err != nil || !slices.Equal(starts, []int64{0, 3, 3}) {
		t.Errorf("the rows begin at %v: %v", starts, err)
	}
	if got, err := c.Read(t.Context(), r, &pages[0], nil); err != nil || string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestKindsOfIntegers has annotations of integers that are no numbers.
func TestKindsOfIntegers(t *testing.T) {
	for kind, e := range map[string]element{
		"null": {logical: 11, converted: -1}, "decimal": {logical: 5, converted: 5}, "date or time": {logical: 6, converted: 6}, "i32": {converted: -1}, "u8": {converted: 11},
	} {
		c := Column{physical: typeInt32}
		if c.describe(e); c.Kind != kind || (c.Element != "") != (kind == "i32" || kind == "u8") {
			t.Errorf("%s: %s of %q", kind, c.Kind, c.Element)
		}
	}
}
