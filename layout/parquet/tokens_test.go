package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// tokenRows returns the rows of a column of tokens, read page by page.
func tokenRows(t testing.TB, data []byte, name string) (rows [][]int64, plain int, err error) {
	r := bytes.NewReader(data)
	f, err := Open(r, int64(len(data)))
	if err != nil {
		return nil, 0, err
	}
	index, why := f.Find(name)
	if why != "" || !f.Columns[index].Tokens {
		return nil, 0, fmt.Errorf("no column of tokens: %s", why)
	}
	c := f.TokenColumn(index)
	if err := c.Readable(); err != nil {
		return nil, 0, err
	}
	bits, unsigned := c.Integer()
	number := func(raw []byte) int64 {
		var whole [8]byte
		copy(whole[:], raw[:bits/8])
		v := int64(binary.LittleEndian.Uint64(whole[:]))
		if !unsigned {
			v = v << (64 - bits) >> (64 - bits)
		}
		return v
	}
	for g := range c.Groups {
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
			starts, err := c.Starts(t.Context(), r, p)
			if err != nil {
				return nil, 0, err
			}
			raw, err := c.Read(t.Context(), r, p, d)
			if err != nil {
				return nil, 0, err
			}
			if int64(len(raw)) != p.Tokens*int64(bits/8) || int64(len(starts)) != p.Rows {
				t.Fatalf("%d bytes for %d tokens, %d starts for %d rows", len(raw), p.Tokens, len(starts), p.Rows)
			}
			if p.Values > 0 {
				plain++
				if there := data[p.Values:][:len(raw)]; !bytes.Equal(there, raw) {
					t.Fatalf("the file has other tokens at %d than the page", p.Values)
				}
			}
			for k := range p.Tokens {
				for len(starts) > 0 && starts[0] == k {
					rows, starts = append(rows, []int64{}), starts[1:]
				}
				rows[len(rows)-1] = append(rows[len(rows)-1], number(raw[k*int64(bits/8):]))
			}
			for range starts { // rows without tokens
				rows = append(rows, []int64{})
			}
		}
	}
	return rows, plain, nil
}

// valueRows returns the same, read value by value.
func valueRows(t testing.TB, data []byte, name string) (rows [][]int64, holes bool, err error) {
	f, err := Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, false, err
	}
	index, why := f.Find(name)
	if why != "" {
		return nil, false, errors.New(why)
	}
	for g := range f.Groups {
		err := f.Values(t.Context(), g, index, func(v Value) error {
			if v.First {
				rows = append(rows, []int64{})
			}
			if holes = holes || v.Hole; !v.Null {
				rows[len(rows)-1] = append(rows[len(rows)-1], v.Number)
			}
			return nil
		})
		if err != nil {
			return nil, false, err
		}
	}
	return rows, holes, nil
}

// tokenFiles are columns of tokens of the golden files, with the number of their pages that are plain.
func tokenFiles() map[[2]string]int {
	return map[[2]string]int{
		{"plain", "input_ids"}: 1, {"plain", "wide"}: 1, {"dictionary", "input_ids"}: 0, {"dictionary", "wide"}: 0, {"groups", "input_ids"}: 0, {"gzip", "wide"}: 0,
		{"lz4", "input_ids"}: 0, {"delta", "input_ids"}: 0, {"delta", "wide"}: 0, {"split", "split"}: 0, {"struct", "tokens"}: 0,
	}
}

func TestTokenPages(t *testing.T) {
	for of, plain := range tokenFiles() {
		data := golden(t, of[0]+".parquet")
		want, holes, err := valueRows(t, data, of[1])
		if err != nil || holes || len(want) < 3 {
			t.Fatalf("%v: %d rows, %v", of, len(want), err)
		}
		got, direct, err := tokenRows(t, data, of[1])
		if err != nil || !slices.EqualFunc(got, want, slices.Equal[[]int64]) || direct != plain {
			t.Errorf("%v: %d of %d rows, %d of %d pages are plain: %v", of, len(got), len(want), direct, plain, err)
		}
	}
	if rows, _, err := tokenRows(t, golden(t, "split.parquet"), "split"); err != nil || len(rows) != 3 || len(rows[2]) != 1000 || rows[2][999] != 1001 {
		t.Errorf("split: %d rows, %v", len(rows), err)
	}
}

func TestTokensThatAreNone(t *testing.T) {
	if _, _, err := tokenRows(t, golden(t, "holes.parquet"), "holes"); !errors.Is(err, ErrHoles) {
		t.Errorf("null elements: %v", err)
	}
	if _, holes, err := valueRows(t, golden(t, "holes.parquet"), "holes"); err != nil || !holes {
		t.Errorf("null elements as values: %v", err)
	}
	if _, _, err := tokenRows(t, golden(t, "brotli.parquet"), "input_ids"); !errors.Is(err, ErrUnread) {
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
	c := f.TokenColumn(index)
	if c.Groups[0].Tokens != 200 {
		t.Fatalf("the statistics say %d tokens, want 200", c.Groups[0].Tokens)
	}
	c.Groups[0].Tokens = 201
	if _, err := c.Pages(t.Context(), bytes.NewReader(data), 0); !errors.Is(err, ErrBroken) {
		t.Errorf("got %v", err)
	}
	column := &f.Columns[index]
	for _, defs := range [][]int64{nil, {100, 20}, {100, 20, 0, 201}, {-1, 21, 0, 200}, {0, 19, 1, 200}, {1 << 62, 1 << 62, 0, 220}} {
		if n := column.promised(&chunk{values: 220, defs: defs}); n != -1 {
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
	c := f.TokenColumn(index)
	v := c.values(0)
	v.max = 1 << 40
	if err := v.measure(bytes.NewReader(data), &pageHeader{kind: pageData, values: 1 << 30}, &Page{}, 0); !errors.Is(err, ErrUnread) {
		t.Errorf("got %v", err)
	}
}

// FuzzTokens changes one place of a good file: read by pages it gives what it gives read by values, or an error.
func FuzzTokens(f *testing.F) {
	var names [][2]string
	for of := range tokenFiles() {
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
		got, _, err := tokenRows(t, data, of[1])
		if err != nil {
			return
		}
		want, holes, err := valueRows(t, data, of[1])
		if err != nil || holes || !slices.EqualFunc(got, want, slices.Equal[[]int64]) {
			t.Errorf("by pages %d rows, by values %d (holes: %v): %v", len(got), len(want), holes, err)
		}
	})
}
