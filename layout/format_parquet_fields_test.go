package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/layout/parquet"
)

func TestParquetFields(t *testing.T) {
	rows := []string{}
	for i := range 100 {
		text := fmt.Sprintf("document %d %s", i, strings.Repeat("é", i%7))
		if i%10 == 3 {
			text = ""
		}
		rows = append(rows, text)
	}
	for _, name := range []string{"plain", "dictionary", "groups", "gzip", "lz4", "delta"} {
		got, about := samples(t, index(t, files{"a.parquet": parquetFixture(t, name)}))
		if about.Samples != 100 || len(about.Fields) != 9 {
			t.Fatalf("%s: %+v", name, about)
		}
		for i, text := range rows {
			id := binary.LittleEndian.AppendUint64(nil, uint64(i))
			for field, want := range map[string]string{
				"id": string(id), "text": text, "raw": text, "image": "\x00\xff", "meta.source": fmt.Sprint("s", i), "meta.n": string(id[:4]),
			} {
				if string(got[field][i]) != want {
					t.Errorf("%s: %s of row %d is %q, want %q", name, field, i, got[field][i], want)
				}
			}
			if n := len(got["input_ids"][i]); n != 4*(i%5) || n > 0 && got["wide"][i][8*(i%5)-8] != byte(i+i%5-1) {
				t.Errorf("%s: the lists of row %d are %x and %x", name, i, got["input_ids"][i], got["wide"][i])
			}
		}
		for _, f := range about.Fields {
			if dense := f.Name == "id" || f.Name == "meta.n"; f.Missing == "" && dense != (f.Kind == "dense") || (f.Missing != "") != (f.Name == "words") {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
}

func TestParquetFieldsThatAreNotShown(t *testing.T) {
	for name, want := range map[string]map[string]string{
		"dictionary":       {"words": "it is a column of list of text"},
		"struct":           {"lists": "it is a column of list of list of i32"},
		"holes":            {"holes": `column "holes.list.element": lists of it have elements that are null`},
		"brotli":           {"text": "is compressed by Brotli: write it with zstd or snappy"},
		"encrypted-tokens": {"input_ids": "is encrypted"},
	} {
		_, about := samples(t, index(t, files{"a.parquet": parquetFixture(t, name)}))
		for field, why := range want {
			i := slices.IndexFunc(about.Fields, func(f Field) bool { return f.Name == field })
			if i < 0 || !strings.Contains(about.Fields[i].Missing, why) {
				t.Errorf("%s: %+v, want %q", name, about.Fields, why)
			}
		}
	}
}

// parquetOf returns the field of a file, and the error of opening it.
func parquetOf(t *testing.T, data []byte, name string, left int64) (*field, *Object, error) {
	t.Helper()
	o := Bytes("a.parquet", data)
	room := new(atomic.Int64)
	room.Store(left)
	all, err := findParquetFields(t.Context(), &Volume{headers: newHeaderBudget(), decoded: newKept()}, o, room)
	if err != nil {
		return nil, o, err
	}
	for _, f := range all.fields {
		if f.name == name {
			return f, o, nil
		}
	}
	t.Fatalf("there is no field %s", name)
	return nil, nil, nil
}

// Long values of plain pages are extents of the file, as far as there is room for them. Short ones are decoded.
func TestParquetExtentsOfFields(t *testing.T) {
	data := golden(t, "parquet-images")["train-00001-of-00003.parquet"]
	for _, of := range []struct {
		name   string
		left   int64
		stored bool
	}{{"image.bytes", 100, true}, {"image.bytes", 3, false}, {"label", 10, true}, {"latent", 10, true}, {"image.path", 10, false}} {
		f, o, err := parquetOf(t, data, of.name, of.left)
		if err != nil || f.missing != "" || f.values.Size() == 0 {
			t.Fatalf("%s: %+v, %v", of.name, f, err)
		}
		stored := int64(0)
		for e := range f.values.Extents(0, f.values.Size()) {
			if e.Object == o {
				stored += e.Length
			}
		}
		if most := stored > f.values.Size()*9/10; most != of.stored || !most && stored > 0 { // values of a page that are short on average are decoded
			t.Errorf("%s: %d of %d bytes are extents, most: %v", of.name, stored, f.values.Size(), of.stored)
		}
		got := make([]byte, f.values.Size())
		if _, err := f.values.ReadAt(t.Context(), got, 0); err != nil {
			t.Fatal(err)
		}
		again, _, _ := parquetOf(t, data, of.name, 0)
		decoded := make([]byte, len(got))
		if _, err := again.values.ReadAt(t.Context(), decoded, 0); err != nil || !bytes.Equal(got, decoded) {
			t.Errorf("%s: wrong bytes by extents, or by decoding: %v", of.name, err)
		}
	}
}

// A length that leads out of its page, and lengths that leave a gap, are refused by the name of the file.
func TestParquetLengthsThatLie(t *testing.T) {
	whole := golden(t, "parquet-images")["train-00001-of-00003.parquet"]
	f, _, err := parquetOf(t, whole, "image.bytes", 100)
	if err != nil {
		t.Fatal(err)
	}
	at := int64(-1) // of a long value
	for e := range f.values.Extents(0, f.values.Size()) {
		if e.Length == 9000 {
			at = e.Offset
		}
	}
	if at < 0 {
		t.Fatal("no value has 9000 bytes")
	}
	for _, n := range []uint32{9001, 8990, 0, 0xffffffff, 1 << 31} {
		data := bytes.Clone(whole)
		binary.LittleEndian.PutUint32(data[at-4:], n)
		v := index(t, files{"a.parquet": data})
		fields, err := v.Sets[0].Fields(t.Context())
		if err != nil || len(v.Problems()) != 1 || v.Problems()[0].Object != "a.parquet" {
			t.Errorf("%d: %v, problems %v", n, err, v.Problems())
		}
		for _, f := range fields {
			if strings.HasPrefix(f.Missing, "a.parquet: ") != (f.Name == "image.bytes") {
				t.Errorf("%d: %+v", n, f)
			}
		}
	}
}

// The statistics promise other sizes than the pages have: no byte is shown.
func TestParquetStatisticsThatLie(t *testing.T) {
	o := Bytes("a.parquet", parquetFixture(t, "dictionary"))
	v := &Volume{headers: newHeaderBudget(), decoded: newKept()}
	f, err := parquet.Open(o.Reader(t.Context()), o.Size)
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Columns {
		x := &parquetShard{object: o, volume: v, column: f.Paged(i)}
		if parquetForm(&f.Columns[i], form{}).dtype == DTypeUnknown {
			continue
		}
		if err := x.open(t.Context(), newPieces()); err != nil {
			t.Fatal(err)
		}
		x.column.Elements[0]++
		x.tokens[1]++
		if err := x.fill(t.Context(), make([]byte, x.item), 0); err == nil || !strings.Contains(err.Error(), `"a.parquet"`) {
			t.Errorf("%s: %v", f.Columns[i].Field(), err)
		}
	}
}

// lazyReads counts the bytes that are read of a file whose values are long.
type lazyReads struct {
	*bytes.Reader
	bytes int
}

func (r *lazyReads) ReadAt(p []byte, off int64) (int, error) {
	r.bytes += len(p)
	return r.Reader.ReadAt(p, off)
}

// Of long values in plain pages, only the lengths are read to find them.
func TestParquetLongValuesAreNotRead(t *testing.T) {
	const values, length = 20, 100_000
	var page []byte
	for range values {
		page = append(binary.LittleEndian.AppendUint32(page, length), make([]byte, length)...)
	}
	data := parquetPlain(values, page)
	r := &lazyReads{Reader: bytes.NewReader(data)}
	f, err := parquet.Open(r, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	c := f.Paged(0)
	pages, err := c.Pages(t.Context(), r, 0)
	if err != nil || len(pages) != 1 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	starts, err := c.Starts(t.Context(), r, &pages[0], nil)
	if err != nil || len(starts) != values || starts[7] != 7*length || r.bytes > 50_000 {
		t.Errorf("%d starts after %d bytes, %v", len(starts), r.bytes, err)
	}
}

// parquetPlain is a file of one required column of bytes, with one plain page.
func parquetPlain(values int, page []byte) []byte {
	number := func(id byte, n int) []byte { return binary.AppendVarint([]byte{id<<4 | 5}, int64(n)) }
	join := func(parts ...[]byte) []byte { return append(bytes.Join(parts, nil), 0) }
	field := func(delta, kind byte) []byte { return []byte{delta<<4 | kind} }
	text := func(delta byte, s string) []byte {
		return append(binary.AppendUvarint(field(delta, 8), uint64(len(s))), s...)
	}
	data := []byte(parquet.Magic)
	data = append(data, join(number(1, 0), number(1, len(page)), number(1, len(page)), field(2, 12), join(number(1, values), number(1, 0), number(1, 3), number(1, 3)))...)
	data = append(data, page...)
	end := len(data)
	meta := join(number(1, 6), field(1, 9), []byte{0x15, 0}, field(1, 9), []byte{0x18, 1, 'a'}, number(1, 0), number(1, values), number(1, end-4), number(1, end-4), number(2, 4))
	schema := append(join(text(4, "root"), number(1, 1)), join(number(1, 6), number(2, 0), text(1, "a"))...)
	group := join(field(1, 9), []byte{0x1c}, join(number(2, 0), field(1, 12), meta), number(1, end-4), number(1, values))
	footer := join(number(1, 1), field(1, 9), []byte{0x2c}, schema, number(1, values), field(1, 9), []byte{0x1c}, group)
	data = append(data, footer...)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(footer)))
	return append(data, parquet.Magic...)
}

// Arrow's schema says that each row has 2 elements. There are 200 in 100 rows, of other lengths: the column is ragged, or not read.
func TestParquetRowsOfOtherLengths(t *testing.T) {
	for name, walked := range map[string]bool{"plain": true, "dictionary": false} {
		o := Bytes("a.parquet", parquetFixture(t, name))
		v := &Volume{headers: newHeaderBudget(), decoded: newKept()}
		f, err := parquet.Open(o.Reader(t.Context()), o.Size)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(f.Columns, func(c parquet.Column) bool { return c.Field() == "input_ids" })
		pairs := form{dtype: I32, shape: []int64{2}}
		of := &field{form: parquetForm(&f.Columns[at], pairs)}
		if err := of.findParquet(t.Context(), f.Rows, &parquetShard{object: o, volume: v, column: f.Paged(at)}, newPieces()); err != nil || of.ragged != walked {
			t.Fatalf("%s: ragged %v, %v", name, of.ragged, err)
		}
		if _, err := of.values.ReadAt(t.Context(), make([]byte, 8), 0); (err == nil) != walked || err != nil && !strings.Contains(err.Error(), `"a.parquet": row 0 of column "input_ids.list.element" has another shape than the column`) {
			t.Errorf("%s: %v", name, err)
		}
		wide := parquetForm(&f.Columns[at], form{dtype: I64, shape: []int64{2}})
		if !wide.ragged || wide.dtype != I32 {
			t.Errorf("%s: a schema of another type gives %+v", name, wide)
		}
	}
}

func TestParquetShapes(t *testing.T) {
	for i := range 3 {
		f, o, err := parquetOf(t, golden(t, "parquet-images")[fmt.Sprintf("train-%05d-of-00003.parquet", i)], "latent", 10)
		if err != nil || f.ragged || !slices.Equal(f.shape, []int64{6}) || f.dtype != F16 {
			t.Errorf("%s: %+v, %v", o.Name, f, err)
		}
	}
}

// To list the fields costs a footer where that has statistics.
func TestParquetFieldsAreNotDecodedToListThem(t *testing.T) {
	data := parquetFixture(t, "dictionary")
	origin := &countedReads{inline: data}
	v, err := Index(t.Context(), []*Object{{Name: "a.parquet", Size: int64(len(data)), Origin: origin}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	origin.bytes = 0
	fields, err := v.Sets[0].Fields(t.Context())
	footer := 8 + int64(binary.LittleEndian.Uint32(data[len(data)-8:]))
	if err != nil || len(fields) != 9 || origin.bytes > footer+8 {
		t.Errorf("%d fields after %d bytes, want at most %d: %v", len(fields), origin.bytes, footer+8, err)
	}
}

// TestParquetDictionariesTakeRoom reads values behind dictionaries, of which a few bytes may make 256 MiB.
func TestParquetDictionariesTakeRoom(t *testing.T) {
	data := parquetFixture(t, "dictionary")
	origin := &readsWithin{inline: data}
	o := &Object{Name: "a.parquet", Size: int64(len(data)), Origin: origin}
	room := new(atomic.Int64)
	room.Store(100)
	v := &Volume{headers: newHeaderBudget(), decoded: newKept()}
	all, err := findParquetFields(t.Context(), v, o, room)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, f := range all.fields {
			if f.name == "raw" || f.name == "id" {
				if _, err := f.values.ReadAt(t.Context(), make([]byte, f.values.Size()), 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		for key, e := range v.decoded.entries {
			if key.part != "pages" { // which are found by reading headers
				v.decoded.recent.Remove(e.place)
				delete(v.decoded.entries, key)
			}
		}
		origin.budget = &v.headers
	}
	if origin.reads == 0 || origin.without > 0 {
		t.Errorf("%d of %d reads of pages or dictionaries had no room", origin.without, origin.reads)
	}
}

// readsWithin counts reads, and those while nobody holds a part of the budget.
type readsWithin struct {
	inline
	budget         *headerBudget
	reads, without int
}

func (r *readsWithin) ReadAt(ctx context.Context, o *Object, p []byte, off int64) (int, error) {
	if r.budget != nil {
		r.reads++
		if r.budget.left.TryAcquire(maxHeaders) {
			r.budget.left.Release(maxHeaders)
			r.without++
		}
	}
	return r.inline.ReadAt(ctx, o, p, off)
}
