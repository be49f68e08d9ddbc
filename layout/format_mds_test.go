package layout

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// mdsFileOf writes a shard as MDSWriter does. Samples are encoded already.
func mdsFileOf(columns string, samples ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(samples)))
	at := uint32(4*(len(samples)+2) + len(columns))
	b = binary.LittleEndian.AppendUint32(b, at)
	for _, s := range samples {
		at += uint32(len(s))
		b = binary.LittleEndian.AppendUint32(b, at)
	}
	return append(append(b, columns...), bytes.Join(samples, nil)...)
}

// mdsShardOf describes a shard of one column of tokens; replace adds members or replaces them.
func mdsShardOf(samples int, raw []byte, encoding string, size any, replace ...map[string]any) map[string]any {
	out := map[string]any{
		"format": "mds", "version": 2, "compression": nil, "samples": samples, "zip_data": nil, "hashes": []string{}, "size_limit": 1 << 26,
		"raw_data":     map[string]any{"basename": "shard.00000.mds", "bytes": len(raw), "hashes": map[string]any{}},
		"column_names": []string{"tokens"}, "column_encodings": []string{encoding}, "column_sizes": []any{size},
	}
	for _, m := range replace {
		maps.Copy(out, m)
	}
	return out
}

func mdsIndexOf(shards ...map[string]any) []byte {
	if shards == nil {
		shards = []map[string]any{}
	}
	out, err := json.Marshal(map[string]any{"version": 2, "shards": shards})
	if err != nil {
		panic(err)
	}
	return out
}

const mdsInt32 = `{"column_encodings": ["ndarray:int32"], "column_names": ["tokens"], "column_sizes": [null]}`

// mdsArray encodes an array of one dimension below 256 as a column of variable size.
func mdsArray(values ...int32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(2+4*len(values)))
	b = append(b, 1<<2, byte(len(values)))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func TestMDSGolden(t *testing.T) {
	for _, dataset := range []string{"mds", "mds-shape", "mds-bytes", "mds-multi", "mds-split"} {
		v := checkGolden(t, dataset)
		checkGoldenViews(t, v, dataset)
		for _, s := range v.Sets {
			if s.Documents() != s.Samples() {
				t.Errorf("%s: %d documents, %d samples", dataset, s.Documents(), s.Samples())
			}
		}
	}
}

func TestMDSRegularSamplesTakeOneRun(t *testing.T) {
	for dataset, runs := range map[string]int{"mds": 1, "mds-shape": 1} {
		_, s := oneSet(t, golden(t, dataset))
		for _, h := range s.Shards {
			if h.Data.Runs() > runs {
				t.Errorf("%s: %s takes %d runs for %d samples", dataset, h.Name, h.Data.Runs(), h.Samples)
			}
		}
	}
}

func TestMDSCompressedIsPresentedAsStored(t *testing.T) {
	v := checkGolden(t, "mds-zstd")
	if s := v.Sets[0]; !strings.Contains(s.NoTokens, "compressed") {
		t.Errorf("NoTokens %q", s.NoTokens)
	}
	if _, ok := readView(t, v, "tokens.bin"); ok {
		t.Error("compressed bytes are shown as tokens")
	}
}

func TestMDSRawIsUsedWhereBothAreThere(t *testing.T) {
	raw := mdsFileOf(mdsInt32, mdsArray(1, 2), mdsArray(3))
	entry := mdsShardOf(2, raw, "ndarray:int32", nil, map[string]any{
		"compression": "zstd:7", "zip_data": map[string]any{"basename": "shard.00000.mds.zstd", "bytes": 4},
	})
	f := files{"index.json": mdsIndexOf(entry), "shard.00000.mds": raw, "shard.00000.mds.zstd": {0x28, 0xb5, 0x2f, 0xfd}}
	v, s := oneSet(t, f)
	if got, ok := readView(t, v, "tokens.bin"); !ok || !bytes.Equal(got, []byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}) {
		t.Errorf("tokens.bin = %x, NoTokens %q", got, s.NoTokens)
	}
}

