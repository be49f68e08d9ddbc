package layout

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// textTokens draws ids as text has them: frequent ones small.
func textTokens(seed uint64, n, vocabulary, width int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	var b []byte
	for range n {
		id := uint32(math.Pow(float64(vocabulary), r.Float64()))
		if width == 2 {
			b = binary.LittleEndian.AppendUint16(b, uint16(id))
		} else {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
	}
	return b
}

func TestTokensGolden(t *testing.T) {
	v := checkTokenSets(t, "nanogpt", "tokens", 2)
	if len(v.Sets) != 2 || !strings.Contains(strings.Join(v.Sets[0].Notes, ""), "guessed from the values") {
		t.Errorf("%d sets, notes %q: it should be said that the dtype was inferred", len(v.Sets), v.Sets[0].Notes)
	}
}

func TestGuessTokensFindsTokens(t *testing.T) {
	letters := func(symbols, width int) []byte { // character-level and other tiny vocabularies
		r := rand.New(rand.NewPCG(3, 3))
		b := make([]byte, 4096)
		for i := 0; i < len(b); i += width {
			b[i] = byte(r.IntN(symbols))
		}
		return b
	}
	code := codes()
	for name, c := range map[string]struct {
		head []byte
		want DType
	}{
		"gpt-2":            {textTokens(1, 2048, 50257, 2), U16},
		"llama-2":          {textTokens(2, 2048, 32000, 2), U16},
		"llama-3":          {textTokens(3, 1024, 128256, 4), U32},
		"gemma":            {textTokens(4, 1024, 262144, 4), U32},
		"gpt-2 in u32":     {textTokens(5, 1024, 50257, 4), U32},
		"64 tokens":        {textTokens(6, 64, 50257, 2), U16},
		"64 wide tokens":   {textTokens(7, 64, 128256, 4), U32},
		"an odd byte more": {append(textTokens(8, 500, 50257, 2), 7), U16},
		"characters":       {letters(65, 2), U16},
		"characters, wide": {letters(65, 4), U32},
		"four symbols":     {letters(4, 2), U16},
	} {
		if got := guessTokens(c.head, code); got.dtype != c.want || got.other != "" {
			t.Errorf("%s: %s %q, want %s", name, got.dtype, got.other, c.want)
		}
	}
}

func TestGuessTokensRefusesOthers(t *testing.T) {
	code := codes()
	r := rand.New(rand.NewPCG(1, 2))
	make4k := func(width int, value func(i int) uint64) []byte {
		b := make([]byte, 4096)
		for i := 0; i+width <= len(b); i += width {
			var p [8]byte
			binary.LittleEndian.PutUint64(p[:], value(i/width))
			copy(b[i:], p[:width])
		}
		return b
	}
	source, err := os.ReadFile("format_tokens_test.go")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	elf, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(source); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	heads := map[string][]byte{
		"nothing":           {},
		"text":              source[:4000],
		"text of the world": []byte(strings.Repeat("Затем ещё — слово, 言葉と文字。", 40))[:1001],
		"JSON":              []byte(strings.Repeat(`{"tokens": [1, 2, 3]}`+"\n", 50)),
		"a program":         elf[:4096],
		"gzip":              zipped.Bytes(),
		"gzip's inside":     zipped.Bytes()[64:],
		"a zip":             append([]byte("PK\x03\x04"), make([]byte, 100)...),
		"a pickle":          append([]byte("\x80\x02}q\x00"), make([]byte, 100)...),
		"zstd":              append([]byte("\x28\xb5\x2f\xfd"), make([]byte, 100)...),
		"a .npy":            append(NPYHeader(U16, 1000), textTokens(1, 1000, 50257, 2)...),
		"zeros":             make([]byte, 4096),
		"one value":         bytes.Repeat([]byte{7, 0}, 2048),
		"mostly zeros":      append(make([]byte, 3000), textTokens(1, 500, 50257, 2)...),
		"offsets":           make4k(4, func(i int) uint64 { return uint64(i) * 100 }),
		"8-byte numbers":    make4k(8, func(int) uint64 { return r.Uint64N(50000) }),
		"flags":             make4k(1, func(int) uint64 { return r.Uint64N(2) }),
		"bytes":             make4k(1, func(int) uint64 { return r.Uint64N(256) }),
		"sound":             make4k(2, func(i int) uint64 { return uint64(int16(3000 * math.Sin(float64(i)/9))) }),
		"f32 weights":       make4k(4, func(int) uint64 { return uint64(math.Float32bits(float32(r.NormFloat64() * 0.02))) }),
		"bf16 weights":      make4k(2, func(int) uint64 { return uint64(math.Float32bits(float32(r.NormFloat64()*0.02)) >> 16) }),
		"f64 numbers":       make4k(8, func(int) uint64 { return math.Float64bits(r.NormFloat64()) }),
		"i8 weights":        make4k(1, func(int) uint64 { return uint64(int8(r.NormFloat64() * 20)) }),
		"labels of -100":    make4k(4, func(i int) uint64 { return uint64(int32(min(i%7*1000, 3000) - 100)) }),
		"too few":           textTokens(1, 10, 50257, 2),
	}
	for name, head := range heads {
		if got := guessTokens(head[:min(len(head), headSize)], code); got.dtype != DTypeUnknown {
			t.Errorf("%s is taken for tokens of %s", name, got.dtype)
		}
	}
	for range 2000 { // of every length, random bytes are no tokens
		head := make([]byte, 64+r.IntN(4000))
		for i := range head {
			head[i] = byte(r.Uint32())
		}
		if got := guessTokens(head, code); got.dtype != DTypeUnknown {
			t.Fatalf("%d random bytes are taken for tokens of %s", len(head), got.dtype)
		}
	}
}

func TestTokensOfOtherFilesAreLeftAlone(t *testing.T) {
	v := exercise(t, files{
		"pytorch_model.bin": append([]byte("PK\x03\x04"), make([]byte, 100)...),
		"notes.txt":         textTokens(1, 100, 50257, 2),
		"empty.bin":         {},
		"zeros.bin":         make([]byte, 100),
	})
	if len(v.Sets) != 0 || len(v.Problems()) != 0 {
		t.Errorf("%d sets, problems %v", len(v.Sets), v.Problems())
	}
}

func TestTokensFamilyKeepsItsPaddedShard(t *testing.T) {
	padded := append(make([]byte, 6000), textTokens(9, 100, 50257, 2)...)
	v, s := oneSet(t, files{
		"part_000.bin": textTokens(1, 100, 50257, 2), "part_001.bin": padded, "part_002.bin": {}, "other.bin": make([]byte, 100),
	})
	if len(s.Shards) != 3 || s.Tokens() != 100+3100 {
		t.Errorf("%d shards, %d tokens", len(s.Shards), s.Tokens())
	}
	if got, ok := readView(t, v, "tokens.bin"); !ok || !bytes.Equal(got[200:], padded) {
		t.Error("the padded shard is not in the stream")
	}
	v = index(t, files{ // the family has two types: neither is taken for granted
		"part_0.bin": textTokens(1, 100, 50257, 2), "part_1.bin": textTokens(1, 100, 128256, 4), "part_2.bin": make([]byte, 4096),
	})
	if len(v.Sets) != 2 || len(v.Sets[0].Shards) != 1 || len(v.Sets[1].Shards) != 1 {
		t.Errorf("%d sets", len(v.Sets))
	}
}

// A shard in some ten thousand begins with the two bytes of another format. Its siblings show that it has tokens.
func TestTokensFamilyKeepsAShardThatLooksLikeAProgram(t *testing.T) {
	for _, magic := range []string{"MZ", "\x80\x02", "\x1f\x8b", "\xff\xfe"} {
		odd := textTokens(3, 100, 50257, 2)
		copy(odd, magic)
		for _, opt := range []Options{{}, {DType: U16}} {
			f := files{"a0.bin": textTokens(1, 100, 50257, 2), "a1.bin": odd, "a2.bin": textTokens(2, 100, 50257, 2), "other.bin": odd}
			v, err := Index(t.Context(), f.objects(), opt)
			if err != nil {
				t.Fatal(err)
			}
			if len(v.Sets) != 1 || len(v.Sets[0].Shards) != 3 || len(v.Problems()) != 0 {
				t.Errorf("%q, %+v: %d sets, problems %v", magic, opt, len(v.Sets), v.Problems())
			}
		}
	}
}

// TestTokensOfALoneFileThatLooksLikeAProgram names the flags that show such a file.
func TestTokensOfALoneFileThatLooksLikeAProgram(t *testing.T) {
	f := files{"train.bin": textTokens(1, 100, 50257, 2)}
	copy(f["train.bin"], "\x80\x02")
	for _, c := range []struct {
		opt  Options
		sets int
		hint string
	}{
		{Options{}, 0, ""}, {Options{DType: U16}, 0, "it begins like a pickle: if it holds tokens all the same, give --format tokens"},
		{Options{DType: U16, Format: "tokens"}, 1, ""}, {Options{DType: U16, Format: "nanogpt"}, 1, ""},
	} {
		v, err := Index(t.Context(), f.objects(), c.opt)
		if err != nil {
			t.Fatal(err)
		}
		if h := v.Hints(); len(v.Sets) != c.sets || len(v.Problems()) > 0 || len(h) != min(1, len(c.hint)) || c.hint != "" && !strings.Contains(h[0].Detail, c.hint) {
			t.Errorf("%+v: %d sets, problems %v, hints %v", c.opt, len(v.Sets), v.Problems(), h)
		}
	}
}

func TestTokensCutInAToken(t *testing.T) {
	v := exercise(t, files{"a.bin": textTokens(1, 100, 50257, 2)[:199], "b.bin": textTokens(2, 100, 50257, 2)})
	if p := v.Problems(); len(p) != 1 || p[0].Object != "a.bin" || p[0].Offset != 199 {
		t.Errorf("problems %v", p)
	}
	if _, ok := readView(t, v, "tokens.bin"); ok {
		t.Error("a stream that lacks a shard is shown")
	}
}

func TestTokensGivenType(t *testing.T) {
	f := files{"a.bin": make([]byte, 64), "b.bin": []byte("some text to be read as bytes, or not"), "c.bin": append([]byte("PK\x03\x04"), 1, 2)}
	for _, c := range []struct {
		opt    Options
		tokens int64
		shards int
	}{{Options{DType: U8}, 64 + 37, 2}, {Options{DType: I64}, 8, 1}, {Options{DType: U16, Format: "tokens"}, 32, 1}} {
		v, err := Index(t.Context(), f.objects(), c.opt)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Sets) != 1 || v.Sets[0].DType != c.opt.DType || v.Sets[0].Tokens() != c.tokens || len(v.Sets[0].Shards) != c.shards {
			t.Errorf("%+v: %d sets, problems %v", c.opt, len(v.Sets), v.Problems())
		}
		if want := map[string]int{"": 0, "tokens": 2}[c.opt.Format]; len(v.Problems()) != want {
			t.Errorf("%+v: problems %v, want %d", c.opt, v.Problems(), want)
		}
	}
	_, err := Index(t.Context(), files{"a.bin": make([]byte, 64)}.objects(), Options{Format: "tokens"})
	if err == nil || !strings.Contains(err.Error(), "--dtype") {
		t.Errorf("error %v should say what to do", err)
	}
}

