package layout

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
)

func gzipped(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// sidecarOf writes a sidecar of the given document ends, as dolma does.
func sidecarOf(t testing.TB, ends ...int64) []byte {
	t.Helper()
	var text []byte
	start := int64(0)
	for i, end := range ends {
		text = fmt.Appendf(text, "%d,%d,id-%d,\"a, b\",%d\r\n", start, end, i, i)
		start = end
	}
	return gzipped(t, text)
}

func olmoSmall(t testing.TB) files {
	t.Helper()
	return files{
		"part-0-00000.npy": textTokens(1, 100, 100_000, 4), "part-0-00000.csv.gz": sidecarOf(t, 7, 7, 100),
		"part-1-00000.npy": textTokens(2, 50, 100_000, 4), "part-1-00000.csv.gz": sidecarOf(t, 50),
	}
}

func TestOLMoGolden(t *testing.T) {
	checkTokenSets(t, "olmo", "olmo", 2)
}

func TestOLMoDocuments(t *testing.T) {
	v, s := oneSet(t, olmoSmall(t))
	if s.Format != "olmo" || s.DType != U32 || s.Tokens() != 150 || s.Documents() != 4 {
		t.Errorf("%s, %s, %d tokens, %d documents", s.Format, s.DType, s.Tokens(), s.Documents())
	}
	if got, _ := readView(t, v, "documents.npy"); !slices.Equal(int64s(got[128:]), []int64{0, 7, 7, 100, 150}) {
		t.Errorf("documents.npy = %x", got)
	}
}

func TestOLMoTypeByWhereTheDocumentsEnd(t *testing.T) {
	for _, c := range []struct {
		data    []byte
		sidecar []byte
		want    DType
	}{
		{make([]byte, 40), sidecarOf(t, 20), U16},
		{make([]byte, 40), sidecarOf(t, 10), U32},
		{make([]byte, 40), gzipped(t, []byte("0,4\n4,10")), U32},
		{make([]byte, 2000), sidecarOf(t, slices.Collect(func(yield func(int64) bool) {
			for i := range int64(1000) {
				if !yield(i + 1) {
					return
				}
			}
		})...), U16}, // longer than the head, and the values do not tell: all of it is read
	} {
		_, s := oneSet(t, files{"a.npy": c.data, "a.csv.gz": c.sidecar})
		if s.DType != c.want {
			t.Errorf("%s, want %s", s.DType, c.want)
		}
	}
}

func TestOLMoPartWithoutSidecar(t *testing.T) {
	f := olmoSmall(t)
	delete(f, "part-0-00000.csv.gz")
	f["other.npy"] = textTokens(3, 60, 100_000, 4)
	v := exercise(t, f)
	if len(v.Sets) != 2 || len(v.Problems()) != 0 {
		t.Fatalf("%d sets, problems %v", len(v.Sets), v.Problems())
	}
	if s := v.Sets[0]; s.Format != "olmo" || s.Tokens() != 150 || s.Shards[0].Name != "part-0-00000.npy" {
		t.Errorf("%s, %d tokens: the part without a list should be in the stream", s.Format, s.Tokens())
	}
	if _, ok := readView(t, v, "documents.npy"); ok {
		t.Error("documents.npy exists, though one part lists none")
	}
	if _, ok := readView(t, v, "tokens.npy"); !ok {
		t.Error("tokens.npy is absent")
	}
}

// TestOLMoShardThatLooksLikeAnotherFormat has a first token that begins like another format's file. Its sidecar, or the shards beside it, show
// that it has tokens.
func TestOLMoShardThatLooksLikeAnotherFormat(t *testing.T) {
	for _, magic := range []string{"\x80\x02", "\x80\x03", "\x1f\x8b", "MZ", "\xff\xfe", "\xfe\xff"} {
		for _, width := range []int{2, 4} {
			f := files{}
			for i := range 3 {
				f[fmt.Sprintf("part-0-0000%d.npy", i)] = textTokens(uint64(i), 100, 50257, width)
				f[fmt.Sprintf("part-0-0000%d.csv.gz", i)] = sidecarOf(t, 40, 100)
			}
			copy(f["part-0-00001.npy"], magic)
			v, s := oneSet(t, f)
			if got, ok := readView(t, v, "tokens.bin"); !ok || len(s.Shards) != 3 || len(got) != 300*width || s.Documents() != 6 {
				t.Errorf("%q, %d bytes: %d shards, %d bytes of tokens, %d documents", magic, width, len(s.Shards), len(got), s.Documents())
			}
			delete(f, "part-0-00001.csv.gz") // then nothing tells the shard's type
			v = exercise(t, f)
			wantProblems(t, v, "part-0-00001.npy: give their type by --dtype")
			if _, ok := readView(t, v, "tokens.bin"); ok {
				t.Errorf("%q, %d bytes: a stream that lacks a shard is shown", magic, width)
			}
		}
	}
}

func TestOLMoBad(t *testing.T) {
	rows := func(text string) []byte { return gzipped(t, []byte(text)) }
	whole := textTokens(1, 100, 100_000, 4)
	for name, c := range map[string]struct {
		file   string
		data   []byte // nil deletes
		object string
	}{
		"data missing":        {"part-0-00000.npy", nil, "part-0-00000.csv.gz"},
		"data cut":            {"part-0-00000.npy", whole[:396], "part-0-00000.npy"},
		"data cut in a token": {"part-0-00000.npy", whole[:399], "part-0-00000.npy"},
		"data cut to a half":  {"part-0-00000.npy", whole[:200], "part-0-00000.npy"},
		"other end":           {"part-0-00000.csv.gz", sidecarOf(t, 99), "part-0-00000.npy"},
	} {
		f := olmoSmall(t)
		if f[c.file] = c.data; c.data == nil {
			delete(f, c.file)
		}
		v := exercise(t, f)
		if p := v.Problems(); len(p) != 1 || p[0].Object != c.object {
			t.Errorf("%s: problems %v", name, p)
		}
		if s := v.Sets[0]; len(s.Shards) != 2 || s.Shards[0].Bad == "" || s.Shards[1].Bad != "" {
			t.Errorf("%s: the shards are not one bad and one good", name)
		}
	}
	long := strings.Repeat("x", 5000)
	var many strings.Builder // more than a head holds, so that what is wrong comes after recognition
	for i := range 2000 {
		fmt.Fprintf(&many, "%d,%d,%x\n", i, i+1, i*i*7919)
	}
	for name, text := range map[string]string{
		"gap":              "2001,2002\n",
		"backward":         "1900,2001\n",
		"ends before":      "2000,1999\n",
		"past the end":     "2000,9999\n",
		"of 2^63":          "2000,9223372036854775808\n",
		"no number":        "x,2001\n",
		"negative":         "2000,-1\n",
		"cut row":          "2000",
		"no comma":         "2000 2001\n",
		"rows without end": strings.Repeat("2000,2000\n", 3000),
		"a long row":       "2000,2001," + strings.Repeat(long, 1000),
	} {
		v := exercise(t, files{"a.npy": textTokens(1, 2001, 100_000, 4), "a.csv.gz": rows(many.String() + text)})
		p := v.Problems()
		row := "row 2001:"
		if name == "rows without end" {
			row = "row 3026:"
		}
		if len(p) != 1 || p[0].Object != "a.csv.gz" || !strings.Contains(p[0].Detail, row) {
			t.Errorf("%s: problems %v", name, p)
		}
	}
}

func TestOLMoWrongTypeSaysWhich(t *testing.T) {
	ends := make([]int64, 5000)
	for i := range ends {
		ends[i] = int64(i) + 1
	}
	f := files{"a.npy": textTokens(1, 5000, 50_000, 2), "a.csv.gz": sidecarOf(t, ends...)}
	v, err := Index(t.Context(), f.objects(), Options{DType: U8})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Sets[0].Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := v.Problems(); len(p) != 1 || !strings.Contains(p[0].Detail, "--dtype u16") {
		t.Errorf("problems %v: the type that fits should be named", p)
	}
}

func TestOLMoLeavesOtherTablesAlone(t *testing.T) {
	array := append(NPYHeader(U16, 100), textTokens(1, 100, 50257, 2)...)
	for name, f := range map[string]files{
		"no data":      {"a.csv.gz": sidecarOf(t, 5)},
		"a header row": {"a.csv.gz": gzipped(t, []byte("start,end\n0,5\n")), "a.npy": make([]byte, 10)},
		"no gzip":      {"a.csv.gz": []byte("0,5\n"), "a.npy": make([]byte, 10)},
		"a real array": {"a.csv.gz": sidecarOf(t, 100), "a.npy": array},
	} {
		for _, s := range exercise(t, f).Sets {
			if s.Format == "olmo" {
				t.Errorf("%s: taken for OLMo's", name)
			}
		}
	}
	if _, err := Index(t.Context(), files{"a.csv.gz": sidecarOf(t, 100), "a.npy": array}.objects(), Options{Format: "olmo"}); err == nil {
		t.Error("a real array is taken for OLMo's when nothing else is tried")
	}
}

// TestOLMoDocumentsAreBounded gives a set less room than it has documents: a little less, which only counting shows,
// and much less, which the start of the sidecars shows.
func TestOLMoDocumentsAreBounded(t *testing.T) {
	f := olmoSmall(t)
	for _, limit := range []int64{4, 3, 1} {
		v := index(t, f)
		s, parts := v.Sets[0], map[*Shard]olmoPart{}
		for _, h := range s.Shards {
			head, ok := readSidecarHead(f[h.Objects[1].Name], h.Objects[1].Size)
			if !ok {
				t.Fatal("no sidecar")
			}
			parts[h] = olmoPart{h.Objects[0], h.Objects[1], head}
		}
		listDocuments(s, parts, limit)
		if err := s.Check(t.Context(), nil); err != nil || len(v.Problems()) > 0 {
			t.Fatal(err, v.Problems())
		}
		if _, ok := readView(t, v, "documents.npy"); ok != (limit == 4) {
			t.Errorf("limit %d: documents.npy exists: %v", limit, ok)
		}
		if _, ok := readView(t, v, "tokens.npy"); !ok {
			t.Errorf("limit %d: tokens.npy is absent", limit)
		}
		if (s.NoDocuments != "") != (limit == 1) {
			t.Errorf("limit %d: NoDocuments %q", limit, s.NoDocuments)
		}
	}
}

// TestOLMoDocumentsWithoutRoomAreChecked has a mistake behind the documents that there is room for.
func TestOLMoDocumentsWithoutRoomAreChecked(t *testing.T) {
	var rows strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&rows, "%d,%d,%x\n", i, i+1, i*i*7919)
	}
	f := files{"a.npy": textTokens(1, 2001, 100_000, 4), "a.csv.gz": gzipped(t, []byte(rows.String()+"1900,2001\n"))}
	v := index(t, f)
	h := v.Sets[0].Shards[0]
	head, ok := readSidecarHead(f["a.csv.gz"][:headSize], h.Objects[1].Size)
	if !ok {
		t.Fatal("no sidecar")
	}
	listDocuments(v.Sets[0], map[*Shard]olmoPart{h: {h.Objects[0], h.Objects[1], head}}, 1800)
	if err := v.Sets[0].Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, v, "a.csv.gz: row 2001:")
}

