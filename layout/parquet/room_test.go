package parquet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
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
	c := &Paged{Column: column, Rows: []int64{0, values}, Elements: []int64{-1}, chunks: []place{{values: values, start: 4, bytes: int64(len(data) - 4)}}}
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

// allocated is how many bytes f allocates.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// TestDictionariesTakeTheirRoom has dictionaries of numbers, which take more than their page.
func TestDictionariesTakeTheirRoom(t *testing.T) {
	const bytesOfAll = 8 << 20
	for _, size := range []int{4, 8} {
		column := Column{Path: []string{"x"}, physical: typeInt32, size: size, bits: 8 * size}
		if size == 8 {
			column.physical = typeInt64
		}
		dictionary := pageOf(pageDictionary, bytesOfAll/size, encPlain, make([]byte, bytesOfAll))
		c, r := pagedOf(column, 1, dictionary, pageOf(pageData, 1, encRLEDictionary, []byte{0}))
		pages, err := c.Pages(t.Context(), r, 0)
		if err != nil {
			t.Fatal(err)
		}
		var d *Dictionary
		if n := allocated(func() { d, err = c.Dictionary(t.Context(), r, &pages[0]) }); err != nil || n > pages[0].DictionaryMemory() {
			t.Errorf("%d bytes were used to read a dictionary of %d, %d may be: %v", n, d.Memory(), pages[0].DictionaryMemory(), err)
		}
	}
}

// TestSharedStartsTakeRoomOnce has a page of a text of 1 MiB, and 100 more that are equal to it.
func TestSharedStartsTakeRoomOnce(t *testing.T) {
	const length, more = 1 << 20, 100
	shared := append(binary.AppendUvarint([]byte{128, 1, 1}, 1+more), 0)
	shared = append(binary.AppendVarint(shared, 0), 64)
	shared = append(binary.LittleEndian.AppendUint64(shared, length), make([]byte, 127*8)...)
	own := append(binary.AppendUvarint([]byte{128, 1, 1}, 1+more), binary.AppendVarint(nil, length)...)
	own = append(binary.AppendVarint(own, -length), 64)
	own = binary.LittleEndian.AppendUint64(own, 0)
	for range 127 {
		own = binary.LittleEndian.AppendUint64(own, length)
	}
	body := bytes.Join([][]byte{shared, own, bytes.Repeat([]byte("x"), length)}, nil)
	c, r := pagedOf(Column{Path: []string{"x"}, physical: typeBytes, Bytes: true}, 1+more, pageOf(pageData, 1+more, encDeltaBytes, body))
	var pages []Page
	var values []byte
	var starts []int64
	var err error
	if n := allocated(func() { pages, err = c.Pages(t.Context(), r, 0) }); err != nil || pages[0].Elements != (1+more)*length || n > 4*length {
		t.Fatalf("%d bytes were used to count %+v: %v", n, pages, err)
	}
	if n := allocated(func() { values, err = c.Read(t.Context(), r, &pages[0], nil) }); err != nil || len(values) != (1+more)*length || n > c.Memory(&pages[0]) {
		t.Errorf("%d bytes were used to read %d, %d may be: %v", n, len(values), c.Memory(&pages[0]), err)
	}
	if n := allocated(func() { starts, err = c.Starts(t.Context(), r, &pages[0], nil) }); err != nil || starts[more] != more*length || n > 4*length {
		t.Errorf("%d bytes were used to find %d rows: %v", n, len(starts), err)
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