func TestMDSMergedIndexFormsOneSet(t *testing.T) {
	raw := mdsFileOf(mdsInt32, mdsArray(7))
	at := func(name string) map[string]any {
		return mdsShardOf(1, raw, "ndarray:int32", nil, map[string]any{"raw_data": map[string]any{"basename": name, "bytes": len(raw)}})
	}
	f := files{
		"a/index.json": mdsIndexOf(at("shard.00000.mds")), "a/shard.00000.mds": raw,
		"z/index.json": mdsIndexOf(at("shard.00000.mds")), "z/shard.00000.mds": raw,
	}
	if v := index(t, f); len(v.Sets) != 2 {
		t.Errorf("%d sets without a merged index, want 2", len(v.Sets))
	}
	f["index.json"] = mdsIndexOf(at("a/shard.00000.mds"), at("z/shard.00000.mds"))
	if _, s := oneSet(t, f); s.Dir != "" || len(s.Shards) != 2 || s.Tokens() != 2 {
		t.Errorf("set %q of %d shards, %d tokens", s.Dir, len(s.Shards), s.Tokens())
	}
}

func TestMDSOtherShardsAreServedAsTheyAre(t *testing.T) {
	entry := map[string]any{
		"format": "json", "version": 2, "samples": 1, "compression": nil, "columns": map[string]string{"x": "int"}, "newline": "\n",
		"raw_data": map[string]any{"basename": "shard.00000.json", "bytes": 9}, "zip_data": nil,
		"raw_meta": map[string]any{"basename": "shard.00000.json.meta", "bytes": 12}, "zip_meta": nil,
	}
	_, s := oneSet(t, files{"index.json": mdsIndexOf(entry), "shard.00000.json": []byte(`{"x": 1}` + "\n"), "shard.00000.json.meta": make([]byte, 12)})
	if s.Samples() != 1 || !strings.Contains(s.NoTokens, `"json"`) || len(s.Shards[0].Objects) != 3 {
		t.Errorf("%d samples, NoTokens %q", s.Samples(), s.NoTokens)
	}
}

func TestMDSColumnOfTokens(t *testing.T) {
	for _, c := range []struct {
		columns  []string // name, encoding, size
		want     string
		noTokens string
	}{
		{[]string{"tokens", "ndarray:uint16", ""}, "tokens", ""},
		{[]string{"a", "ndarray:uint16", "", "input_ids", "ndarray:int64", ""}, "input_ids", ""},
		{[]string{"a", "ndarray:uint16", "", "b", "str", ""}, "a", ""},
		{[]string{"a", "ndarray:uint16", "", "b", "ndarray:uint16", ""}, "", "2 columns"},
		{[]string{"a", "str", "", "b", "int", "8"}, "", "no column"},
		{[]string{"tokens", "ndarray:float32", ""}, "", "no column"},
		{[]string{"tokens", "ndarray:uint16:2,3", "12"}, "tokens", ""},
		{[]string{"tokens", "ndarray:uint16:2,3", "13"}, "", "no column"},
		{[]string{"tokens", "ndarray:uint16:9223372036854775807", "2"}, "", "no column"},
		{[]string{"tokens", "ndarray:uint16:-1", "2"}, "", "no column"},
		{[]string{"tokens", "ndarray:uint16", "7"}, "", "no column"},
		{[]string{"payload", "bytes", ""}, "", "no column"},
		{[]string{"tokens", "bytes", ""}, "tokens", ""},
	} {
		e := &mdsEntry{}
		for i := 0; i < len(c.columns); i += 3 {
			e.ColumnNames, e.ColumnEncodings = append(e.ColumnNames, c.columns[i]), append(e.ColumnEncodings, c.columns[i+1])
			var size *int64
			if n, err := strconv.ParseInt(c.columns[i+2], 10, 64); err == nil {
				size = &n
			}
			e.ColumnSizes = append(e.ColumnSizes, size)
		}
		got, err := newMDSColumns(e)
		if err != nil {
			t.Fatal(err)
		}
		name := ""
		if got.tokens.column >= 0 {
			name = got.names[got.tokens.column]
		}
		if name != c.want || !strings.Contains(got.tokens.none, c.noTokens) {
			t.Errorf("%q: column %q, %s", c.columns, name, got.tokens.none)
		}
	}
}