func TestOLMoTruncation(t *testing.T) {
	f := olmoSmall(t)
	for _, name := range slices.Sorted(maps.Keys(f))[:2] {
		sweep(t, f, name)
	}
}

// FuzzOLMo writes the list of a sound shard again and reads that: the documents stay.
func FuzzOLMo(f *testing.F) {
	f.Add([]byte("0,3,a,b,1\r\n3,5,\"x\ny\",b,2\r\n"), uint8(20), false)
	f.Add([]byte("0,3\n3,3\n3,5"), uint8(10), false)
	f.Add(gzipped(f, []byte("0,5\n")), uint8(20), true)
	f.Fuzz(func(t *testing.T, sidecar []byte, size uint8, zipped bool) {
		if !zipped {
			sidecar = gzipped(t, sidecar)
		}
		data := make([]byte, size)
		v := exercise(t, files{"a.npy": data, "a.csv.gz": sidecar})
		for _, s := range v.Sets {
			if s.Format != "olmo" || s.Bad() != nil || s.DType == DTypeUnknown {
				continue
			}
			documents, ok := readView(t, v, "documents.npy")
			if !ok {
				t.Fatal("a sound list of documents is not shown")
			}
			ends := int64s(documents[128:])
			if last := ends[len(ends)-1]; last*int64(s.DType.Size()) != int64(size) {
				t.Errorf("%d bytes of %s, the documents end at %d", size, s.DType, last)
			}
			again, _ := oneSet(t, files{"a.npy": data, "a.csv.gz": sidecarOf(t, ends[1:]...)})
			if got, _ := readView(t, again, "documents.npy"); !bytes.Equal(got, documents) {
				t.Errorf("read and written again: %x, was %x", got, documents)
			}
		}
	})
}

// TestOLMoBomb hides 50 MiB that are one row behind a list that begins well: it must be given up at its start.
func TestOLMoBomb(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for i := range 5000 {
		fmt.Fprintf(z, "%d,%d,%x\n", i, i+1, i*i*7919)
	}
	fmt.Fprint(z, "5000,5001,")
	for block := range 50 {
		if _, err := z.Write(bytes.Repeat([]byte{byte('a' + block%2)}, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	data := textTokens(1, 6000, 100_000, 4)
	v := exercise(t, files{"a.npy": data, "a.csv.gz": b.Bytes()})
	if p := v.Problems(); len(p) != 1 || !strings.Contains(p[0].Detail, "1 KiB") {
		t.Errorf("problems %v", p)
	}
}
