package parquet

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"
)

// pagedRows returns the bytes of the elements of each row of a column, read page by page.
func pagedRows(t testing.TB, data []byte, name string) (rows [][]byte, plain int, err error) {
	r := bytes.NewReader(data)
	f, err := Open(r, int64(len(data)))
	if err != nil {
		return nil, 0, err
	}
	index := f.field(name)
	if index < 0 {
		return nil, 0, errors.New("no such field")
	}
	column := &f.Columns[index]
	if column.Element == "" || column.Bytes && column.Lists > 0 {
		return nil, 0, errors.New("no column of elements")
	}
	c, width := f.Paged(index), column.Width()
	if err := c.Readable(); err != nil {
		return nil, 0, err
	}
	for g := range c.Groups() {
		pages, err := c.Pages(t.Context(), r, g)
		if err != nil {
			return nil, 0, err
		}
		for i := range pages {
			p := &pages[i]
			d, err := c.Dictionary(t.Context(), r, p)
			if err != nil {
				return nil, 0, err
			}
			starts, err := c.Starts(t.Context(), r, p, d)
			if err != nil {
				return nil, 0, err
			}
			raw, err := c.Read(t.Context(), r, p, d)
			if err != nil {
				return nil, 0, err
			}
			if int64(len(raw)) != p.Elements*width || int64(len(starts)) != p.Rows {
				t.Fatalf("%d bytes for %d elements, %d starts for %d rows", len(raw), p.Elements, len(starts), p.Rows)
			}
			if p.Values > 0 {
				plain++
				checkStored(t, c, p, data, raw)
			}
			for k := range p.Rows + 1 {
				begin, end := int64(0), p.Elements
				if k > 0 {
					begin = starts[k-1]
					rows = append(rows, []byte{})
				}
				if k < p.Rows {
					end = starts[k]
				}
				if end > begin {
					rows[len(rows)-1] = append(rows[len(rows)-1], raw[begin*width:end*width]...)
				}
			}
		}
	}
	return rows, plain, nil
}

// checkStored compares what a page says of the places of its values with what it gives.
func checkStored(t testing.TB, c *Paged, p *Page, data, raw []byte) {
	if !c.Column.Bytes {
		if there := data[p.Values:][:len(raw)]; !bytes.Equal(there, raw) {
			t.Fatalf("the file has other values at %d than the page", p.Values)
		}
		return
	}
	var there []byte
	err := c.Stored(t.Context(), bytes.NewReader(data), p, func(offset, length int64) error {
		there = append(there, data[offset:offset+length]...)
		return nil
	})
	if err != nil || !bytes.Equal(there, raw) {
		t.Fatalf("the file has other values at %d than the page: %v", p.Values, err)
	}
}

// field returns the index of a column by the name of its field.
func (f *File) field(name string) int {
	return slices.IndexFunc(f.Columns, func(c Column) bool { return c.Field() == name })
}

// valueRows returns the same, read value by value.
func valueRows(t testing.TB, data []byte, name string) (rows [][]byte, holes bool, err error) {
	f, err := Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, false, err
	}
	index := f.field(name)
	if index < 0 {
		return nil, false, errors.New("no such field")
	}
	c := &f.Columns[index]
	for g := range f.Groups {
		err := f.Values(t.Context(), g, index, func(v Value) error {
			if v.First {
				rows = append(rows, []byte{})
			}
			row := &rows[len(rows)-1]
			if holes = holes || v.Hole; v.Null {
				return nil
			}
			if c.physical != typeInt32 && c.physical != typeInt64 {
				*row = append(*row, v.Bytes...)
				return nil
			}
			*row = append(*row, make([]byte, c.Width())...)
			return c.store((*row)[len(*row)-int(c.Width()):], []int64{v.Number})
		})
		if err != nil {
			return nil, false, err
		}
	}
	return rows, holes, nil
}

