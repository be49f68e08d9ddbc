package layout

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// megatronFields is an index as its fields, to be written with whatever is wrong in them.
type megatronFields struct {
	version  uint64
	code     byte
	lengths  []int32
	pointers []int64
	docs     []int64
	modes    []int8
}

func (f megatronFields) bytes() []byte {
	b := []byte(megatronMagic)
	b = binary.LittleEndian.AppendUint64(b, f.version)
	b = append(b, f.code)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(f.lengths)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(f.docs)))
	for _, part := range []any{f.lengths, f.pointers, f.docs, f.modes} {
		var err error
		if b, err = binary.Append(b, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	return b
}

// megatronSmall is the pair of facts: u16, the documents [1,2,3] and [10,11 | 12,13].
func megatronSmall() (idx megatronFields, bin []byte) {
	return megatronFields{1, 8, []int32{3, 2, 2}, []int64{0, 6, 10}, []int64{0, 1, 3}, nil},
		[]byte{1, 0, 2, 0, 3, 0, 10, 0, 11, 0, 12, 0, 13, 0}
}

// megatronLong is a pair of u16 with many sequences, one document each two of them.
func megatronLong(sequences int) (idx megatronFields, bin []byte) {
	idx = megatronFields{version: 1, code: 8}
	for i := range sequences {
		if i%2 == 0 {
			idx.docs = append(idx.docs, int64(i))
		}
		idx.lengths = append(idx.lengths, int32(i%3))
		idx.pointers = append(idx.pointers, int64(len(bin)))
		for k := range i % 3 {
			bin = binary.LittleEndian.AppendUint16(bin, uint16(i+k))
		}
	}
	idx.docs = append(idx.docs, int64(sequences))
	return idx, bin
}

func int64s(b []byte) []int64 {
	out := make([]int64, len(b)/8)
	for i := range out {
		out[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return out
}

// checkTokenSets indexes a golden dataset and compares it with the independent reading, which knows no format of
// headerless tokens and counts pieces as shards: format and number of shards are given.
func checkTokenSets(t *testing.T, dataset, format string, shards int) *Volume {
	t.Helper()
	e, v := expected(t, dataset), index(t, golden(t, dataset))
	var tokens, want, documents int64
	n := 0
	for _, s := range v.Sets {
		if err := s.Check(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if s.Format != format || numpyName(s.DType) != e.DType {
			t.Errorf("%s: %s of %s, want %s of %s", dataset, s.Format, s.DType, format, e.DType)
		}
		n, tokens, documents = n+len(s.Shards), tokens+s.Tokens(), documents+s.Documents()
	}
	for _, split := range e.Splits {
		want += split.Tokens
	}
	if p := v.Problems(); n != shards || tokens != want || len(p) > 0 {
		t.Errorf("%s: %d shards, want %d; %d tokens, want %d; problems %v", dataset, n, shards, tokens, want, p)
	}
	if e.Documents != nil && documents != *e.Documents {
		t.Errorf("%s: %d documents, want %d", dataset, documents, *e.Documents)
	}
	checkGoldenViews(t, v, dataset)
	return v
}

func TestMegatronGolden(t *testing.T) {
	for dataset, shards := range map[string]int{
		"megatron": 1, "megatron-merge": 2, "megatron-multimodal": 1, "megatron-float-core": 1, "megatron-float-neox": 1, "megatron-pieces": 1,
	} {
		v := checkTokenSets(t, dataset, "megatron", shards)
		if shards > 1 {
			continue
		}
		f := golden(t, dataset)
		for name, data := range f {
			if strings.HasSuffix(name, ".idx") {
				if got, ok := readView(t, v, "megatron.idx"); !ok || !bytes.Equal(got, data) {
					t.Errorf("%s: megatron.idx is not the source's", dataset)
				}
				sweep(t, f, name)
			}
		}
	}
}

func TestMegatronOnePrefix(t *testing.T) {
	idx, bin := megatronSmall()
	v, s := oneSet(t, files{"x.idx": idx.bytes(), "x.bin": bin})
	if s.Format != "megatron" || s.DType != U16 || s.Tokens() != 7 || s.Documents() != 2 {
		t.Errorf("%s, %s, %d tokens, %d documents", s.Format, s.DType, s.Tokens(), s.Documents())
	}
	if got, _ := readView(t, v, "megatron.idx"); !bytes.Equal(got, idx.bytes()) {
		t.Errorf("megatron.idx = %x", got)
	}
	if got, _ := readView(t, v, "megatron.bin"); !bytes.Equal(got, bin) {
		t.Errorf("megatron.bin = %x", got)
	}
	if got, _ := readView(t, v, "documents.npy"); !slices.Equal(int64s(got[128:]), []int64{0, 3, 7}) {
		t.Errorf("documents.npy = %x", got)
	}
}

func TestMegatronPrefixesMerge(t *testing.T) {
	a, aBin := megatronSmall()
	b, bBin := megatronSmall()
	a.modes, b.modes = []int8{1, 2, 3}, []int8{4, 5, 6}
	v, _ := oneSet(t, files{"a.idx": a.bytes(), "a.bin": aBin, "b.idx": b.bytes(), "b.bin": bBin})
	want := megatronFields{1, 8, []int32{3, 2, 2, 3, 2, 2}, []int64{0, 6, 10, 14, 20, 24}, []int64{0, 1, 3, 4, 6}, []int8{1, 2, 3, 4, 5, 6}}
	if got, _ := readView(t, v, "megatron.idx"); !bytes.Equal(got, want.bytes()) {
		t.Errorf("megatron.idx = %x, want %x", got, want.bytes())
	}
	if got, _ := readView(t, v, "megatron.bin"); !bytes.Equal(got, append(aBin, bBin...)) {
		t.Errorf("megatron.bin = %x", got)
	}
	if got, _ := readView(t, v, "documents.npy"); !slices.Equal(int64s(got[128:]), []int64{0, 3, 7, 10, 14}) {
		t.Errorf("documents.npy = %x", got)
	}
}

func TestMegatronSetsOfADirectory(t *testing.T) {
	idx, bin := megatronSmall()
	wide := idx
	wide.code, wide.pointers = 4, []int64{0, 12, 20}
	v := index(t, files{
		"x_train.idx": idx.bytes(), "x_train.bin": bin,
		"x_valid.idx": idx.bytes(), "x_valid.bin": bin,
		"y/a.idx": idx.bytes(), "y/a.bin": bin,
		"y/b.idx": wide.bytes(), "y/b.bin": make([]byte, 28),
	})
	var got []string
	for _, s := range v.Sets {
		got = append(got, fmt.Sprintf("%s %s %d", s.ViewDir(), s.DType, s.Tokens()))
	}
	want := []string{"train u16 7", "valid u16 7", "y u16 7", "y/megatron i32 7"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMegatronFloatCodes(t *testing.T) {
	for _, c := range []struct {
		code byte
		item int64
		want DType
	}{{6, 8, F64}, {6, 4, F32}, {7, 4, F32}, {7, 8, F64}, {6, 2, DTypeUnknown}, {7, 0, DTypeUnknown}} {
		idx := megatronFields{1, c.code, []int32{3, 2, 0}, []int64{0, 3 * c.item, 5 * c.item}, []int64{0, 3}, nil}
		f := files{"x.idx": idx.bytes(), "x.bin": make([]byte, 5*c.item)}
		v := index(t, f)
		if got := v.Sets[0].DType; got != c.want {
			t.Errorf("code %d with %d bytes an element: %s, want %s", c.code, c.item, got, c.want)
		}
		if c.want != DTypeUnknown {
			oneSet(t, f)
			continue
		}
		p := v.Problems()
		if len(p) != 1 || p[0].Offset != 17 || !strings.Contains(p[0].Detail, "f32") || !strings.Contains(p[0].Detail, "f64") {
			t.Errorf("problems %v: both readings should be named", p)
		}
	}
}

// TestMegatronBadIndexes damages one of two prefixes. The bad one is named and nothing panics; the good one keeps its
// tokens, but no stream is shown without the bad one.
func TestMegatronBadIndexes(t *testing.T) {
	small, bin := megatronSmall()
	header := func(at int, value uint64) []byte {
		b := small.bytes()
		binary.LittleEndian.PutUint64(b[at:], value)
		return b
	}
	fields := func(change func(*megatronFields)) []byte {
		f := small
		f.lengths, f.pointers, f.docs = slices.Clone(f.lengths), slices.Clone(f.pointers), slices.Clone(f.docs)
		change(&f)
		return f.bytes()
	}
	for name, c := range map[string]struct {
		idx, bin []byte
		object   string
		offset   int64
	}{
		"Fast-LLM 2":             {header(9, 2), bin, "x.idx", 9},
		"Fast-LLM 3":             {header(9, 3), bin, "x.idx", 9},
		"version 4":              {header(9, 4), bin, "x.idx", 9},
		"dtype 9":                {fields(func(f *megatronFields) { f.code = 9 }), bin, "x.idx", 17},
		"2^63 sequences":         {header(18, 1<<63), bin, "x.idx", 18},
		"too many sequences":     {header(18, 4), bin, "x.idx", 18},
		"2^64-1 documents":       {header(26, math.MaxUint64), bin, "x.idx", 18},
		"no documents":           {fields(func(f *megatronFields) { f.docs = nil }), bin, "x.idx", 26},
		"a byte behind":          {append(small.bytes(), 0), bin, "x.idx", 18},
		"no data":                {small.bytes(), nil, "x.idx", 0},
		"data cut":               {small.bytes(), bin[:10], "x.bin", 10},
		"data cut in a token":    {small.bytes(), bin[:13], "x.bin", 13},
		"data behind":            {small.bytes(), append(slices.Clone(bin), 1, 0), "x.bin", 16},
		"negative length":        {fields(func(f *megatronFields) { f.lengths[0] = -1 }), bin, "x.idx", 34},
		"negative last length":   {fields(func(f *megatronFields) { f.lengths[2] = -1 }), bin, "x.idx", 42},
		"other lengths":          {fields(func(f *megatronFields) { f.lengths[0], f.lengths[1] = 2, 3 }), bin, "x.idx", 54},
		"backward pointer":       {fields(func(f *megatronFields) { f.pointers[1] = 0 }), bin, "x.idx", 54},
		"pointer past the end":   {fields(func(f *megatronFields) { f.pointers[1] = 1 << 62 }), bin, "x.idx", 54},
		"document past the end":  {fields(func(f *megatronFields) { f.docs[1] = 4 }), bin, "x.idx", 78},
		"documents not in order": {fields(func(f *megatronFields) { f.docs = []int64{0, 2, 1, 3} }), bin, "x.idx", 86},
	} {
		f := files{"x.idx": c.idx, "y.idx": small.bytes(), "y.bin": bin}
		if c.bin != nil {
			f["x.bin"] = c.bin
		}
		v := exercise(t, f)
		if p := v.Problems(); len(p) != 1 || p[0].Object != c.object || p[0].Offset != c.offset {
			t.Errorf("%s: problems %v", name, p)
		}
		if len(v.Sets) != 1 || len(v.Sets[0].Shards) != 2 || v.Sets[0].Shards[0].Bad == "" || v.Sets[0].Shards[1].Bad != "" {
			t.Errorf("%s: the sets are not one with x bad and y good", name)
		}
		if _, ok := readView(t, v, "tokens.bin"); ok {
			t.Errorf("%s: a stream that lacks a shard is shown", name)
		}
	}
}

// TestMegatronPointersThatOverflow is Megatron-LM issue 1672: the lengths are right, the pointers are not. The tokens
// stay, the source index is shown as it is, and what would need the pointers is absent.
func TestMegatronPointersThatOverflow(t *testing.T) {
	idx, bin := megatronSmall()
	idx.pointers[2] = -10
	for _, two := range []bool{false, true} {
		f := files{"x.idx": idx.bytes(), "x.bin": bin}
		if good, bin := megatronSmall(); two {
			f["y.idx"], f["y.bin"] = good.bytes(), bin
		}
		v := exercise(t, f)
		if p := v.Problems(); len(p) != 1 || p[0].Offset != 62 || !strings.Contains(p[0].Detail, "1672") {
			t.Errorf("problems %v", p)
		}
		if _, ok := readView(t, v, "tokens.npy"); !ok {
			t.Error("tokens.npy is absent, though no token is in doubt")
		}
		if _, ok := readView(t, v, "documents.npy"); ok {
			t.Error("documents.npy exists without pointers")
		}
		got, ok := readView(t, v, "megatron.idx")
		if ok == two || (!two && !bytes.Equal(got, idx.bytes())) {
			t.Errorf("merged %v: megatron.idx = %x", two, got)
		}
	}
}

func TestMegatronDocumentsThatStopShort(t *testing.T) {
	idx, bin := megatronSmall()
	idx.docs[2] = 2
	v := exercise(t, files{"x.idx": idx.bytes(), "x.bin": bin})
	if p := v.Problems(); len(p) != 1 || p[0].Offset != 86 {
		t.Errorf("problems %v", p)
	}
	if _, ok := readView(t, v, "tokens.npy"); !ok {
		t.Error("tokens.npy is absent, though no token is in doubt")
	}
	if _, ok := readView(t, v, "documents.npy"); ok {
		t.Error("documents.npy exists without documents")
	}
}

func TestMegatronManySequences(t *testing.T) {
	idx, bin := megatronLong(200_000)
	half := len(idx.docs) / 2
	v, s := oneSet(t, files{"x.idx": idx.bytes(), "x.bin": bin})
	got := make([]int64, 3)
	if err := DocumentStarts(t.Context(), s.Shards[0].Index, got, int64(half)); err != nil {
		t.Fatal(err)
	}
	for i, start := range got {
		if want := idx.pointers[idx.docs[half+i]] / 2; start != want {
			t.Errorf("document %d begins at %d, want %d", half+i, start, want)
		}
	}
	docs, _ := readView(t, v, "documents.npy")
	if n := int64s(docs[128:]); n[len(n)-1] != s.Tokens() {
		t.Errorf("the documents end at %d of %d", n[len(n)-1], s.Tokens())
	}
	idx.docs[70_000]-- // in the second read: before the document before it once the one before is moved
	idx.docs[69_999] += 2
	v = exercise(t, files{"x.idx": idx.bytes(), "x.bin": bin})
	if v.Sets[0].Bad() == nil {
		t.Error("documents in disorder across windows are not found")
	}
}

func TestMegatronTruncation(t *testing.T) {
	idx, bin := megatronSmall()
	idx.modes = []int8{1, 2, 3}
	f := files{"x.idx": idx.bytes(), "x.bin": bin}
	sweep(t, f, "x.idx")
	sweep(t, f, "x.bin")
}

// FuzzMegatron writes again what was read: an index that is believed and whose pointers are in order gives the same
// lengths, pointers and documents when it is synthesized from what was read of it.
func FuzzMegatron(f *testing.F) {
	idx, bin := megatronSmall()
	f.Add(idx.bytes(), bin)
	idx.modes = []int8{1, 2, 3}
	f.Add(idx.bytes(), bin)
	idx.code, idx.pointers = 6, []int64{0, 24, 40}
	f.Add(idx.bytes(), make([]byte, 56))
	f.Add(megatronFields{version: 1, code: 4, docs: []int64{0}}.bytes(), []byte{})
	f.Fuzz(func(t *testing.T, idx, bin []byte) {
		v := exercise(t, files{"a.idx": idx, "a.bin": bin, "b-00000-of-00001.bin": bin, "b-00001-of-00001.bin": bin, "b.idx": idx})
		for _, s := range v.Sets {
			for _, h := range s.Shards {
				if s.Format != "megatron" || h.Bad != "" || h.NoDocuments != "" || h.Name != "a.bin" {
					continue
				}
				alone := &Set{DType: s.DType, Shards: []*Shard{{
					Name: "a.bin", Objects: h.Objects, Tokens: h.Tokens, Documents: h.Documents, Data: h.Data, Index: struct{ DocumentIndex }{h.Index},
				}}, resolving: make(chan struct{}, 1)}
				file, err := alone.megatronIdx(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				again := readFile(t, file)
				// The dtype code may be the other family's, and modes are hidden by the wrapping.
				if want := slices.Clone(idx[:len(again)]); !bytes.Equal(again[18:], want[18:]) {
					t.Errorf("read and written again:\n%x, was\n%x", again, want)
				}
			}
		}
	})
}