func TestTokensSetsOfADirectory(t *testing.T) {
	v := index(t, files{
		"train.bin": textTokens(1, 100, 50257, 2), "val.bin": textTokens(2, 90, 50257, 2),
		"d/a.u16": textTokens(3, 80, 50257, 2), "d/b.u32": textTokens(4, 70, 128256, 4),
	})
	var got []string
	for _, s := range v.Sets {
		got = append(got, fmt.Sprintf("%s %s %d", s.ViewDir(), s.DType, s.Tokens()))
	}
	want := []string{"d u16 80", "d/tokens u32 70", "train u16 100", "val u16 90"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTokensTruncation(t *testing.T) {
	sweep(t, files{"a.bin": textTokens(1, 100, 50257, 2), "b.bin": textTokens(2, 50, 50257, 2)}, "a.bin")
}

// FuzzTokens shows whatever is taken for tokens as it is.
func FuzzTokens(f *testing.F) {
	f.Add(textTokens(1, 100, 50257, 2), uint8(DTypeUnknown))
	f.Add(textTokens(1, 100, 128256, 4), uint8(DTypeUnknown))
	f.Add([]byte("\x80\x02"), uint8(I64))
	f.Fuzz(func(t *testing.T, data []byte, dtype uint8) {
		v, err := Index(t.Context(), files{"a.bin": data, "b.bin": data}.objects(), Options{DType: DType(dtype % uint8(F8E5M2+1))})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range v.Sets {
			if s.Format != "tokens" || s.Bad() != nil {
				continue
			}
			if got, ok := readView(t, v, "tokens.bin"); !ok || !bytes.Equal(got, slices.Concat(data, data)) {
				t.Errorf("tokens.bin = %x", got)
			}
		}
	})
}

// The manifest of hbmfs pack says what its headerless files are, where their values do not.
func TestTokensToldByTheManifest(t *testing.T) {
	zeros := make([]byte, 4096) // padding, or anything else
	manifest := func(dtype string, size int) []byte {
		m := Manifest{Version: 1, Format: "nanogpt", DType: "u16", Tokens: 2048, Documents: 1, Files: []ManifestFile{{Name: "train.bin", Tokens: 2048, Documents: 1}}}
		if err := m.Files[0].SumFile(t.Context(), bytes.NewReader(zeros), int64(len(zeros))); err != nil {
			t.Fatal(err)
		}
		text, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.Replace(text, []byte(`"u16"`), []byte(`"`+dtype+`"`), 1)
		return bytes.Replace(text, []byte(`"size": 4096`), fmt.Appendf(nil, `"size": %d`, size), 1)
	}
	for name, c := range map[string]struct {
		manifest []byte
		want     DType // of the one set; DTypeUnknown for none
		note     string
	}{
		"u16":            {manifest("u16", 4096), U16, "that of " + ManifestName},
		"u32":            {manifest("u32", 4096), U32, "that of " + ManifestName},
		"another type":   {manifest("f32", 4096), DTypeUnknown, ""},
		"another size":   {manifest("u16", 4098), DTypeUnknown, ""},
		"not a manifest": {[]byte("{"), DTypeUnknown, ""},
		"none":           {nil, DTypeUnknown, ""},
	} {
		f := files{"a/train.bin": zeros}
		if c.manifest != nil {
			f["a/"+ManifestName] = c.manifest
		}
		v := index(t, f)
		if len(v.Sets) == 0 && c.want == DTypeUnknown {
			continue
		}
		if len(v.Sets) != 1 || v.Sets[0].DType != c.want || !strings.Contains(strings.Join(v.Sets[0].Notes, ""), c.note) {
			t.Errorf("%s: sets %+v, want one of %v that says %q", name, v.Sets, c.want, c.note)
		}
	}
	// One file is the source: the manifest beside it is an option.
	v, err := Index(t.Context(), files{"train.bin": zeros}.objects(), Options{Manifest: manifest("u32", 4096)})
	if err != nil || len(v.Sets) != 1 || v.Sets[0].DType != U32 {
		t.Errorf("one file: %v, sets %+v", err, v.Sets)
	}
}

// TestTokensThatNobodyCanBeSureOfAreNamed has no view of such files: the volume names them, and the flag that shows them.
func TestTokensThatNobodyCanBeSureOfAreNamed(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	made := func(dtype DType, distribution string) []byte { return madeFile(r, dtype, distribution, false) }
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"uniform u16":            {made(U16, "uniform"), "as in --dtype uint16"},
		"bytes of 0 to 3":        {[]byte(strings.Repeat("\x00\x01\x02\x03\x03\x01\x00\x02", 512)), ""},
		"bytes of 0 to 3, drawn": {made(U8, "few values"), "--dtype uint8 shows them"},
		"int64":                  {made(I64, "Zipf"), "--dtype int64 shows them"},
		"float32":                {made(F32, "uniform"), "--dtype float32 shows them"},
		"offsets":                {offsets(4096), "as in --dtype uint16"},
	} {
		v := index(t, files{"d/train.bin": c.data, "d/small.bin": {1, 2, 3}})
		if len(v.Sets) != 0 || len(v.Problems()) != 0 {
			t.Errorf("%s: sets %+v, problems %v", name, v.Sets, v.Problems())
		}
		if h := v.Hints(); len(h) != 1 || h[0].Object != "d/train.bin" || !strings.Contains(h[0].Detail, c.want) || !strings.Contains(h[0].Detail, "--dtype ") {
			t.Errorf("%s: hints %v, want one on d/train.bin that says %q", name, h, c.want)
		}
		for _, opt := range []Options{{DType: U16}, {Format: "raw"}} {
			if v, err := Index(t.Context(), files{"train.bin": c.data}.objects(), opt); err != nil || len(v.Hints()) != 0 {
				t.Errorf("%s: with %+v, hints %v and %v", name, opt, v.Hints(), err)
			}
		}
	}
	all := files{}
	for i := range 100 {
		all[fmt.Sprintf("part-%03d.bin", i)] = made(U16, "uniform")
	}
	if h := index(t, all).Hints(); len(h) != 1 || !strings.Contains(h[0].Detail, "it and 99 more in this directory: ") {
		t.Errorf("100 files alike: hints %v, want one of all", h)
	}
}

// A type that nothing has is a mistake of its giver: the files have other names than tokens, or headers.
func TestHintsAtATypeThatNothingHas(t *testing.T) {
	tokens := madeFile(rand.New(rand.NewPCG(7, 7)), U16, "Zipf", false)
	array := npyFile(1, npyDict("'<u2'", "False", fmt.Sprintf("(%d,)", len(tokens)/2)), tokens...)
	for name, c := range map[string]struct {
		file  string
		data  []byte
		dtype DType
		want  string
	}{
		"another name":   {"part-0.toks", tokens, U16, "--dtype uint16 has no effect on this file"},
		"another header": {"a.npy", array, I64, "--dtype int64 has no effect on this file"},
		"the header's":   {"a.npy", array, U16, ""},
		"headerless":     {"train.bin", tokens, U16, ""},
		"none given":     {"part-0.toks", tokens, DTypeUnknown, ""},
	} {
		v, err := Index(t.Context(), files{c.file: c.data}.objects(), Options{DType: c.dtype})
		if err != nil || len(v.Hints()) != min(1, len(c.want)) || c.want != "" && !strings.Contains(v.Hints()[0].Detail, c.want) {
			t.Errorf("%s: hints %v and %v, want one that says %q", name, v.Hints(), err, c.want)
		}
	}
}

// offsets are the multiples of 100, as u32.
func offsets(bytes int) (b []byte) {
	for i := range bytes / 4 {
		b = binary.LittleEndian.AppendUint32(b, uint32(i)*100)
	}
	return b
}

// TestTokensGuessesAreMarked has guessed types marked in sets and views, and no others.
func TestTokensGuessesAreMarked(t *testing.T) {
	f := files{"a.bin": textTokens(1, 500, 50257, 2)}
	for _, c := range []struct {
		opt  Options
		want bool
	}{{Options{}, true}, {Options{DType: U16}, false}, {Options{Format: "nanogpt"}, true}} {
		v, err := Index(t.Context(), f.objects(), c.opt)
		if err != nil || len(v.Sets) != 1 || v.Sets[0].Guessed != c.want {
			t.Fatalf("%+v: %v, sets %+v", c.opt, err, v.Sets)
		}
		for i := range v.Views {
			exists, err := v.Views[i].Exists(t.Context())
			if err != nil || !exists {
				continue
			}
			file, err := v.Views[i].File(t.Context())
			if want := c.want && strings.HasPrefix(v.Views[i].Path, "tokens."); err != nil || file.Guessed != want {
				t.Errorf("%+v: %s: guessed %v (%v), want %v", c.opt, v.Views[i].Path, file.Guessed, err, want)
			}
		}
	}
}

// TestTokensOfOtherWidthStayOut keeps a file out of a family whose type its values contradict.
func TestTokensOfOtherWidthStayOut(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	v := index(t, files{
		"part_0.bin": textTokens(1, 500, 50257, 2), "part_1.bin": madeFile(r, U8, "few values", true), "part_2.bin": textTokens(2, 500, 50257, 2),
	})
	if len(v.Sets) != 1 || len(v.Sets[0].Shards) != 2 || len(v.Problems()) != 1 || v.Problems()[0].Object != "part_1.bin" {
		t.Errorf("sets %+v, problems %v: part_1.bin should be in none", v.Sets, v.Problems())
	}
}

// TestTokensDecodedAsAWhole shows files whose beginning costs as much as all of them: by --dtype or an index, never by their values.
func TestTokensDecodedAsAWhole(t *testing.T) {
	whole := func() []*Object {
		objects := files{"train.bin": textTokens(1, 500, 50257, 2), "note.txt": []byte("text")}.objects()
		for _, o := range objects {
			o.Whole, o.Origin = true, failingOrigin{t}
		}
		return objects
	}
	v, err := Index(t.Context(), whole(), Options{DType: U16})
	if err != nil || len(v.Sets) != 1 || v.Sets[0].Tokens() != 500 || len(v.Hints()) != 0 {
		t.Fatalf("with --dtype: %v, sets %+v, hints %v", err, v.Sets, v.Hints())
	}
	if v, err = Index(t.Context(), whole(), Options{}); err != nil || len(v.Sets) != 0 || len(v.Hints()) != 1 || !strings.Contains(v.Hints()[0].Detail, "--dtype uint16") {
		t.Errorf("without: %v, sets %+v, hints %v", err, v.Sets, v.Hints())
	}
}

// failingOrigin has bytes that nobody may ask for.
type failingOrigin struct{ t *testing.T }

func (f failingOrigin) ReadAt(_ context.Context, o *Object, _ []byte, _ int64) (int, error) {
	f.t.Errorf("%s is read", o.Name)
	return 0, errors.New("not to be read")
}