// pagedFiles are columns of the golden files, with the number of their pages that are plain.
func pagedFiles() map[[2]string]int {
	return map[[2]string]int{
		{"plain", "input_ids"}: 1, {"plain", "wide"}: 1, {"dictionary", "input_ids"}: 0, {"dictionary", "wide"}: 0, {"groups", "input_ids"}: 0, {"gzip", "wide"}: 0,
		{"lz4", "input_ids"}: 0, {"delta", "input_ids"}: 0, {"delta", "wide"}: 0, {"split", "split"}: 0, {"struct", "tokens.ids"}: 0,
		{"plain", "id"}: 1, {"plain", "text"}: 1, {"plain", "raw"}: 1, {"plain", "meta.source"}: 1, {"plain", "meta.n"}: 1, {"dictionary", "text"}: 0,
		{"dictionary", "meta.n"}: 0, {"groups", "text"}: 0, {"groups", "image"}: 0, {"gzip", "text"}: 0, {"gzip", "id"}: 0, {"lz4", "raw"}: 0, {"delta", "text"}: 0,
		{"delta", "raw"}: 0, {"delta", "id"}: 0,
	}
}

func TestPages(t *testing.T) {
	for of, plain := range pagedFiles() {
		data := golden(t, of[0]+".parquet")
		want, holes, err := valueRows(t, data, of[1])
		if err != nil || holes || len(want) < 3 {
			t.Fatalf("%v: %d rows, %v", of, len(want), err)
		}
		got, direct, err := pagedRows(t, data, of[1])
		if err != nil || !slices.EqualFunc(got, want, bytes.Equal) || direct != plain {
			t.Errorf("%v: %d of %d rows, %d of %d pages are plain: %v", of, len(got), len(want), direct, plain, err)
		}
	}
	if rows, _, err := pagedRows(t, golden(t, "split.parquet"), "split"); err != nil || len(rows) != 3 || len(rows[2]) != 8000 || rows[2][7992] != 1001&0xff {
		t.Errorf("split: %d rows, %v", len(rows), err)
	}
}

