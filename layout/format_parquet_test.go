package layout

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// parquetFixture reads a file that tests/data/golden/parquet_files.py wrote.
func parquetFixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("parquet", "testdata", name+".parquet"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParquetGolden(t *testing.T) {
	for _, name := range []string{"parquet", "parquet-plain"} {
		checkGoldenViews(t, checkGolden(t, name), name)
	}
	checkGolden(t, "parquet-images")
	v := index(t, golden(t, "parquet"))
	if err := v.Sets[0].Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := `hbmfs pack --text-key tokenizes the texts in column "text"`; !slices.Contains(v.Sets[0].Notes, want) {
		t.Errorf("notes %q, want %q", v.Sets[0].Notes, want)
	}
	v, s := oneSet(t, golden(t, "parquet-plain"))
	if want := `the tokens are the column "input_ids", list of u16`; !slices.Contains(s.Notes, want) {
		t.Errorf("notes %q, want %q", s.Notes, want)
	}
	if _, ok := readView(t, v, "megatron.idx"); !ok {
		t.Error("there is no megatron.idx")
	}
}

// Plain pages lie in the file as they are, others are decoded.
func TestParquetExtents(t *testing.T) {
	for name, plain := range map[string]bool{"plain": true, "dictionary": false} {
		data := parquetFixture(t, name)
		v, s := oneSet(t, files{"a.parquet": data})
		if got, ok := documentsOf(t, v, 4); !ok || len(got) != 100 || len(got[4]) != 4 || got[99][3] != 102 {
			t.Errorf("%s: documents %v", name, got)
		}
		if s.Tokens() != 200 || s.Samples() != 100 {
			t.Errorf("%s: %d tokens, %d samples", name, s.Tokens(), s.Samples())
		}
		for e := range s.Shards[0].Data.Extents(0, 800) {
			if e.Object.Synthesized() == plain {
				t.Errorf("%s: %d bytes at %d are decoded: %v", name, e.Length, e.Logical, !plain)
			}
			if plain && binary.LittleEndian.Uint32(data[e.Offset:]) != 1 { // row 0 is empty
				t.Errorf("%s: at %d of the file there is no first token", name, e.Offset)
			}
		}
	}
}

func TestParquetColumns(t *testing.T) {
	for name, want := range map[string]struct {
		dtype DType
		rows  int
		of    string
	}{"split": {I64, 3, "split"}, "struct": {U32, 9, "tokens"}, "groups": {I32, 100, "input_ids"}, "empty": {I32, 0, "input_ids"}} {
		v, s := oneSet(t, files{"a.parquet": parquetFixture(t, name)})
		docs, ok := documentsOf(t, v, want.dtype.Size())
		if !ok || s.DType != want.dtype || len(docs) != want.rows || !strings.Contains(strings.Join(s.Notes, ""), `"`+want.of+`"`) {
			t.Errorf("%s: %s, %d documents, %q", name, s.DType, len(docs), s.Notes)
		}
	}
}

func TestParquetWithoutTokenStream(t *testing.T) {
	tokens := parquetFixture(t, "dictionary")
	for want, f := range map[string]files{
		"lists of it have elements that are null":                                                              {"a.parquet": parquetFixture(t, "holes")},
		`called input_ids, tokens or token_ids: "holes", "more"`:                                               {"a.parquet": parquetFixture(t, "two")},
		"is compressed by Brotli: write it with zstd or snappy":                                                {"a.parquet": parquetFixture(t, "brotli")},
		`the tokens of other files of the set are a column "input_ids", list of i32: of this one they are not`: {"a.parquet": tokens, "b.parquet": parquetFixture(t, "split")},
	} {
		v, s := oneSet(t, f)
		why := s.NoTokens
		for _, h := range s.Shards {
			why += h.NoTokens
		}
		if !strings.Contains(why, want) {
			t.Errorf("no tokens because %q, want %q", why, want)
		}
		for _, view := range v.Views {
			if view.File == nil {
				continue
			}
			if _, err := view.File(t.Context()); err == nil {
				t.Errorf("%s: there is %s", want, view.Path)
			}
		}
	}
	checkProblem(t, files{"a.parquet": tokens[:len(tokens)-1], "b.parquet": tokens}, "it does not end with PAR1")
}

// Splits are sets of their own, with tokens or without.
func TestParquetSplits(t *testing.T) {
	tokens, text := parquetFixture(t, "dictionary"), parquetFixture(t, "two")
	v := index(t, files{"train-0.parquet": tokens, "train-1.parquet": tokens, "test-0.parquet": tokens})
	if len(v.Sets) != 2 {
		t.Errorf("%d sets, want 2", len(v.Sets))
	}
	v = index(t, files{"train-0.parquet": text, "test-0.parquet": text})
	if len(v.Sets) != 2 {
		t.Errorf("%d sets without tokens, want 2", len(v.Sets))
	}
}

// countedReads counts the bytes that are read of an object.
type countedReads struct {
	inline
	mu    sync.Mutex
	bytes int64
}

func (c *countedReads) ReadAt(ctx context.Context, o *Object, p []byte, off int64) (int, error) {
	n, err := c.inline.ReadAt(ctx, o, p, off)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += int64(n)
	return n, err
}

// The size of a view costs a footer where that has statistics, and many readers decode a page once.
func TestParquetIsReadOnce(t *testing.T) {
	data := parquetFixture(t, "dictionary")
	origin := &countedReads{inline: data}
	v, err := Index(t.Context(), []*Object{{Name: "a.parquet", Size: int64(len(data)), Origin: origin}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	view := v.Views[slices.IndexFunc(v.Views, func(v View) bool { return v.Path == "tokens.bin" })]
	file, err := view.File(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	footer := 8 + int64(binary.LittleEndian.Uint32(data[len(data)-8:]))
	if most := headSize + 2*(footer+8); origin.bytes > most {
		t.Errorf("%d bytes are read for the size of a view, want at most %d", origin.bytes, most)
	}
	origin.bytes = 0
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			if _, err := file.Body.ReadAt(t.Context(), make([]byte, file.Size()), 0); err != nil {
				t.Error(err)
			}
		})
	}
	readers.Wait()
	if origin.bytes > 2*int64(len(data)) {
		t.Errorf("eight readers had %d bytes read of a file of %d", origin.bytes, len(data))
	}
}

// One that gives up does not take those along that wait for it.
func TestKeptAfterAReaderGaveUp(t *testing.T) {
	k := newKept()
	gone, cancel := context.WithCancel(t.Context())
	began, ended := make(chan struct{}), make(chan error)
	go func() {
		_, err := k.get(gone, keptKey{part: "x"}, func(ctx context.Context) (any, int64, error) {
			close(began)
			<-ctx.Done()
			return nil, 0, ctx.Err()
		})
		ended <- err
	}()
	<-began
	go func() {
		v, err := k.get(t.Context(), keptKey{part: "x"}, func(context.Context) (any, int64, error) { return 7, 1, nil })
		if v != 7 && err == nil {
			err = errors.New("another value")
		}
		ended <- err
	}()
	cancel()
	for range 2 {
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if v, err := k.get(t.Context(), keptKey{part: "x"}, func(context.Context) (any, int64, error) { return 8, 1, nil }); err != nil || v != 7 {
		t.Errorf("%v, %v", v, err)
	}
}

func TestKeptIsBounded(t *testing.T) {
	k := newKept()
	for i := range int64(1000) {
		if _, err := k.get(t.Context(), keptKey{at: i}, func(context.Context) (any, int64, error) { return i, 1<<20 - keptEntryBytes, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if k.bytes != maxKept || len(k.entries) != maxKept>>20 || k.recent.Len() != len(k.entries) {
		t.Errorf("%d bytes in %d entries are kept", k.bytes, len(k.entries))
	}
	for i, bytes := range []int64{maxKept, maxKept/2 + 1, maxKept} { // one of them at a time, and nothing goes for it
		key := keptKey{part: "large", at: int64(i)}
		if _, err := k.get(t.Context(), key, func(context.Context) (any, int64, error) { return i, bytes, nil }); err != nil || k.large.key != key {
			t.Fatal(err)
		}
	}
	if k.bytes != maxKept || len(k.entries) != maxKept>>20+1 {
		t.Errorf("%d bytes in %d entries are kept beside a large one", k.bytes, len(k.entries))
	}
	broken := errors.New("broken")
	if _, err := k.get(t.Context(), keptKey{at: -1}, func(context.Context) (any, int64, error) { return nil, 0, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, known := k.entries[keptKey{at: -1}]; known {
		t.Error("an error is kept")
	}
}

func TestParquetTruncated(t *testing.T) {
	sweep(t, files{"a.parquet": parquetFixture(t, "struct")}, "a.parquet")
}

// FuzzParquet changes one place of a good file. The views of what is left are read to their ends, or fail.
func FuzzParquet(f *testing.F) {
	var good [][]byte
	for i, name := range []string{"plain", "dictionary", "groups", "delta", "split", "struct", "arrays"} {
		good = append(good, parquetFixture(f, name))
		f.Add(i, 100, []byte{0xff})
		f.Add(i, len(good[i])-20, []byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	}
	for i := range 3 {
		good = append(good, golden(f, "parquet-images")[fmt.Sprintf("train-%05d-of-00003.parquet", i)])
		f.Add(len(good)-1, 100, []byte{0xff})
	}
	f.Fuzz(func(t *testing.T, file, at int, change []byte) {
		data := bytes.Clone(good[uint(file)%uint(len(good))])
		copy(data[uint(at)%uint(len(data)):], change)
		exercise(t, files{"a.parquet": data})
	})
}

// TestEncryptedParquet has files of which no part of the tokens can be read: each says why.
func TestEncryptedParquet(t *testing.T) {
	for name, want := range map[string]string{
		"encrypted-tokens": `column "input_ids.list.element" is encrypted`,
		"encrypted-all":    `column "input_ids.list.element" is encrypted`,
		"encrypted-footer": "its footer is encrypted",
	} {
		data := parquetFixture(t, name)
		v := index(t, files{"a.parquet": data, "b.parquet.encrypted": data})
		if len(v.Sets) != 1 || len(v.Sets[0].Shards) != 2 {
			t.Fatalf("%s: %d sets, problems %v", name, len(v.Sets), v.Problems())
		}
		_, err := v.Views[0].File(t.Context())
		var gone *AbsentError
		if !errors.As(err, &gone) || !strings.Contains(gone.Why, want) || strings.Contains(gone.Why, "broken") {
			t.Errorf("%s: its tokens: %v", name, err)
		}
	}
}
