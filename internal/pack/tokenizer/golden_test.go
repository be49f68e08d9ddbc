package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// golden is testdata/variants.json: kinds of tokenizers, and what the tokenizers package makes of hard texts.
// tests/data/golden/tokenizers_files.py writes it.
type golden struct {
	Texts    [][]byte           `json:"texts"`
	Variants map[string]variant `json:"variants"`
}

type variant struct {
	Base   string                     `json:"base"`
	Keys   map[string]json.RawMessage `json:"keys"`
	Tokens []string                   `json:"tokens"`
}

func readGolden(t testing.TB) golden {
	t.Helper()
	var g golden
	if err := json.Unmarshal(testdata(t, "variants.json"), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// file returns the tokenizer.json of a variant: its base with other keys.
func (v variant) file(t testing.TB) []byte {
	t.Helper()
	var file, model map[string]json.RawMessage
	var added []json.RawMessage
	if err := json.Unmarshal(testdata(t, v.Base+".json"), &file); err != nil {
		t.Fatal(err)
	}
	for key, value := range v.Keys {
		if inner, ok := strings.CutPrefix(key, "model."); ok {
			unmarshal(t, file["model"], &model)
			model[inner] = value
			file["model"] = marshal(t, model)
		} else if key == "added_tokens+" {
			var more []json.RawMessage
			unmarshal(t, file["added_tokens"], &added)
			unmarshal(t, value, &more)
			file["added_tokens"] = marshal(t, append(added, more...))
		} else {
			file[key] = value
		}
	}
	return marshal(t, file)
}

func unmarshal(t testing.TB, raw []byte, to any) {
	t.Helper()
	if err := json.Unmarshal(raw, to); err != nil {
		t.Fatal(err)
	}
}

func marshal(t testing.TB, from any) []byte {
	t.Helper()
	raw, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// open parses each kind once: under the race detector that takes a tenth of a second.
func (v variant) open(t testing.TB) *Tokenizer {
	t.Helper()
	key := fmt.Sprintf("%s %s", v.Base, v.Keys)
	if tok, ok := opened.Load(key); ok {
		return tok.(*Tokenizer)
	}
	tok, err := parse(v.file(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	opened.Store(key, tok)
	return tok
}

// Every kind gives the tokens of the tokenizers package, for each text and when texts follow each other in one Encoder.
func TestSameTokensAsTheTokenizersPackage(t *testing.T) {
	g := readGolden(t)
	if len(g.Variants) < 25 || len(g.Texts) < 25 {
		t.Fatalf("%d kinds and %d texts", len(g.Variants), len(g.Texts))
	}
	for name, v := range g.Variants {
		e := v.open(t).NewEncoder()
		for round := range 2 {
			for i, text := range g.Texts {
				got, repaired, err := e.Append(nil, text, false)
				if err != nil || repaired {
					t.Errorf("%s: %q: repaired %v, %v", name, text, repaired, err)
				}
				if s := strings.Trim(fmt.Sprint(got), "[]"); s != v.Tokens[i] {
					t.Errorf("%s: round %d: %q:\n got %s\nwant %s", name, round, text, s, v.Tokens[i])
				}
			}
		}
	}
}

// Wherever a text may be cut, its parts give the tokens of the whole.
func TestPartsOfEveryKind(t *testing.T) {
	g := readGolden(t)
	pieces := []string{
		" ", "  ", "\n", "\r", "\t", "/", ".", "'", "s", "A", "the", " the", "1", "字", "字 ", "\u00a0", "\u0301", "\u2581", "<tool>", "<left>",
		"<right>", "<s>", "\u0600", "\u0d4e", "ﬁ", "e", "\u200b", "é", "\u3164", "!",
	}
	random := rand.New(rand.NewPCG(3, 4))
	cut := map[string]int{}
	for name, v := range g.Variants {
		e := v.open(t).NewEncoder()
		for range rounds(2000) {
			var text []byte
			for range 2 + random.IntN(9) {
				text = append(text, pieces[random.IntN(len(pieces))]...)
			}
			at := e.LastCut(text[:random.IntN(len(text)+1)])
			if at == 0 {
				continue
			}
			cut[name]++
			whole, _, _ := e.Append(nil, text, false)
			parts, _, _ := e.Append(nil, text[:at], false)
			if parts, _, _ = e.Append(parts, text[at:], true); !slices.Equal(parts, whole) {
				t.Errorf("%s: %q cut at %d: %v, whole: %v", name, text, at, parts, whole)
				break
			}
		}
	}
	for _, name := range []string{"gpt2", "neox", "llama3", "qwen2", "tekken", "gpt4o", "deepseek", "smollm", "possessive", "between", "roberta", "llama2", "llama2-first", "gemma", "t5", "xlm-r"} {
		if cut[name] == 0 {
			t.Errorf("%s is never cut", name)
		}
	}
	if cut["plain"]+cut["next"]+cut["previous"]+cut["together"] > 0 {
		t.Errorf("texts that nothing surely splits are cut: %v", cut)
	}
}

// The splitters that are written by hand find what their patterns do, by our own engine.
func TestKnownPatterns(t *testing.T) {
	g := readGolden(t)
	seen := map[string]bool{}
	var all func(raw json.RawMessage)
	all = func(raw json.RawMessage) {
		var part struct {
			Parts   []json.RawMessage `json:"pretokenizers"`
			Pattern struct{ Regex string }
		}
		if len(raw) == 0 || raw[0] != '{' || json.Unmarshal(raw, &part) != nil {
			return
		}
		for _, p := range part.Parts {
			all(p)
		}
		if split := known(part.Pattern.Regex); split != nil && !seen[part.Pattern.Regex] {
			seen[part.Pattern.Regex] = true
			sameSplits(t, part.Pattern.Regex, split, g.Texts)
		}
	}
	for _, v := range g.Variants {
		all(v.Keys["pre_tokenizer"])
	}
	sameSplits(t, `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, gpt2, g.Texts)
	if len(seen) < 5 {
		t.Errorf("only %d known patterns were seen", len(seen))
	}
}

func sameSplits(t *testing.T, text string, split splitter, texts [][]byte) {
	t.Helper()
	p, err := parsePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	s := newSplits(split)
	check := func(text []byte) {
		t.Helper()
		steps := 1 << 30
		for i := 0; i < len(text); {
			start, end := p.find(text, i, &steps)
			if got := split(s, text, i); start != i || got != end {
				t.Fatalf("%q at byte %d: the splitter ends at %d, the pattern %d to %d", text, i, got, start, end)
			}
			i = end
		}
	}
	alphabet := []rune("  \n\r\t\u00a0''sStTrReElLvVmMdDſabXYZ019٣/!.-_\u0301ʰ中é👩ǅ\ufffd")
	random := rand.New(rand.NewPCG(5, 6))
	for range rounds(5000) {
		runes := make([]rune, 1+random.IntN(24))
		for i := range runes {
			runes[i] = alphabet[random.IntN(len(alphabet))]
		}
		check([]byte(string(runes)))
	}
	for _, text := range texts {
		check(text)
	}
}

// Invalid UTF-8 becomes one U+FFFD for each longest start of a rune, as in Python and Rust.
func TestRepair(t *testing.T) {
	for text, want := range map[string]string{
		"a\xffb": "a\ufffdb", "\xe4\xb8": "\ufffd", "\xe4\xb8x": "\ufffdx", "\xf0\x9f\x98": "\ufffd", "\xf0\x9f\x98\xf0": "\ufffd\ufffd",
		"\xed\xa0\x80": "\ufffd\ufffd\ufffd", "\xf5\x80": "\ufffd\ufffd", "\xc0\xaf": "\ufffd\ufffd", "\xe0\x80\x80": "\ufffd\ufffd\ufffd",
		"\xf4\x90\x80\x80": "\ufffd\ufffd\ufffd\ufffd", "\xc3": "\ufffd", "\xc3\xc3\xa9": "\ufffdé", "\ufffd\x80": "\ufffd\ufffd", "": "",
	} {
		if got := string(repairUTF8(nil, []byte(text))); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func FuzzEveryKind(f *testing.F) {
	g := readGolden(f)
	for _, text := range g.Texts {
		f.Add(text)
	}
	encoders := map[string]*Encoder{}
	for name, v := range g.Variants {
		encoders[name] = v.open(f).NewEncoder()
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 2048 {
			return
		}
		for name, e := range encoders {
			got, repaired, err := e.Append(nil, text, false)
			if err != nil || repaired == utf8.Valid(text) {
				t.Fatalf("%s: repaired %v, %v", name, repaired, err)
			}
			for _, id := range got {
				if int64(id) >= e.Size() {
					t.Fatalf("%s: the token %d, of %d", name, id, e.Size())
				}
			}
			fresh, _, _ := e.Tokenizer.NewEncoder().Append(nil, text, false)
			if !reflect.DeepEqual(fresh, got) {
				t.Fatalf("%s: %v, without what was remembered %v", name, got, fresh)
			}
			if at := e.LastCut(text); at > 0 {
				parts, _, _ := e.Append(nil, text[:at], false)
				if parts, _, _ = e.Append(parts, text[at:], true); !slices.Equal(parts, got) {
					t.Fatalf("%s: cut at %d: %v, whole %v", name, at, parts, got)
				}
			}
		}
	})
}
