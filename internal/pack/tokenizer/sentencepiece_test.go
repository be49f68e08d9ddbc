package tokenizer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// sentenceGolden is testdata/sentence.pieces.json, which tests/data/golden/sentencepiece_files.py writes.
type sentenceGolden struct {
	Texts  []string
	Models map[string]string
	Tokens map[string][][]uint32
	Unit   string
	Times  int
	Long   map[string][]uint32
}

func readSentenceGolden(t testing.TB) (g sentenceGolden, models map[string][]byte) {
	t.Helper()
	if err := json.Unmarshal(testdata(t, "sentence.pieces.json"), &g); err != nil {
		t.Fatal(err)
	}
	models = map[string][]byte{}
	for kind, text := range g.Models {
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		models[kind] = raw
	}
	return g, models
}

func TestSentencePiece(t *testing.T) {
	g, models := readSentenceGolden(t)
	for kind, raw := range models {
		tok, err := parse(raw, t.TempDir())
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		e := tok.NewEncoder()
		for i, text := range g.Texts {
			got, _, err := e.Append(nil, []byte(text), false)
			if err != nil || !slices.Equal(got, g.Tokens[kind][i]) {
				t.Errorf("%s: %q gives %v, want %v (%v)", kind, text, got, g.Tokens[kind][i], err)
			}
		}
		got, _, err := e.Append(nil, []byte(strings.Repeat(g.Unit, g.Times)), false)
		if want := g.Long[kind]; err != nil || len(got) != int(want[0]) || !slices.Equal(got[len(got)-len(want)+1:], want[1:]) {
			t.Errorf("%s: a long text gives %d tokens, want %d (%v)", kind, len(got), want[0], err)
		}
		bos, err1 := tok.BOS()
		eot, err2 := tok.EOT()
		if err1 != nil || err2 != nil || bos != 1 || eot != 2 {
			t.Errorf("%s: a text begins with %d (%v) and ends with %d (%v)", kind, bos, err1, eot, err2)
		}
		if _, err := tok.WithSpecialText(); err == nil {
			t.Errorf("%s: special tokens in a text are taken", kind)
		}
		if _, _, err := tok.Around(); err == nil {
			t.Errorf("%s: it says what goes around a text", kind)
		}
	}
}

// A text that is cut where LastCut says gives the tokens of the whole.
func TestSentencePieceCuts(t *testing.T) {
	g, models := readSentenceGolden(t)
	cuts := 0
	for kind, raw := range models {
		tok, err := parse(raw, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		e := tok.NewEncoder()
		for i, text := range g.Texts {
			for at := range len(text) + 1 {
				cut := tok.LastCut([]byte(text[:at]))
				if cut == 0 {
					continue
				}
				cuts++
				parts, _, _ := e.Append(nil, []byte(text[:cut]), false)
				parts, _, _ = e.Append(parts, []byte(text[cut:]), true)
				if !reflect.DeepEqual(parts, g.Tokens[kind][i]) {
					t.Fatalf("%s: %q cut at %d gives %v, want %v", kind, text, cut, parts, g.Tokens[kind][i])
				}
			}
		}
	}
	if cuts == 0 {
		t.Error("no text can be cut")
	}
}

// sentenceOf makes a model of pieces.
func sentenceOf(trainer, normalizer []byte, pieces ...sentencePiece) (raw []byte) {
	for _, p := range pieces {
		message := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), p.text)
		message = protowire.AppendFixed32(protowire.AppendTag(message, 2, protowire.Fixed32Type), math.Float32bits(p.score))
		message = protowire.AppendVarint(protowire.AppendTag(message, 3, protowire.VarintType), uint64(p.kind))
		raw = protowire.AppendBytes(protowire.AppendTag(raw, 1, protowire.BytesType), message)
	}
	raw = protowire.AppendBytes(protowire.AppendTag(raw, 2, protowire.BytesType), trainer)
	return protowire.AppendBytes(protowire.AppendTag(raw, 3, protowire.BytesType), normalizer)
}

func number(id protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, id, protowire.VarintType), n)
}

func TestSentencePiecesThatAreRefused(t *testing.T) {
	unk, a := sentencePiece{"<unk>", 0, pieceUnknown}, sentencePiece{"a", -1, pieceNormal}
	for want, raw := range map[string][]byte{
		"of words or characters":                   sentenceOf(number(3, 3), nil, unk, a),
		"treat_whitespace_as_suffix":               sentenceOf(number(24, 1), nil, unk, a),
		"escape_whitespaces":                       sentenceOf(nil, number(5, 0), unk, a),
		`the piece "a" twice`:                      sentenceOf(nil, nil, unk, a, a),
		"the piece 1 is empty":                     sentenceOf(nil, nil, unk, sentencePiece{"", 0, pieceNormal}),
		"is not a number":                          sentenceOf(nil, nil, unk, sentencePiece{"b", float32(math.NaN()), pieceNormal}),
		`the piece "b", which is not to be used`:   sentenceOf(nil, nil, unk, sentencePiece{"b", 0, pieceUnused}),
		"has the type 9":                           sentenceOf(nil, nil, unk, sentencePiece{"b", 0, 9}),
		"has 0 pieces for what it does not know":   sentenceOf(nil, nil, a),
		"no piece <0x00> for its byte_fallback":    sentenceOf(number(35, 1), nil, unk, a),
		`the piece "ab", and none for its`:         sentenceOf(number(3, 2), nil, unk, a, sentencePiece{"ab", -2, pieceNormal}),
		"has more than 1024 bytes":                 sentenceOf(nil, nil, unk, sentencePiece{strings.Repeat("x", 1025), 0, pieceNormal}),
		"less than 4 bytes":                        sentenceOf(nil, protowire.AppendString(protowire.AppendTag(nil, 2, protowire.BytesType), "x"), unk, a),
		"looks like a sentencepiece model, and is": sentenceOf(nil, nil, unk, a)[:20],
	} {
		if _, err := parse(raw, t.TempDir()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	tok, err := parse(sentenceOf(nil, nil, unk, a), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tok.EOT(); err == nil || !strings.Contains(err.Error(), "no piece that ends a text: say with --eot") {
		t.Errorf("got %v", err)
	}
}

// FuzzSentencePiece changes one place of a model: it is refused, or gives tokens below its size.
func FuzzSentencePiece(f *testing.F) {
	_, models := readSentenceGolden(f)
	kinds := []string{"unigram", "unigram-words", "bpe", "bpe-bytes"}
	for i := range kinds {
		f.Add(i, 100, []byte{0xff}, []byte("the quick 000 \u1e9b"))
		f.Add(i, len(models[kinds[i]])-9, []byte{0x28, 0}, []byte("  x "))
	}
	f.Fuzz(func(t *testing.T, kind, at int, change, text []byte) {
		raw := bytes.Clone(models[kinds[uint(kind)%uint(len(kinds))]])
		copy(raw[uint(at)%uint(len(raw)):], change)
		tok, err := parse(raw, "")
		if err != nil {
			return
		}
		tokens, _, _ := tok.NewEncoder().Append(nil, text, false)
		for _, id := range tokens {
			if int64(id) >= tok.Size() {
				t.Errorf("%d of %d", id, tok.Size())
			}
		}
	})
}