func TestMDSTypeInTheSample(t *testing.T) {
	columns := `{"column_encodings": ["ndarray"], "column_names": ["tokens"], "column_sizes": [null]}`
	sample := []byte{7, 0, 0, 0, 16, 1 << 2, 2, 1, 0, 2, 0}
	other := []byte{7, 0, 0, 0, 8, 1 << 2, 4, 1, 0, 2, 0}
	raw := mdsFileOf(columns, sample, sample)
	v, s := oneSet(t, files{"index.json": mdsIndexOf(mdsShardOf(2, raw, "ndarray", nil)), "shard.00000.mds": raw})
	if got, _ := readView(t, v, "tokens.bin"); s.DType != U16 || !bytes.Equal(got, []byte{1, 0, 2, 0, 1, 0, 2, 0}) {
		t.Errorf("dtype %s, tokens.bin %x", s.DType, got)
	}
	raw = mdsFileOf(columns, sample, append(other, 0))
	raw[len(raw)-12]++ // the size of the second sample, one byte longer
	raw[len(raw)-6]++  // its count
	v, s = oneSet(t, files{"index.json": mdsIndexOf(mdsShardOf(2, raw, "ndarray", nil)), "shard.00000.mds": raw})
	if _, ok := readView(t, v, "tokens.bin"); ok || !strings.Contains(s.Shards[0].NoTokens, "holds u8") {
		t.Errorf("samples of two types are one stream: %q", s.Shards[0].NoTokens)
	}
}

func TestMDSBytesOfUnknownType(t *testing.T) {
	columns := `{"column_encodings": ["bytes"], "column_names": ["tokens"], "column_sizes": [null]}`
	sample := []byte{8, 0, 0, 0, 0x50, 0xc4, 1, 0, 2, 0, 3, 0} // u16 and no int64 that could be a token
	raw := mdsFileOf(columns, sample)
	f := files{"index.json": mdsIndexOf(mdsShardOf(1, raw, "bytes", nil)), "shard.00000.mds": raw}
	if _, s := oneSet(t, f); !strings.Contains(s.NoTokens, "not written anywhere") {
		t.Errorf("NoTokens %q", s.NoTokens)
	}
	v, err := Index(t.Context(), f.objects(), Options{DType: U16})
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := readView(t, v, "tokens.bin"); !ok || !bytes.Equal(got, sample[4:]) {
		t.Errorf("tokens.bin = %x for a type that was named", got)
	}
}

func TestMDSHostile(t *testing.T) {
	good := mdsFileOf(mdsInt32, mdsArray(1, 2), mdsArray(3, 4), mdsArray(5))
	table, samples := 4, len(good)-len(mdsArray(1, 2))*2-len(mdsArray(5))
	patch := func(at int, v uint32) []byte {
		out := bytes.Clone(good)
		binary.LittleEndian.PutUint32(out[at:], v)
		return out
	}
	entry := func(key string, v any) []byte {
		return mdsIndexOf(mdsShardOf(3, good, "ndarray:int32", nil, map[string]any{key: v}))
	}
	raw := func(name string, size any) []byte {
		return entry("raw_data", map[string]any{"basename": name, "bytes": size})
	}
	plain := entry("samples", 3)
	empty := mdsFileOf(mdsInt32, []byte{0, 0, 0, 0}, mdsArray(1))
	twice := mdsShardOf(3, good, "ndarray:int32", nil)
	for _, c := range []struct {
		name         string
		index, shard []byte
		problem      string
	}{
		{"size", raw("shard.00000.mds", len(good)+1), good, "the index says"},
		{"negative size", raw("shard.00000.mds", -1), good, "the index says 0"},
		{"size of 2^63", raw("shard.00000.mds", json.RawMessage("9223372036854775808")), good, "does not fit"},
		{"outside", raw("../../etc/passwd", 3), good, "leaves the dataset"},
		{"absolute", raw("/etc/passwd", 3), good, "leaves the dataset"},
		{"backslash", raw(`..\x`, 3), good, "leaves the dataset"},
		{"itself", raw("index.json", 3), good, "itself"},
		{"missing", raw("shard.00009.mds", 3), good, "not there"},
		{"twice", mdsIndexOf(twice, twice), good, "twice"},
		{"no data", entry("raw_data", nil), good, "names no raw_data"},
		{"samples", entry("samples", 4), good, "the file counts 3 samples, the index 4"},
		{"negative samples", entry("samples", -1), good, "cannot count"},
		{"huge samples", entry("samples", 1<<40), good, "cannot count"},
		{"samples of text", entry("samples", "many"), good, "does not fit"},
		{"version", entry("version", 1), good, "version 1"},
		{"columns", entry("column_sizes", []any{}), good, "column_sizes"},
		{"columns of 2^62", entry("column_sizes", []any{1 << 62}), good, "has 4611686018427387904 bytes"},
		{"table past the file", entry("samples", 1<<31), patch(0, 1<<31), "ends at"},
		{"offset past the end", plain, patch(table+4, 0xffffffff), "lies outside"},
		{"offset backward", plain, patch(table+4, 8), "lies outside"},
		{"offset in the table", plain, patch(table, 8), "lies outside"},
		{"last offset", plain, patch(table+12, uint32(len(good)-1)), "the last sample ends"},
		{"overlap", plain, patch(table+8, binary.LittleEndian.Uint32(good[table+4:])), "sizes of its columns"},
		{"size of a column", plain, patch(samples, 99), "its columns take"},
		{"count of an array", plain, patch(samples+4, 0x00000904), "counts 9 elements"},
		{"width of an array", plain, patch(samples+4, 0x07), "elements in 8 bytes"},
		{"no array", mdsIndexOf(mdsShardOf(2, empty, "ndarray:int32", nil)), empty, "cut short"},
	} {
		v := exercise(t, files{"shard.00000.mds": c.shard, "index.json": c.index})
		if p := fmt.Sprint(v.Problems()); !strings.Contains(p, c.problem) {
			t.Errorf("%s: problems %s, want %q", c.name, p, c.problem)
		}
		for _, view := range v.Views {
			if view.File == nil {
				if list, err := view.Entries(t.Context()); err == nil {
					t.Errorf("%s: %s exists, %d files", c.name, view.Path, len(list))
				}
			} else if f, err := view.File(t.Context()); err == nil {
				t.Errorf("%s: %s exists, %d bytes", c.name, view.Path, f.Size())
			}
		}
	}
}

