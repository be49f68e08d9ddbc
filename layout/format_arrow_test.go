package layout

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// arrowFixture reads a file that testdata/arrow/make.py wrote.
func arrowFixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "arrow", name+".arrow"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestArrowGolden(t *testing.T) {
	checkGoldenViews(t, checkGolden(t, "arrow"), "arrow")
	v := checkGolden(t, "arrow-text")
	if s := v.Sets[0]; !strings.Contains(s.NoTokens, `"text" is text`) {
		t.Errorf("no tokens because %q", s.NoTokens)
	}
	if _, ok := readView(t, v, "tokens.npy"); ok {
		t.Error("text is shown as tokens")
	}
}

// documentsOf returns what the views tokens.bin and documents.npy say of a set of one type.
func documentsOf(t testing.TB, v *Volume, width int) (docs [][]int64, ok bool) {
	t.Helper()
	tokens, ok := readView(t, v, "tokens.bin")
	if !ok {
		return nil, false
	}
	array, ok := readView(t, v, "documents.npy")
	if !ok {
		return nil, false
	}
	var starts []int64
	for array = array[128:]; len(array) > 0; array = array[8:] {
		starts = append(starts, int64(binary.LittleEndian.Uint64(array)))
	}
	for i := range starts[1:] {
		doc := []int64{}
		for p := tokens[starts[i]*int64(width) : starts[i+1]*int64(width)]; len(p) > 0; p = p[width:] {
			var whole [8]byte
			copy(whole[:], p[:width])
			doc = append(doc, int64(binary.LittleEndian.Uint64(whole[:])))
		}
		docs = append(docs, doc)
	}
	return docs, true
}

func TestArrowColumns(t *testing.T) {
	docs := [][]int64{{1, 2, 3}, {}, {4, 5}, {6}}
	for name, want := range map[string]struct {
		dtype DType
		docs  [][]int64
	}{
		"stream-u16": {U16, docs}, "large-i64": {I64, docs}, "file-i32": {I32, docs}, "v4-i32": {I32, docs}, "sliced-i32": {I32, docs},
		"dictionary": {I32, docs}, "behind": {I32, docs}, "empty": {I32, nil}, "fixed-i32": {I32, [][]int64{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}},
	} {
		v, s := oneSet(t, files{"x": arrowFixture(t, name)})
		if s.DType != want.dtype || s.Samples() != int64(len(want.docs)) {
			t.Errorf("%s: dtype %s, %d samples; notes %q", name, s.DType, s.Samples(), s.Notes)
		}
		got, ok := documentsOf(t, v, s.DType.Size())
		if !ok || !slices.EqualFunc(got, want.docs, slices.Equal[[]int64]) {
			t.Errorf("%s: documents %v (%v), want %v", name, got, ok, want.docs)
		}
	}
}

func TestArrowWithoutTokenStream(t *testing.T) {
	for name, want := range map[string]string{
		"compressed": "compressed", "nulls": "nulls", "two-lists": `several columns hold lists of integers and none is called input_ids, tokens or token_ids: "a", "b"`,
		"union": "behind a union",
	} {
		v, s := oneSet(t, files{"x.arrow": arrowFixture(t, name)})
		if why := s.NoTokens + s.Shards[0].NoTokens; !strings.Contains(why, want) {
			t.Errorf("%s: no tokens because %q, want %q", name, why, want)
		}
		if s.Samples() < 2 {
			t.Errorf("%s: %d samples", name, s.Samples())
		}
		if _, ok := readView(t, v, "tokens.bin"); ok {
			t.Errorf("%s: tokens.bin exists", name)
		}
	}
}