// TestPagesAreReadAtOnce reads all columns of files at once, as often as memory of pages is used again, and compares with what was read first.
func TestPagesAreReadAtOnce(t *testing.T) {
	type page struct {
		column *Paged
		file   *bytes.Reader
		page   Page
		raw    []byte
		starts []int64
	}
	read := func(p *page) (raw []byte, starts []int64, err error) {
		d, err := p.column.Dictionary(t.Context(), p.file, &p.page)
		if err == nil {
			starts, err = p.column.Starts(t.Context(), p.file, &p.page, d)
		}
		if err == nil {
			raw, err = p.column.Read(t.Context(), p.file, &p.page, d)
		}
		return raw, starts, err
	}
	var pages []page
	for _, name := range []string{"plain", "dictionary", "delta", "split", "gzip", "lz4", "groups"} {
		data := golden(t, name+".parquet")
		r := bytes.NewReader(data)
		f, err := Open(r, int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		for index := range f.Columns {
			c := f.Paged(index)
			if of := &f.Columns[index]; of.Element == "" || of.Bytes && of.Lists > 0 || c.Readable() != nil {
				continue
			}
			for g := range c.Groups() {
				found, err := c.Pages(t.Context(), r, g)
				for _, p := range found {
					one := page{column: c, file: r, page: p}
					one.raw, one.starts, err = read(&one)
					pages = append(pages, one)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	want := make([][]byte, len(pages))
	for i := range pages {
		want[i] = bytes.Clone(pages[i].raw)
	}
	var readers sync.WaitGroup
	for k := range 4 {
		readers.Go(func() {
			for n := range 2 * len(pages) {
				i := (n*(2*k+1) + k) % len(pages)
				raw, starts, err := read(&pages[i])
				if err != nil || !bytes.Equal(raw, want[i]) || !slices.Equal(starts, pages[i].starts) {
					t.Errorf("page %d of column %q has other values than before: %v", i, pages[i].column.Name(), err)
				}
			}
		})
	}
	readers.Wait()
	for i := range pages {
		if !bytes.Equal(pages[i].raw, want[i]) {
			t.Errorf("what was read of page %d of column %q has changed since", i, pages[i].column.Name())
		}
	}
}

func TestTokensThatAreNone(t *testing.T) {
	if _, _, err := pagedRows(t, golden(t, "holes.parquet"), "holes"); !errors.Is(err, ErrHoles) {
		t.Errorf("null elements: %v", err)
	}
	if _, holes, err := valueRows(t, golden(t, "holes.parquet"), "holes"); err != nil || !holes {
		t.Errorf("null elements as values: %v", err)
	}
	if _, _, err := pagedRows(t, golden(t, "brotli.parquet"), "input_ids"); !errors.Is(err, ErrUnread) {
		t.Errorf("brotli: %v", err)
	}
	c := &Column{Path: []string{"x"}, Kind: "list of u16", physical: typeInt32, bits: 16, unsigned: true}
	for n, fits := range map[int64]bool{0: true, 65535: true, 65536: false, -1: false} {
		if err := c.store(make([]byte, 2), []int64{n}); (err == nil) != fits {
			t.Errorf("%d as u16: %v", n, err)
		}
	}
	c.unsigned = false
	for n, fits := range map[int64]bool{32767: true, -32768: true, 32768: false, -32769: false} {
		if err := c.store(make([]byte, 2), []int64{n}); (err == nil) != fits {
			t.Errorf("%d as i16: %v", n, err)
		}
	}
}

// What statistics promise is compared with the pages.
func TestStatisticsThatLie(t *testing.T) {
	data := golden(t, "dictionary.parquet")
	f, err := Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	index, _ := f.Find("input_ids")
	c := f.Paged(index)
	if c.Elements[0] != 200 {
		t.Fatalf("the statistics say %d tokens, want 200", c.Elements[0])
	}
	c.Elements[0] = 201
	if _, err := c.Pages(t.Context(), bytes.NewReader(data), 0); !errors.Is(err, ErrBroken) {
		t.Errorf("got %v", err)
	}
	column := &f.Columns[index]
	for _, defs := range [][]int64{nil, {100, 20}, {100, 20, 0, 201}, {-1, 21, 0, 200}, {0, 19, 1, 200}, {1 << 62, 1 << 62, 0, 220}} {
		if n := column.promised(100, &chunk{place: place{values: 220}, defs: defs}); n != -1 {
			t.Errorf("%v promises %d", defs, n)
		}
	}
}

// A run of 2^31 tokens takes a few bytes: it is refused before anything is made of it.
func TestPagesThatSwell(t *testing.T) {
	data := golden(t, "plain.parquet")
	f, err := Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	index, _ := f.Find("input_ids")
	c := f.Paged(index)
	v := c.values(0)
	v.max = 1 << 40
	if err := v.measure(bytes.NewReader(data), &pageHeader{kind: pageData, values: 1 << 30}, &Page{}, 0); !errors.Is(err, ErrUnread) {
		t.Errorf("got %v", err)
	}
}

// FuzzPaged changes one place of a good file: read by pages it gives what it gives read by values, or an error.
func FuzzPaged(f *testing.F) {
	var names [][2]string
	for of := range pagedFiles() {
		names = append(names, of)
	}
	slices.SortFunc(names, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	files := map[string][]byte{}
	for i, of := range names {
		files[of[0]] = golden(f, of[0]+".parquet")
		f.Add(i, 100, []byte{0xff})
		f.Add(i, len(files[of[0]])-20, []byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	}
	f.Fuzz(func(t *testing.T, file, at int, change []byte) {
		of := names[uint(file)%uint(len(names))]
		data := bytes.Clone(files[of[0]])
		copy(data[uint(at)%uint(len(data)):], change)
		got, _, err := pagedRows(t, data, of[1])
		if err != nil {
			return
		}
		want, holes, err := valueRows(t, data, of[1])
		if err != nil || holes || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("by pages %d rows, by values %d (holes: %v): %v", len(got), len(want), holes, err)
		}
	})
}
