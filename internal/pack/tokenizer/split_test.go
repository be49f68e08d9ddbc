package tokenizer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	tiktoken "github.com/tiktoken-go/tokenizer"
)

// patterns are tiktoken-go/tokenizer's, in a group: the package registers generated matchers for the bare patterns,
// and those are not exact. What is left is regexp2's interpreter.
func patterns() map[string]*regexp2.Regexp {
	gpt2 := `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	return map[string]*regexp2.Regexp{
		"gpt2":        group(gpt2),
		"p50k_base":   group(gpt2),
		"cl100k_base": group(`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`),
		"o200k_base": group(`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
			`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
			`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`),
	}
}

func group(pattern string) *regexp2.Regexp {
	return regexp2.MustCompile("(?:"+pattern+")", regexp2.None)
}

// opened are the tokenizers that tests share, by name.
var opened sync.Map

func newEncoder(t testing.TB, name string) *Encoder {
	t.Helper()
	if tok, ok := opened.Load(name); ok {
		return tok.(*Tokenizer).NewEncoder()
	}
	tok, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	opened.Store(name, tok)
	return tok.NewEncoder()
}

// rounds is how many random texts a test makes: in `make test` a quarter, and with HBMFS_TEST_LONG, as `make soak-random` sets it, all.
func rounds(all int) int {
	if os.Getenv("HBMFS_TEST_LONG") != "" {
		return all
	}
	return all / 4
}

// oracle compares an Encoder with the pattern and with the library.
type oracle struct {
	*Encoder
	codec   tiktoken.Codec
	pattern *regexp2.Regexp
}

func codecOf(t testing.TB, name string) tiktoken.Codec {
	t.Helper()
	for _, v := range vocabularies() {
		if v.name == name {
			codec, err := tiktoken.Get(v.encoding)
			if err != nil {
				t.Fatal(err)
			}
			codec.SetErrorMode(tiktoken.ErrorModeReplace)
			return codec
		}
	}
	t.Fatalf("no vocabulary is called %q", name)
	return nil
}

func newOracles(t testing.TB) []oracle {
	var all []oracle
	for name, pattern := range patterns() {
		all = append(all, oracle{newEncoder(t, name), codecOf(t, name), pattern})
	}
	return all
}

// check fails where text is cut other than by the pattern, or where a piece gives other tokens than the library's.
func (o oracle) check(t *testing.T, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		text = o.repaired(t, text)
	}
	var want, pieces []string
	match, err := o.pattern.FindStringMatch(text)
	for ; match != nil && err == nil; match, err = o.pattern.FindNextMatch(match) {
		want = append(want, match.String())
	}
	if err != nil {
		t.Fatal(err)
	}
	var tokens []uint32
	for i := 0; i < len(text); {
		end := o.splits.next(o.splits, []byte(text), i)
		if end <= i {
			t.Fatalf("%s: %q has no piece at byte %d", o.name, text, i)
		}
		pieces = append(pieces, text[i:end])
		tokens = append(tokens, o.tokens(t, text[i:end])...)
		i = end
	}
	if !slices.Equal(pieces, want) {
		i := 0
		for i < min(len(pieces), len(want)) && pieces[i] == want[i] {
			i++
		}
		t.Fatalf("%s: cut into %q, want %q", o.name, pieces[i:min(i+3, len(pieces))], want[i:min(i+3, len(want))])
	}
	got, _, err := o.Append(nil, []byte(text), false)
	if err != nil || !slices.Equal(got, tokens) {
		i := 0
		for i < min(len(got), len(tokens)) && got[i] == tokens[i] {
			i++
		}
		t.Fatalf("%s: %.200q: got %v after %d tokens, want %v (%v)", o.name, text, got[i:min(i+5, len(got))], i, tokens[i:min(i+5, len(tokens))], err)
	}
}

func (o oracle) repaired(t *testing.T, text string) string {
	got, repaired, err := o.Append(nil, []byte(text), false)
	if err != nil || !repaired {
		t.Fatalf("%s: %q is not repaired (%v)", o.name, text, err)
	}
	ids := make([]uint, len(got))
	for i, id := range got {
		ids[i] = uint(id)
	}
	text, err = o.codec.Decode(ids)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// tokens are the library's tokens of one piece, or those by definition where the library's matcher is wrong: it would
// cut lines of blanks again, and it leaves out U+007F.
func (o oracle) tokens(t *testing.T, piece string) []uint32 {
	if strings.TrimSpace(piece) == "" && strings.ContainsAny(piece, "\r\n") || strings.Contains(piece, "\x7f") {
		return o.merge(piece)
	}
	ids, _, err := o.codec.Encode(piece)
	if err != nil {
		t.Fatal(err)
	}
	var tokens []uint32
	for _, id := range ids {
		tokens = append(tokens, uint32(id))
	}
	return tokens
}

// merge is byte-pair encoding by its definition.
func (o oracle) merge(piece string) []uint32 {
	var parts []string
	for i := range len(piece) {
		parts = append(parts, piece[i:i+1])
	}
	for {
		best, at := uint32(math.MaxUint32), -1
		for i := range len(parts) - 1 {
			if rank, ok := o.model.ranks[parts[i]+parts[i+1]]; ok && rank < best {
				best, at = rank, i
			}
		}
		if at < 0 {
			break
		}
		parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
	}
	var tokens []uint32
	for _, p := range parts {
		tokens = append(tokens, o.model.ranks[p])
	}
	return tokens
}

// hardTexts are the corners of the patterns.
func hardTexts() []string {
	return []string{
		"", " ", "\n", "x \n", "a\n  \n b", "a\n\t\n\tb", "x  \n\n   \n  y", "\r\n\r\n \r x", "a \u00a0\u2003b", "  \u3000x ",
		"it's IT'S it'S we'RE they've I'LL he'd 'tis 'sx 'LLx don'ſt 'ſ x'ſ' '", "'", "''s", "'r", "'l", "'re", " 'm",
		"1234567 x1y22z333 ٣٤٥٦ Ⅷ²½", "CamelCaseHTTPServer iPhone ǅabc ǅ", "ʰA ʰa AʰB aʰʰB", "e\u0301A \u0301A \u0301a A\u0301A\u0301", "\u0301\u0301", " \u0301A",
		"中文字符A中B ひらがな カタカナABC", "a//b /\n/\r\n x", "!!!\n\n\n/// ...\r\n", "\u200b\u200d👩‍👩‍👧‍👦 x", "<|endoftext|>", "\x00\x01\x7f",
		strings.Repeat("a", 500), strings.Repeat("=-", 300), strings.Repeat(" ", 300) + "x", strings.Repeat("AZ", 200), strings.Repeat(" \n", 200),
	}
}

func TestSameTokensAsTheLibrary(t *testing.T) {
	text := string(benchText(t, 1<<20))
	for _, o := range newOracles(t) {
		for _, hard := range hardTexts() {
			o.check(t, hard)
		}
		o.check(t, text[:rounds(20_000)])
	}
}

// Every rune is in the classes that the pattern's character sets give it.
func TestClassOfEveryRune(t *testing.T) {
	var all []rune
	var classes []class
	s, later := newSplits(nil), laterCategories()
	for r := rune(0); r < 0xe1000; r++ {
		if utf8.ValidRune(r) && (r < 0x33000 || r >= 0xe0000) && // between them, and above, nothing is assigned
			!slices.ContainsFunc(later, func(x categoryRange) bool { return x.lo <= r && r <= x.hi }) {
			got, _ := s.at([]byte(string(r)), 0)
			all, classes = append(all, r), append(classes, got)
		}
	}
	for want, set := range map[class]string{
		isMark:   `\p{M}`,
		isLetter: `\p{L}`, isNumber: `\p{N}`, isSpace: `\s`, isNewline: `[\r\n]`, isOther: `[^\s\p{L}\p{N}]`,
		isUpper: `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, isLower: `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`,
	} {
		in := make([]bool, len(all))
		re := group(set + "+")
		match, err := re.FindRunesMatch(all)
		for ; match != nil && err == nil; match, err = re.FindNextMatch(match) {
			for i := range match.RuneLength {
				in[match.RuneIndex+i] = true
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range all {
			if got := classes[i] & want; (got != 0) != in[i] {
				t.Errorf("%U in %s: got %v", r, set, got)
			}
		}
	}
}

// Random texts of runes that matter to the patterns.
func TestRandomTexts(t *testing.T) {
	alphabet := []rune("  \n\r\t\u00a0''sStTrReElLvVmMdDſabXYZ019٣/!.-_\u0301ʰ中é👩ǅ\ufffd")
	random := rand.New(rand.NewPCG(1, 2))
	for _, o := range newOracles(t) {
		for range rounds(2_000) {
			text := make([]rune, 1+random.IntN(24))
			for i := range text {
				text[i] = alphabet[random.IntN(len(alphabet))]
			}
			o.check(t, string(text))
		}
	}
}

// Where the library's matcher is wrong, these are tiktoken's tokens.
func TestWhereTheLibraryIsWrong(t *testing.T) {
	for _, tc := range []struct {
		tokenizer, text string
		want            []string
	}{
		{"cl100k_base", "a\n  \n b", []string{"a", "\n  \n", " b"}},
		{"o200k_base", "a\n\t\n\tb", []string{"a", "\n\t\n", "\tb"}},
		{"gpt2", "a\x7fb", []string{"a", "\x7f", "b"}},
		{"cl100k_base", "1\x7f2", []string{"1", "\x7f", "2"}},
	} {
		tok := newEncoder(t, tc.tokenizer)
		var want []uint32
		for _, piece := range tc.want {
			want = append(want, oracle{Encoder: tok}.merge(piece)...)
		}
		if got, _, err := tok.Append(nil, []byte(tc.text), false); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q: got %v, want %v (%v)", tc.tokenizer, tc.text, got, want, err)
		}
	}
}

func TestFullCacheStillGivesTheTokens(t *testing.T) {
	tok := newEncoder(t, "gpt2")
	for i := range cachePieces + 1000 {
		tok.cache[fmt.Sprint("filler ", i)] = nil
	}
	text := []byte("zyzzyvas qwertzuiop zyzzyvas")
	want, _, _ := newEncoder(t, "gpt2").Append(nil, text, false)
	if got, _, _ := tok.Append(nil, text, false); !slices.Equal(got, want) || len(tok.cache) > 10 {
		t.Errorf("got %v, want %v, %d pieces are remembered", got, want, len(tok.cache))
	}
}

func FuzzTokens(f *testing.F) {
	for _, text := range hardTexts() {
		f.Add(text)
	}
	f.Add("a\xff\xe4\xb8 b")
	oracles := newOracles(f)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		for _, o := range oracles {
			o.check(t, text)
		}
	})
}