func TestArrowStateGivesTheOrder(t *testing.T) {
	one, other := arrowFixture(t, "file-i32"), arrowFixture(t, "v4-i32")
	f := files{"b.arrow": one, "a.arrow": other, "state.json": []byte(`{"_data_files":[{"filename":"b.arrow"},{"filename":"a.arrow"}]}`)}
	_, s := oneSet(t, f)
	if s.Shards[0].Name != "b.arrow" || s.Shards[1].Name != "a.arrow" {
		t.Errorf("order %s, %s", s.Shards[0].Name, s.Shards[1].Name)
	}
	for state, want := range map[string]string{
		`{"_data_files":[{"filename":"b.arrow"},{"filename":"c.arrow"},{"filename":"a.arrow"}]}`: `"c.arrow" is missing`,
		`{"_data_files":[{"filename":"../../etc/passwd"},{"filename":"b.arrow"}]}`:               "the name leaves",
		`{"_data_files":[{"filename":"/etc/passwd"},{"filename":"b.arrow"}]}`:                    "the name leaves",
		`{"_data_files":[{"filename":"b.arrow"},{"filename":"a.arrow"},{"filename":"b.arrow"}]}`: "listed twice",
		`{"_data_files":[{"filename":7}]}`:                                                       "cannot be read",
		`[]`:                                                                                     "a JSON object is expected",
	} {
		f["state.json"] = []byte(state)
		v := index(t, f)
		wantProblems(t, v, "state.json: "+want)
		if len(v.Sets) == 0 {
			t.Errorf("%s: no set", state)
		}
		if _, ok := readView(t, v, v.Sets[0].ViewDir()+strings.Repeat("/", min(1, len(v.Sets[0].ViewDir())))+"tokens.bin"); ok && strings.Contains(want, "missing") {
			t.Error("a stream that lacks a shard is shown")
		}
	}
	f["state.json"] = []byte(`{"version":3}`) // of another program
	oneSet(t, f)
}

func TestArrowColumnsInAnotherOrder(t *testing.T) {
	a, b := arrowColumn{name: "a", kind: "i32"}, arrowColumn{name: "b", kind: "i32"}
	of := func(columns ...arrowColumn) string { return (&arrowSchema{columns: columns}).signature() }
	if of(a, b) != of(b, a) || of(a, b) == of(a) || of(a, b) == of(a, b, b) {
		t.Errorf("%s and %s", of(a, b), of(b, a))
	}
	narrow, wide := arrowColumn{name: "tokens", kind: "list of u16", list: true}, arrowColumn{name: "tokens", kind: "list of i64", list: true}
	if of(narrow, wide) == of(wide, narrow) || of(a, narrow) != of(narrow, a) {
		t.Errorf("tokens of several columns: %s and %s", of(narrow, wide), of(wide, narrow))
	}
}

func TestArrowSchemasStayApart(t *testing.T) {
	v := index(t, files{"a.arrow": arrowFixture(t, "stream-u16"), "b.arrow": arrowFixture(t, "large-i64"), "c.arrow": arrowFixture(t, "stream-u16")})
	if len(v.Sets) != 2 || len(v.Sets[0].Shards)+len(v.Sets[1].Shards) != 3 {
		t.Errorf("%d sets", len(v.Sets))
	}
	wantProblems(t, v)
}

// arrowPlaces are where the numbers of a stream's first record batch of lists lie in it.
type arrowPlaces struct {
	rows, bodyLength                int64
	node, offsetsBuffer, dataBuffer int64 // structs of two i64
	offsets                         int64
}

func placesOf(t testing.TB, stream []byte) (p arrowPlaces) {
	t.Helper()
	s := &arrowStream{object: Bytes("x", stream)}
	found := false
	err := s.walk(t.Context(), func(b arrowBatch) error {
		if found {
			return nil
		}
		found = true
		rows, _ := b.table.field(0, 8)
		body, _ := b.f.root().field(3, 8)
		buffers := b.table.vector(2, 16)
		offsets, _ := buffers.pair(1)
		p = arrowPlaces{b.at + rows, b.at + body, b.at + b.table.vector(1, 16).pos, b.at + buffers.at(1), b.at + buffers.at(3), b.body + offsets}
		return b.f.err
	})
	if err != nil || !found {
		t.Fatalf("no record batch: %v", err)
	}
	return p
}