// An array of more dimensions is sound, but no stream of tokens can be promised of it.
func TestMDSArraysOfRows(t *testing.T) {
	raw := mdsFileOf(mdsInt32, []byte{11, 0, 0, 0, 2 << 2, 1, 2, 1, 0, 0, 0, 2, 0, 0, 0})
	v, s := oneSet(t, files{"index.json": mdsIndexOf(mdsShardOf(1, raw, "ndarray:int32", nil)), "shard.00000.mds": raw})
	if _, ok := readView(t, v, "tokens.npy"); ok || !strings.Contains(s.Shards[0].NoTokens, "2 dimensions") {
		t.Errorf("NoTokens %q", s.Shards[0].NoTokens)
	}
}

func TestMDSOneBadShardLeavesTheOthers(t *testing.T) {
	f := golden(t, "mds")
	f["shard.00001.mds"] = f["shard.00001.mds"][:100]
	delete(f, "shard.00002.mds")
	v := index(t, f)
	s := v.Sets[0]
	if s.Shards[0].Bad != "" || s.Shards[1].Bad == "" || s.Shards[2].Bad == "" || len(v.Problems()) != 2 {
		t.Errorf("problems %v", v.Problems())
	}
	if _, ok := readView(t, v, "tokens.bin"); ok {
		t.Error("a stream that lacks shards is shown")
	}
}

func TestMDSTooManyPiecesAreAbsent(t *testing.T) {
	f := golden(t, "mds-bytes")
	v := index(t, f)
	s := v.Sets[0]
	for _, h := range s.Shards {
		m := &mdsShard{columns: &mdsColumns{names: []string{"tokens"}, encodings: []string{"bytes"}, sizes: []int64{-1}}, dtype: I64, samples: h.Samples}
		m.columns.tokens = m.columns.find()
		m.pieces = new(atomic.Int64)
		m.pieces.Store(5)
		h.resolve = m.resolve
	}
	if _, ok := readView(t, v, "tokens.bin"); ok || !strings.Contains(s.Shards[0].NoTokens, "pieces") {
		t.Errorf("NoTokens %q", s.Shards[0].NoTokens)
	}
	if len(v.Problems()) > 0 {
		t.Errorf("a sound dataset has problems: %v", v.Problems())
	}
}

func TestMDSTruncation(t *testing.T) {
	for _, dataset := range []string{"mds", "mds-multi"} {
		f := golden(t, dataset)
		sweep(t, f, "shard.00001.mds")
	}
	raw := mdsFileOf(mdsInt32, mdsArray(1, 2), mdsArray(3))
	f := files{"index.json": mdsIndexOf(mdsShardOf(2, raw, "ndarray:int32", nil)), "shard.00000.mds": raw}
	sweep(t, f, "index.json")
	for n := range raw { // an index that agrees with the shorter file
		exercise(t, files{"index.json": mdsIndexOf(mdsShardOf(2, raw[:n], "ndarray:int32", nil)), "shard.00000.mds": raw[:n]})
	}
}

