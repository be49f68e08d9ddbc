package parquet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"
)

// pageOf is a page of version 1 with its header.
func pageOf(kind, values, encoding int, body []byte) []byte {
	number := func(n int) []byte { return binary.AppendVarint([]byte{1<<4 | thriftI32}, int64(n)) }
	out := bytes.Join([][]byte{number(kind), number(len(body)), number(len(body))}, nil)
	delta := byte(2) // of a data page
	if kind == pageDictionary {
		delta = 4
	}
	out = append(append(append(out, delta<<4|thriftStruct), number(values)...), number(encoding)...)
	return append(append(out, thriftStop, thriftStop), body...)
}

// pagedOf is a required column with one row group, of so many values in those pages.
func pagedOf(column Column, values int64, pages ...[]byte) (*Paged, *reads) {
	data := append([]byte(Magic), bytes.Join(pages, nil)...)
	c := &Paged{column: column, Groups: []PagedGroup{{Rows: values, Elements: -1, chunk: chunk{values: values, start: 4, bytes: int64(len(data) - 4)}}}}
	return c, &reads{Reader: bytes.NewReader(data)}
}

// reads counts the bytes that are read.
type reads struct {
	*bytes.Reader
	bytes int64
}

func (r *reads) ReadAt(p []byte, off int64) (int, error) {
	r.bytes += int64(len(p))
	return r.Reader.ReadAt(p, off)
}

// TestFixedValuesThatSwell has values of 1 MiB each, which a page names by 0 bits: the page would have 1 TB.
func TestFixedValuesThatSwell(t *testing.T) {
	const width, most = 1 << 20, MaxPage >> 20
	for values, fits := range map[int64]bool{most: true, most + 1: false, 1 << 20: false} {
		column := Column{Path: []string{"x"}, physical: typeFixed, size: width, bits: 8 * width}
		c, r := pagedOf(column, values, pageOf(pageDictionary, 1, encPlain, make([]byte, width)), pageOf(pageData, int(values), encRLEDictionary, []byte{0}))
		pages, err := c.Pages(t.Context(), r, 0)
		if !fits {
			if !errors.Is(err, ErrUnread) {
				t.Errorf("%d values: %v", values, err)
			}
			continue
		}
		if err != nil || c.Memory(&pages[0]) < values*width {
			t.Errorf("%d values in %d pages: %v", values, len(pages), err)
		}
	}
}

// TestDictionaryIsReadOnce has a large dictionary of many pages, and room that only one walk can have.
func TestDictionaryIsReadOnce(t *testing.T) {
	const length, count = 3 << 20, 20
	body := append(binary.LittleEndian.AppendUint32(nil, length), make([]byte, length)...)
	pages := [][]byte{pageOf(pageDictionary, 1, encPlain, body)}
	for range count {
		pages = append(pages, pageOf(pageData, 1, encRLEDictionary, []byte{0}))
	}
	c, r := pagedOf(Column{Path: []string{"x"}, physical: typeBytes, Bytes: true}, count, pages...)
	held, takes := int64(0), 0
	c.Hold = func(_ context.Context, n int64) (func(), error) {
		if held > 0 {
			t.Error("a walk waits for room while it has some")
		}
		held, takes = n, takes+1
		return func() { held = 0 }, nil
	}
	got, err := c.Pages(t.Context(), r, 0)
	if err != nil || len(got) != count || got[7].Elements != length {
		t.Fatalf("%d pages, %v", len(got), err)
	}
	if r.bytes > 2*length || held != 0 || takes != 1 {
		t.Errorf("%d bytes were read of a dictionary of %d, for which room was taken %d times, %d bytes stay taken", r.bytes, length, takes, held)
	}
}

// TestDeltasTakeRoom has a page of a few bytes whose texts are as short as can be, and very many.
func TestDeltasTakeRoom(t *testing.T) {
	const values = 1 << 20
	deltas := binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(nil, 1<<16), 1), values)
	deltas = append(deltas, 0)
	for range values >> 16 {
		deltas = append(deltas, 0, 0) // the least difference and the width
	}
	c, r := pagedOf(Column{Path: []string{"x"}, physical: typeBytes, Bytes: true}, values, pageOf(pageData, values, encDeltaBytes, append(deltas, deltas...)))
	held := int64(0)
	c.Hold = func(_ context.Context, n int64) (func(), error) {
		held += n
		return func() {}, nil
	}
	pages, err := c.Pages(t.Context(), r, 0)
	if err != nil || len(pages) != 1 || held < 20*values || c.Memory(&pages[0]) < 20*values {
		t.Errorf("%d pages, room for %d bytes: %v", len(pages), held, err)
	}
	nulls := &Page{Rows: values}
	if n := c.Memory(nulls); n < 8*values {
		t.Errorf("rows without values take %d bytes", n)
	}
}

// TestResultsKeepNoPages has a page that is much larger than its values.
func TestResultsKeepNoPages(t *testing.T) {
	for size, most := range map[int]int{1 << 20: 16, 16: 16} {
		c, r := pagedOf(Column{Path: []string{"x"}, physical: typeInt64, size: 8, bits: 64}, 2, pageOf(pageData, 2, encPlain, make([]byte, size)))
		pages, err := c.Pages(t.Context(), r, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Read(t.Context(), r, &pages[0], nil)
		if err != nil || len(got) != 16 || cap(got) > 2*most {
			t.Errorf("%d bytes of a page of %d keep %d: %v", len(got), size, cap(got), err)
		}
	}
}
