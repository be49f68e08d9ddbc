package layout

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
)

// expectation is what tests/data/testdata/expect.json says of a golden dataset: what an independent reading found in it.
type expectation struct {
	Format    string                      `json:"format"`
	DType     string                      `json:"dtype"` // as NumPy names it
	Shards    int                         `json:"shards"`
	Samples   *int64                      `json:"samples"`
	Documents *int64                      `json:"documents"`
	Splits    map[string]splitExpectation `json:"splits"`
}

type splitExpectation struct {
	Files          []string `json:"files"`
	Tokens         int64    `json:"tokens"`
	TokensSHA256   string   `json:"tokens_sha256"`
	DocumentStarts []int64  `json:"document_starts"`
}

func expected(t testing.TB, dataset string) expectation {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "tests", "data", "testdata", "expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]expectation
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	e, ok := all[dataset]
	if !ok {
		t.Fatalf("expect.json has no dataset %s", dataset)
	}
	return e
}

// checkGolden indexes a golden dataset, finds no problem in it, and compares it with the independent reading: format,
// dtype, shards, samples and documents of its sets, and of each split the views of tokens and documents.
func checkGolden(t *testing.T, dataset string) *Volume {
	t.Helper()
	e := expected(t, dataset)
	v := index(t, golden(t, dataset))
	var shards int
	var samples, documents int64
	for _, s := range v.Sets {
		if err := s.Check(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if s.Format != e.Format {
			t.Errorf("%s: format %s, want %s", dataset, s.Format, e.Format)
		}
		if d := numpyName(s.DType); d != e.DType {
			t.Errorf("%s: dtype %q, want %q", dataset, d, e.DType)
		}
		shards += len(s.Shards)
		samples += s.Samples()
		documents += s.Documents()
	}
	if p := v.Problems(); len(p) > 0 {
		t.Errorf("%s: problems %v", dataset, p)
	}
	if shards != e.Shards {
		t.Errorf("%s: %d shards, want %d", dataset, shards, e.Shards)
	}
	if e.Samples != nil && samples != *e.Samples {
		t.Errorf("%s: %d samples, want %d", dataset, samples, *e.Samples)
	}
	if e.Documents != nil && documents != *e.Documents {
		t.Errorf("%s: %d documents, want %d", dataset, documents, *e.Documents)
	}
	return v
}

// checkGoldenViews compares the views of each split with the independent reading.
func checkGoldenViews(t *testing.T, v *Volume, dataset string) {
	t.Helper()
	for split, want := range expected(t, dataset).Splits {
		tokens, ok := readView(t, v, path.Join(split, "tokens.bin"))
		if !ok {
			t.Errorf("%s: split %q has no tokens.bin", dataset, split)
			continue
		}
		sum := sha256.Sum256(tokens)
		if got := hex.EncodeToString(sum[:]); got != want.TokensSHA256 {
			t.Errorf("%s: split %q: sha256 of tokens.bin is %s, want %s", dataset, split, got, want.TokensSHA256)
		}
		if want.DocumentStarts == nil { // that reader knows no documents
			continue
		}
		array, ok := readView(t, v, path.Join(split, "documents.npy"))
		if !ok {
			t.Errorf("%s: split %q has no documents.npy", dataset, split)
			continue
		}
		var starts []int64
		for array = array[128:]; len(array) > 0; array = array[8:] {
			starts = append(starts, int64(binary.LittleEndian.Uint64(array)))
		}
		if !slices.Equal(starts, want.DocumentStarts) {
			t.Errorf("%s: split %q: documents begin at %v, want %v", dataset, split, starts, want.DocumentStarts)
		}
	}
}

// numpyName returns the name that NumPy gives to a type, "" for none.
func numpyName(d DType) string {
	switch d {
	case U8, U16, U32, U64:
		return "uint" + d.String()[1:]
	case I8, I16, I32, I64:
		return "int" + d.String()[1:]
	case F16, F32, F64:
		return "float" + d.String()[1:]
	case Bool:
		return "bool"
	}
	return ""
}
