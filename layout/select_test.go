package layout

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// selecting indexes a dataset with a selection.
func selecting(t testing.TB, f files, sel ...Selection) (*Volume, error) {
	t.Helper()
	return Index(t.Context(), f.objects(), Options{Select: sel})
}

// TestSelectionsOfEveryFormat compares the views of a selection with the documents cut out of the views of the set.
func TestSelectionsOfEveryFormat(t *testing.T) {
	seen := 0
	for _, dataset := range []string{"megatron", "megatron-merge", "megatron-multimodal", "datatrove", "olmo", "mds", "mds-multi", "litdata-tokens", "arrow"} {
		plain := index(t, golden(t, dataset))
		s := plain.Sets[0]
		dir := s.ViewDir()
		name := func(view string) string { return strings.TrimPrefix(dir+"/"+view, "/") }
		raw, ok := readView(t, plain, name("documents.npy"))
		if !ok {
			t.Fatalf("%s has no documents", dataset)
		}
		borders, item := int64s(raw[128:]), int64(s.DType.Size())
		tokens, _ := readView(t, plain, name("tokens.bin"))
		for _, step := range []int{1, 2, 3} {
			var chosen, starts []int64
			var want []byte
			for d := step - 1; d < len(borders)-1; d += step {
				chosen, starts = append(chosen, int64(d)), append(starts, int64(len(want))/item)
				want = append(want, tokens[borders[d]*item:borders[d+1]*item]...)
			}
			starts = append(starts, int64(len(want))/item)
			v, err := selecting(t, golden(t, dataset), Selection{name("part"), chosen})
			if err != nil {
				t.Fatalf("%s: %v", dataset, err)
			}
			if got, ok := readView(t, v, name("part/tokens.bin")); !ok || !bytes.Equal(got, want) {
				t.Errorf("%s, every %d: %d bytes of tokens (%v), want %d; problems %v", dataset, step, len(got), ok, len(want), v.Problems())
			}
			if got, ok := readView(t, v, name("part/documents.npy")); !ok || !slices.Equal(int64s(got[128:]), starts) {
				t.Errorf("%s, every %d: documents are not where they are", dataset, step)
			}
			if got, ok := readView(t, v, name("part/megatron.idx")); !ok || len(got) != 34+12*len(chosen)+8*len(starts) {
				t.Errorf("%s, every %d: the index has %d bytes (%v)", dataset, step, len(got), ok)
			}
			if got, _ := readView(t, v, name("tokens.bin")); !bytes.Equal(got, tokens) {
				t.Errorf("%s: the whole is another one", dataset)
			}
			seen++
		}
	}
	if seen < 24 {
		t.Errorf("%d selections", seen)
	}
}

func TestSelectionsThatCannotBe(t *testing.T) {
	f := golden(t, "megatron")
	for _, tt := range []struct{ name, want string }{
		{"nowhere/part", `no tokens have their views in "nowhere": give NAME`},
		{"", "no name"},
		{"..", "no name"},
		{"../part", "no name"},
		{"/part", "no name"},
		{"a//part", "no name"},
		{"a\x00", "no name"},
	} {
		_, err := selecting(t, f, Selection{tt.name, []int64{0}})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, err := selecting(t, f, Selection{"part", []int64{0}}, Selection{"part", []int64{1}}); err == nil || !strings.Contains(err.Error(), "other views") {
		t.Errorf("twice: %v", err)
	}
	for _, name := range []string{"fields", "tokens.npy", "fields/part"} {
		if _, err := selecting(t, golden(t, "mds"), Selection{name, []int64{0}}); err == nil {
			t.Errorf("%s: a selection hides a view, or lies in one", name)
		}
	}
	v, err := selecting(t, f, Selection{"part", []int64{0, 1 << 40}})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := readView(t, v, "part/tokens.bin"); ok || len(v.Problems()) != 1 || !strings.Contains(v.Problems()[0].Detail, "is selected, there are") {
		t.Errorf("a document that is not there: %v, problems %v", ok, v.Problems())
	}
	headerless := golden(t, "nanogpt")
	v, err = selecting(t, headerless, Selection{"train/part", []int64{0}})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := readView(t, v, "train/part/tokens.bin"); ok {
		t.Error("documents of a format that knows none")
	}
}

func TestParseSelection(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []int64
		err  string
	}{
		{"0\n", []int64{0}, ""},
		{"3\n 17 \r\n\n18", []int64{3, 17, 18}, ""},
		{"9223372036854775807", []int64{1<<63 - 1}, ""},
		{"", nil, "names no document"},
		{"\n\n", nil, "names no document"},
		{"1\n1\n", nil, "line 2: document 1 comes after document 1"},
		{"5\n4\n", nil, "line 2: document 4 comes after"},
		{"-1", nil, "line 1: "},
		{"1 2", nil, "no number"},
		{"0x10", nil, "no number"},
		{"9223372036854775808", nil, "no number"},
		{strings.Repeat("1", 5000), nil, "token too long"},
	} {
		got, err := ParseSelection(strings.NewReader(tt.text))
		if !slices.Equal(got, tt.want) || (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%.20q: %v, %v; want %v, %q", tt.text, got, err, tt.want, tt.err)
		}
	}
}

// FuzzSelection parses, and shows what was selected: whatever parses is ascending and prints as it was read.
func FuzzSelection(f *testing.F) {
	for _, seed := range []string{"0\n1\n5\n", "", "7", "1\n\n 2\r\n", "99999999999999999999", "a", "3\n2"} {
		f.Add([]byte(seed))
	}
	dataset := golden(f, "megatron")
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := ParseSelection(bytes.NewReader(text))
		if err != nil {
			return
		}
		var fields []string
		for _, line := range strings.Split(string(text), "\n") {
			if field := strings.TrimSpace(line); field != "" {
				fields = append(fields, strings.TrimLeft(field, "0"))
			}
		}
		if len(fields) != len(got) || len(got) == 0 || !slices.IsSorted(got) {
			t.Fatalf("%q is %v", text, got)
		}
		for i, d := range got {
			if want := strings.TrimLeft(strconv.FormatInt(d, 10), "0"); fields[i] != want {
				t.Fatalf("%q is %v", text, got)
			}
		}
		v, err := selecting(t, dataset, Selection{"part", got})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := readView(t, v, "part/tokens.bin"); ok != (got[len(got)-1] < 13) {
			t.Fatalf("%q: a view %v", text, ok)
		}
	})
}

func TestShardsOfAStream(t *testing.T) {
	_, s := oneSet(t, golden(t, "datatrove"))
	v := s.volume
	got, ok := readView(t, v, "shards.json")
	var want []string
	for _, h := range s.Shards {
		want = append(want, fmt.Sprintf(`{"name":%q,"tokens":%d,"documents":%d}`, h.Name, h.Tokens, h.Index.Documents()))
	}
	if !ok || string(got) != "["+strings.Join(want, ",")+"]\n" {
		t.Errorf("%s", got)
	}
	v = index(t, golden(t, "nanogpt"))
	if got, ok := readView(t, v, "train/shards.json"); !ok || !strings.Contains(string(got), `"documents":-1}`) {
		t.Errorf("%s", got)
	}
}
