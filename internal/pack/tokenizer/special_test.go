package tokenizer

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Special tokens of OpenAI's vocabularies are found where they are asked for, and what lies between them is text of its own.
func TestSpecialTokensInTexts(t *testing.T) {
	for _, v := range vocabularies() {
		plain, err := v.open()
		if err != nil {
			t.Fatal(err)
		}
		with, err := plain.WithSpecialText()
		if err != nil {
			t.Fatal(err)
		}
		for name, id := range openaiSpecial(v.name) {
			text := "it's " + name + name + " <|endof" + name + "\n "
			var want []uint32
			for i, piece := range strings.Split(text, name) {
				if i > 0 {
					want = append(want, id)
				}
				if want, _, err = plain.NewEncoder().Append(want, []byte(piece), false); err != nil {
					t.Fatal(err)
				}
			}
			got, _, err := with.NewEncoder().Append(nil, []byte(text), false)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %q: %d, %v, want %d", v.name, text, got, err, want)
			}
			if ordinary, _, _ := plain.NewEncoder().Append(nil, []byte(text), false); slices.Contains(ordinary, id) {
				t.Errorf("%s: %q has %s without being asked", v.name, text, name)
			}
			if found, ok := with.ID(name); !ok || found != id || int64(id) >= with.Size() {
				t.Errorf("%s: %s is %d, %v; the size is %d", v.name, name, found, ok, with.Size())
			}
		}
		if _, err := plain.BOS(); !errors.Is(err, errNoBOS) {
			t.Errorf("%s: %v", v.name, err)
		}
		if _, _, err := plain.Around(); !errors.Is(err, errNoAround) {
			t.Errorf("%s: %v", v.name, err)
		}
	}
}

// Wherever a text with special tokens may be cut, its parts give the tokens of the whole.
func TestPartsWithSpecialTokens(t *testing.T) {
	g := readGolden(t)
	texts := append(slices.Clone(g.Texts), []byte("a <s> b</s>\nc\n<s>\n d <|endoftext|>e\n\n<unk>f <tool> g h <s>"))
	for name, v := range g.Variants {
		with, err := v.open(t).WithSpecialText()
		if err != nil {
			t.Fatal(err)
		}
		e := with.NewEncoder()
		for _, text := range texts {
			whole, _, err := e.Append(nil, text, false)
			if err != nil {
				t.Fatal(err)
			}
			last := 0
			for end := range len(text) + 1 {
				cut := with.LastCut(text[:end])
				if cut == last {
					continue
				}
				last = cut
				parts, _, _ := e.Append(nil, text[:cut], false)
				if parts, _, _ = e.Append(parts, text[cut:], true); !slices.Equal(parts, whole) {
					t.Fatalf("%s: %q cut at %d: %d, whole: %d", name, text, cut, parts, whole)
				}
			}
		}
	}
}

func TestAroundAText(t *testing.T) {
	const template = `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
		"special_tokens":{"<s>":{"id":"<s>","ids":[7,8],"tokens":["<s>","x"]}}}`
	for raw, want := range map[string]around{
		"":                     {},
		`null`:                 {},
		`{"type":"ByteLevel"}`: {},
		`{"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",4]}`: {before: []uint32{4}, after: []uint32{3}},
		template: {before: []uint32{7, 8}},
		`{"type":"Sequence","processors":[{"type":"ByteLevel"},` + template + `]}`: {before: []uint32{7, 8}},
		`{"type":"Sequence","processors":[` + template + `,` + template + `]}`:     {err: errAround},
		`{"type":"RobertaProcessing","sep":["</s>"],"cls":["<s>",4]}`:              {err: errAround},
		`{"type":"TemplateProcessing","single":[]}`:                                {err: errAround},
		strings.Replace(template, `"A"`, `"B"`, 1):                                 {err: errAround},
		strings.Replace(template, `{"id":"<s>","type_id":0}`, `{"id":"<t>"}`, 1):   {err: errAround},
		`{"type":"Other"}`: {err: errAround},
		`7`:                {err: errAround},
		strings.Repeat(`{"type":"Sequence","processors":[`, 100) + strings.Repeat(`]}`, 100): {err: errAround},
	} {
		if got := parseAround(json.RawMessage(raw), 0); !reflect.DeepEqual(got, want) {
			t.Errorf("%.60s: %+v, want %+v", raw, got, want)
		}
	}
}

// What begins a document is found as what ends it is.
func TestBoundaries(t *testing.T) {
	v := readGolden(t).Variants["llama2"]
	vocabulary := map[string]uint32{"<s>": 1, "</s>": 2}
	added := []hfAdded{{Content: "<s>", Special: true}, {Content: "</s>", Special: true}}
	if b := findBoundary(beginning(), t.TempDir(), vocabulary, added); b.err != nil || b.token != 1 {
		t.Errorf("%+v", b)
	}
	if b := findBoundary(beginning(), t.TempDir(), vocabulary, added[1:]); b.err == nil || !strings.Contains(b.err.Error(), "say it with --bos") {
		t.Errorf("%+v", b)
	}
	if id, err := v.open(t).BOS(); err != nil || id != 1 {
		t.Errorf("%d, %v", id, err)
	}
}
