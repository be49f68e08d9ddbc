package layout

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/layout/parquet"
)

func arraysFixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("parquet", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestArraysOfDatasets reads arrays that datasets wrote, whose values count on from row to row.
func TestArraysOfDatasets(t *testing.T) {
	for _, name := range []string{"arrays.arrow", "arrays.parquet"} {
		got, about := samples(t, index(t, files{name: arraysFixture(t, name)}))
		var latents []byte
		for i := range 20 * 24 {
			latents = append(latents, halfOf(i)...)
		}
		for field, want := range map[string]struct {
			shape  []int64
			values []byte
		}{"latent": {[]int64{2, 3, 4}, latents}, "pixels": {[]int64{3, 4}, countedBytes(240)}} {
			i := slices.IndexFunc(about.Fields, func(f Field) bool { return f.Name == field })
			if f := about.Fields[i]; f.Kind != "dense" || !slices.Equal(f.Shape, want.shape) || !bytes.Equal(bytes.Join(got[field], nil), want.values) {
				t.Errorf("%s: %+v: %x", name, f, got[field])
			}
		}
		i := slices.IndexFunc(about.Fields, func(f Field) bool { return f.Name == "varying" })
		if f := about.Fields[i]; !strings.Contains(f.Missing, "column of list of list") {
			t.Errorf("%s: an array whose first dimension varies: %+v", name, f)
		}
	}
}

// TestArraysShareNoOffsets has a batch of which other columns have read all offsets that its body can hold.
func TestArraysShareNoOffsets(t *testing.T) {
	v := index(t, files{"a.arrow": arraysFixture(t, "arrays.arrow")})
	h := v.Sets[0].Shards[0]
	data, err := readFull(t.Context(), h.Objects[0], 0, h.Objects[0].Size)
	if err != nil {
		t.Fatal(err)
	}
	head := arrowProbe(h.Objects[0], data).(arrowHead)
	i := slices.IndexFunc(head.schema.columns, func(c arrowColumn) bool { return len(c.lists) > 0 })
	s, c := &arrowStream{object: h.Objects[0], start: head.start, budget: newHeaderBudget()}, &head.schema.columns[i]
	for unread, shared := range map[int64]bool{1 << 20: false, 10: true} {
		err := s.walk(t.Context(), func(b arrowBatch) error {
			rows, err := s.rows(b)
			if err != nil {
				return err
			}
			*b.unread = unread
			_, err = s.piece(t.Context(), b, rows, c)
			return err
		})
		if (err != nil) != shared || shared && !strings.Contains(err.Error(), "share the offsets") {
			t.Errorf("%d bytes are left: %v", unread, err)
		}
	}
}

// halfOf is a whole number below 2,048 as float16.
func halfOf(n int) []byte {
	bits := uint16(0)
	for e := 10; n > 0 && bits == 0; e-- {
		if n>>e != 0 {
			bits = uint16(15+e)<<10 | uint16(n<<(10-e))&0x3ff
		}
	}
	return binary.LittleEndian.AppendUint16(nil, bits)
}

func countedBytes(n int) (out []byte) {
	for i := range n {
		out = append(out, byte(i))
	}
	return out
}

// TestArraysOfOtherShapes has lists that are not those of the shape.
func TestArraysOfOtherShapes(t *testing.T) {
	arrow := arraysFixture(t, "arrays.arrow")
	offsets := func(step int32, n int) (out []byte) {
		for i := range int32(n) {
			out = binary.LittleEndian.AppendUint32(out, uint32(i*step))
		}
		return out
	}
	for _, change := range []struct {
		find []byte
		at   int
		to   byte
		says string
	}{
		{offsets(3, 7), 24, 17, "not that of row 19 of a.arrow"}, {offsets(3, 7), 8, 5, "not that of row 15 of a.arrow"},
		{offsets(4, 8), 8, 9, "not that of row 14 of a.arrow"}, {offsets(4, 8), 20, 19, "not that of row 15 of a.arrow"},
		{offsets(3, 7), 0, 1, "do not begin at item 0 of a batch of a.arrow"}, {offsets(4, 8), 0, 1, "do not begin at item 0 of a batch of a.arrow"},
	} {
		data := bytes.Clone(arrow)
		i := bytes.LastIndex(data, change.find)
		if i < 0 {
			t.Fatal("the offsets are not there")
		}
		data[i+change.at] = change.to
		_, about := samples(t, index(t, files{"a.arrow": data}))
		if n := slices.IndexFunc(about.Fields, func(f Field) bool {
			return strings.Contains(f.Missing, change.says)
		}); n < 0 {
			t.Errorf("%+v: %+v", change, about.Fields)
		}
	}
	for _, other := range []string{`[[3, 5], "uint8"]`, `[[3, 0], "uint8"]`, `[[3, -4], "uint"]`, `[[3, 4, 5], "u8"]`, `[[3, 4000000000]]`, `{"3": 4, "5": 6} `} {
		v := index(t, files{"a.arrow": bytes.ReplaceAll(arrow, []byte(`[[3, 4], "uint8"]`), []byte(other))})
		all, err := v.Sets[0].samplesOf(t.Context())
		if err != nil || all.fields[1].missing == "" || all.fields[0].missing != "" {
			t.Errorf("arrays whose shape is said to be %q: %v, %+v", other, err, all)
		}
	}
}

// TestArraysOfOtherShapesInParquet changes the schema that Arrow's library left in the footer.
func TestArraysOfOtherShapesInParquet(t *testing.T) {
	data := arraysFixture(t, "arrays.parquet")
	f, err := parquet.Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	schema, err := base64.StdEncoding.DecodeString(string(f.Arrow))
	if err != nil {
		t.Fatal(err)
	}
	const shape = `[[3, 4], "uint8"]`
	of := func(other string) *Volume {
		changed := base64.StdEncoding.EncodeToString(bytes.ReplaceAll(schema, []byte(shape), []byte(other)))
		return index(t, files{"a.parquet": bytes.ReplaceAll(data, f.Arrow, []byte(changed))})
	}
	for other, want := range map[string]string{
		`[[3, 5], "uint8"]`: "not all arrays of column", `[[1, 4], "uint8"]`: "not all arrays of column", `[[3, 0], "uint8"]`: "it is a column of list of list",
		`[[3, -4], "uint"]`: "it is a column of list of list", shape: "",
	} {
		fields, err := of(other).Sets[0].Fields(t.Context())
		if err != nil {
			t.Errorf("arrays whose shape is said to be %s: %v", other, err)
		}
		for _, f := range fields {
			if f.Name == "pixels" && (!strings.HasPrefix(f.Missing, want) || (f.Missing == "") != (want == "")) || f.Name == "latent" && f.Missing != "" {
				t.Errorf("arrays whose shape is said to be %s: %+v", other, f)
			}
		}
	}
	for _, other := range []string{`[[4, 3], "uint8"]`, `[[2, 6], "uint8"]`, `[[1,12], "uint8"]`} {
		const want = `read "a.parquet": row 0 of column "pixels.list.element.list.element" has another shape than the column`
		v := of(other)
		if _, err := v.Sets[0].Fields(t.Context()); err == nil || err.Error() != want {
			t.Errorf("arrays whose shape is said to be %s: %v", other, err)
		}
		all, err := v.Sets[0].samplesOf(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all.fields, func(f *field) bool { return f.name == "pixels" })
		if _, err := all.fields[i].values.ReadAt(t.Context(), make([]byte, 12), 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("arrays whose shape is said to be %s are read: %v", other, err)
		}
	}
}

// TestArraysOfTooManyElements has shapes whose products wrap around.
func TestArraysOfTooManyElements(t *testing.T) {
	for _, shape := range [][]int64{{1 << 61}, {1 << 60, 1 << 61}, {1 << 31, 1 << 31, 2}, {-1}, {0}} {
		c := arrowColumn{}
		ok := true
		for _, n := range shape {
			ok = ok && c.dimension(n)
		}
		if ok {
			t.Errorf("an array of %v is counted as %d elements", shape, c.elements())
		}
	}
}