func TestArrowHostileNumbers(t *testing.T) {
	good := golden(t, "arrow")["data-00000-of-00002.arrow"]
	p := placesOf(t, good)
	const huge = 1 << 62
	for _, c := range []struct {
		name  string
		at    int64
		value uint64
		width int
		want  string
	}{
		{"body past the end", p.bodyLength, huge, 8, "the message has a body of"},
		{"negative body", p.bodyLength, 1 << 63, 8, "the message has a body of"},
		{"rows that do not match", p.rows, 5, 8, "in a batch of 5 rows"},
		{"negative rows", p.rows, 1 << 63, 8, "a record batch has -9223372036854775808 rows"},
		{"rows without end", p.rows, huge, 8, "a record batch has"},
		{"items past the body", p.node + 16, huge, 8, "values of 4 bytes are said to lie"},
		{"negative items", p.node + 16, 1 << 63, 8, "items in a batch"},
		{"offsets past the body", p.offsetsBuffer, huge, 8, "offsets of 4 bytes are said to lie"},
		{"few offsets", p.offsetsBuffer + 8, 24, 8, "7 offsets of 4 bytes are said to lie in 24"},
		{"negative values", p.dataBuffer, 1 << 63, 8, "values of 4 bytes are said to lie"},
		{"first offset behind the last", p.offsets, 1 << 30, 4, "the lists begin at item"},
		{"last offset behind the items", p.offsets + 24, 1 << 30, 4, "the lists begin at item"},
		{"an offset that decreases", p.offsets + 8, 0, 4, "which is before the document before it"},
		{"metadata past the end", 4, 1 << 30, 4, "the schema is said to have"},
		{"negative metadata", 4, 1 << 31, 4, "the schema is said to have"},
		{"root past the metadata", 8, 1 << 31, 4, "its table at"},
	} {
		bad := bytes.Clone(good)
		if c.width == 4 {
			binary.LittleEndian.PutUint32(bad[c.at:], uint32(c.value))
		} else {
			binary.LittleEndian.PutUint64(bad[c.at:], c.value)
		}
		v := index(t, files{"a.arrow": bad, "b.arrow": good})
		for _, s := range v.Sets {
			if err := s.Check(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		t.Run(c.name, func(t *testing.T) { wantProblems(t, v, "a.arrow: "+c.want) })
		if v.Sets[0].Shards[1].Bad != "" {
			t.Errorf("%s: the sound shard is bad", c.name)
		}
	}
}

func TestArrowStreamWithoutItsMark(t *testing.T) {
	f := golden(t, "arrow")
	const name = "data-00001-of-00002.arrow"
	f[name] = f[name][:len(f[name])-8]
	v := index(t, f)
	if err := v.Sets[0].Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, v, name+": the stream ends without its mark")
}

// Offsets can lead to one child twice, so 50 small structs make 2^50 fields.
func TestArrowSchemaIsBounded(t *testing.T) {
	var message []byte
	for range 50 {
		for _, v := range []uint16{16, 12, 0, 0, 8, 0, 0, 4} { // vtable: the type's kind at 8 of the table, children at 4
			message = binary.LittleEndian.AppendUint16(message, v)
		}
		for _, v := range []uint32{16, 8, arrowStruct, 2, 24, 20} { // table, vector of children: both are the next table
			message = binary.LittleEndian.AppendUint32(message, v)
		}
	}
	binary.LittleEndian.PutUint32(message[len(message)-12:], 0) // the last struct is empty
	f := &flatbuffer{buf: message}
	var n arrowFields
	n.count(f, f.table(16), 0)
	if n.fields != maxArrowFields+1 || f.err == nil {
		t.Errorf("%d fields were walked: %v", n.fields, f.err)
	}
}

// TestArrowTextsAreNotCopied has 20 columns that are one table: a text of 1 MiB is the name of each, or the key of all its notes.
func TestArrowTextsAreNotCopied(t *testing.T) {
	const columns, notes, text = 20, 64, 1 << 20
	const message, schema, list, field = 64, 80, 96, 100 + 4*columns // where these lie
	const noteList, note, end = field + 16, field + 20 + 4*notes, field + 32 + 4*notes
	for _, named := range []bool{true, false} {
		out := make([]byte, end+4+text)
		u16 := func(at int, all ...uint16) {
			for i, n := range all {
				binary.LittleEndian.PutUint16(out[at+2*i:], n)
			}
		}
		refer := func(at, to int) { binary.LittleEndian.PutUint32(out[at:], uint32(to-at)) }
		table := func(at, vtable int) { binary.LittleEndian.PutUint32(out[at:], uint32(at-vtable)) }
		u16(4, 10, 16, 4, 6, 8) // vtables: of the message, the schema, a field and a note
		u16(14, 8, 8, 0, 4)
		u16(22, 18, 16, 4, 0, 0, 0, 0, 0, 8)
		u16(40, 8, 12, 4, 8)
		table(message, 4)
		table(schema, 14)
		table(field, 22)
		table(note, 40)
		refer(0, message)
		u16(message+4, 4, arrowSchemaMessage)
		refer(message+8, schema)
		refer(schema+4, list)
		binary.LittleEndian.PutUint32(out[list:], columns)
		for i := range columns {
			refer(list+4+4*i, field)
		}
		binary.LittleEndian.PutUint32(out[end:], text)
		if named {
			refer(field+4, end)
			u16(22+4+2*6, 0)
		} else {
			u16(22+4, 0)
		}
		refer(field+8, noteList)
		binary.LittleEndian.PutUint32(out[noteList:], notes)
		for i := range notes {
			refer(noteList+4+4*i, note)
		}
		refer(note+4, end)
		refer(note+8, end)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := parseArrowSchema(out)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; (err != nil) != named || !named && len(s.columns) != columns || used > 4*text {
			t.Errorf("a schema of %d bytes took %d: %v", len(out), used, err)
		}
	}
}

func TestArrowTruncation(t *testing.T) {
	f := golden(t, "arrow")
	sweep(t, f, "data-00001-of-00002.arrow")
	sweep(t, f, "state.json")
	for _, name := range []string{"behind", "file-i32", "dictionary"} {
		sweep(t, files{"x.arrow": arrowFixture(t, name)}, "x.arrow")
	}
}

// arrowOf writes documents as one record batch, into the metadata of a real one.
func arrowOf(t testing.TB, docs [][]int64) []byte {
	t.Helper()
	stream := bytes.Clone(golden(t, "arrow")["data-00001-of-00002.arrow"])
	p := placesOf(t, stream)
	var offsets, values []byte
	for _, doc := range docs {
		offsets = binary.LittleEndian.AppendUint32(offsets, uint32(len(values)/4))
		for _, tok := range doc {
			values = binary.LittleEndian.AppendUint32(values, uint32(tok))
		}
	}
	offsets = binary.LittleEndian.AppendUint32(offsets, uint32(len(values)/4))
	put := func(at int64, numbers ...int) {
		for i, n := range numbers {
			binary.LittleEndian.PutUint64(stream[at+int64(8*i):], uint64(n))
		}
	}
	put(p.rows, len(docs))
	put(p.bodyLength, len(offsets)+len(values))
	put(p.node, len(docs), 0, len(values)/4, 0)
	put(p.offsetsBuffer, 0, len(offsets))
	put(p.dataBuffer, len(offsets), len(values))
	out := append(stream[:p.offsets:p.offsets], offsets...) // the offsets are the first buffer that is not empty
	return append(append(out, values...), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0)
}

// FuzzArrow writes the documents that it reads again, as one batch: they must be the same.
func FuzzArrow(f *testing.F) {
	for _, name := range []string{"stream-u16", "large-i64", "fixed-i32", "file-i32", "sliced-i32", "behind", "nulls", "compressed"} {
		f.Add(arrowFixture(f, name))
	}
	f.Add(golden(f, "arrow")["data-00001-of-00002.arrow"])
	f.Add(arraysFixture(f, "arrays.arrow"))
	f.Add(arrowOf(f, [][]int64{{1}, {}, {2, 3}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		v := exercise(t, files{"x.arrow": data})
		if len(v.Sets) != 1 || v.Sets[0].Format != "arrow" || v.Sets[0].DType != I32 || v.Sets[0].Bad() != nil || v.Sets[0].Tokens() > 1<<16 || v.Sets[0].Documents() > 1<<16 {
			return
		}
		docs, ok := documentsOf(t, v, 4)
		if !ok {
			return
		}
		again, ok := documentsOf(t, index(t, files{"y.arrow": arrowOf(t, docs)}), 4)
		if !ok || !slices.EqualFunc(docs, again, slices.Equal[[]int64]) {
			t.Errorf("%v became %v", docs, again)
		}
	})
}