// FuzzMDS writes what it read again and compares: a shard that is believed is its tokens, each sample with the header
// that the writer gives it.
func FuzzMDS(f *testing.F) {
	f.Add(mdsFileOf(mdsInt32, mdsArray(1, 2), mdsArray(3, 4), mdsArray(5)))
	f.Add(mdsFileOf(mdsInt32))
	f.Add(mdsFileOf(mdsInt32, mdsArray()))
	f.Add(mdsFileOf(mdsInt32+"   ", mdsArray(1), mdsArray(-1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 4 || len(data) > 1000 { // arrays of the test's writer have fewer than 256 elements
			return
		}
		n := int(binary.LittleEndian.Uint32(data))
		v := exercise(t, files{"shard.00000.mds": data, "index.json": mdsIndexOf(mdsShardOf(n, data, "ndarray:int32", nil))})
		s := v.Sets[0]
		tokens, ok := readView(t, v, "tokens.bin")
		if !ok {
			return
		}
		h := s.Shards[0]
		starts := make([]int64, h.Documents+1)
		if err := h.Index.Starts(t.Context(), starts, 0); err != nil {
			t.Fatal(err)
		}
		var samples [][]byte
		for i := range starts[1:] {
			var values []int32
			for p := tokens[4*starts[i] : 4*starts[i+1]]; len(p) > 0; p = p[4:] {
				values = append(values, int32(binary.LittleEndian.Uint32(p)))
			}
			samples = append(samples, mdsArray(values...))
		}
		first := binary.LittleEndian.Uint32(data[4:])
		again := mdsFileOf(string(data[4*(n+2):first]), samples...)
		at := int(first)
		for i, sample := range samples { // a sample of the size of the one before it is taken to begin like it, unread
			if i > 0 && len(sample) == len(samples[i-1]) && at+6 <= len(data) {
				copy(again[at:at+6], data[at:])
			}
			at += len(sample)
		}
		if !bytes.Equal(again, data) {
			t.Errorf("read and written again: %x, was %x", again, data)
		}
	})
}

// FuzzMDSIndex feeds any index to a sound shard: nothing may panic, and what is believed lies in the shard.
func FuzzMDSIndex(f *testing.F) {
	raw := mdsFileOf(mdsInt32, mdsArray(1, 2), mdsArray(3))
	f.Add(mdsIndexOf(mdsShardOf(2, raw, "ndarray:int32", nil)))
	f.Add(mdsIndexOf(mdsShardOf(2, raw, "bytes", nil), mdsShardOf(2, raw, "ndarray:int32:2", 8)))
	f.Add(mdsIndexOf())
	f.Fuzz(func(t *testing.T, index []byte) {
		v := exercise(t, files{"shard.00000.mds": raw, "index.json": index})
		for _, s := range v.Sets {
			if tokens := s.Tokens() * int64(s.DType.Size()); s.Bad() == nil && tokens > int64(len(raw)) {
				t.Errorf("%d bytes of tokens in a shard of %d", tokens, len(raw))
			}
		}
	})
}

// TestIndexOfManyEntries is a small index that would take hundreds of times its size in memory, and a large one of too many shards.
func TestIndexOfManyEntries(t *testing.T) {
	const count, most = 300_000, 100 << 20
	list := strings.TrimSuffix(strings.Repeat("{},", count), ",")
	for format, text := range map[string]string{
		"mds": `{"version":2,"shards":[` + list + `]}`, "litdata": `{"chunks":[` + list + `],"config":{}}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v := index(t, files{"index.json": []byte(text)})
		runtime.ReadMemStats(&after)
		wantProblems(t, v, "index.json: the index lists more than")
		if took := after.TotalAlloc - before.TotalAlloc; len(v.Sets) > 0 || took > most {
			t.Errorf("%s: %d sets, %d bytes of memory", format, len(v.Sets), took)
		}
	}
	entries, number := 0, 0
	text := "[" + strings.Repeat("1,", maxIndexed) + "1]"
	err := newObjectParser(&Object{Size: maxJSONIndex}, 0, strings.NewReader(text)).list(func() any { entries++; return &number }, nil)
	if entries != maxIndexed || err == nil {
		t.Errorf("%d of %d entries were read: %v", entries, maxIndexed+1, err)
	}
}
