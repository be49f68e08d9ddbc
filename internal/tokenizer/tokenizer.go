package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	tiktoken "github.com/tiktoken-go/tokenizer"
)

// vocabulary is the facts about an encoding that tiktoken-go/tokenizer does not tell. The counts are tiktoken's n_vocab
// (tiktoken_ext/openai_public.py), special tokens and gaps included.
type vocabulary struct {
	name     string
	encoding tiktoken.Encoding
	split    splitter
	size     int64
	eot      uint32 // <|endoftext|>
}

func vocabularies() []vocabulary {
	return []vocabulary{
		{"gpt2", tiktoken.R50kBase, gpt2, 50257, 50256},
		{"r50k_base", tiktoken.R50kBase, gpt2, 50257, 50256},
		{"p50k_base", tiktoken.P50kBase, gpt2, 50281, 50256},
		{"p50k_edit", tiktoken.P50kEdit, gpt2, 50284, 50256},
		{"cl100k_base", tiktoken.Cl100kBase, cl100k, 100277, 100257},
		{"o200k_base", tiktoken.O200kBase, o200k, 200019, 199999},
	}
}

// Names returns the names that Open knows, the default first.
func Names() []string {
	var names []string
	for _, v := range vocabularies() {
		names = append(names, v.name)
	}
	return names
}

// Tokenizer is a vocabulary, ready to use. It may be shared by many goroutines.
type Tokenizer struct {
	vocabulary
	codec  tiktoken.Codec
	ranks  ranks
	splits *splits
}

// Open loads a vocabulary, which is part of the program; the empty name means gpt2. It takes about a tenth of
// a second.
func Open(name string) (*Tokenizer, error) {
	if name == "" {
		name = vocabularies()[0].name
	}
	for _, v := range vocabularies() {
		if v.name != name {
			continue
		}
		codec, err := tiktoken.Get(v.encoding)
		if err != nil {
			return nil, fmt.Errorf("load tokenizer %q: %w", name, err)
		}
		t := &Tokenizer{v, codec, loadRanks(codec, v.size), newSplits(v.split)}
		codec.SetErrorMode(tiktoken.ErrorModeReplace)
		return t, nil
	}
	return nil, fmt.Errorf("tokenizer %q is not known: use %s", name, strings.Join(Names(), ", "))
}

// Name returns the name, as manifests have it.
func (t *Tokenizer) Name() string { return t.name }

// Size returns a bound: every token is less.
func (t *Tokenizer) Size() int64 { return t.size }

// EOT returns the token that ends a document, or an error that says why there is none.
func (t *Tokenizer) EOT() (uint32, error) { return t.eot, nil }

// Bounds of an Encoder's memory: it keeps pieces of up to cachePiece bytes that are not tokens themselves, with their
// tokens. Text repeats its words, so few pieces need merging. Full, it holds about 10 MiB.
const (
	cachePieces = 1 << 15
	cachePiece  = 64
)

// Encoder turns text into tokens. One goroutine uses it.
type Encoder struct {
	*Tokenizer
	merger merger
	cache  map[string][]uint32
}

// NewEncoder returns an Encoder of t's vocabulary.
func (t *Tokenizer) NewEncoder() *Encoder {
	return &Encoder{t, merger{ranks: t.ranks}, map[string][]uint32{}}
}

// Append appends the tokens of text to dst. Invalid UTF-8 becomes U+FFFD, and repaired says so. The last
// argument says that text goes on with a document whose parts before it ended where LastCut said.
//
// The tokens are those of OpenAI's tiktoken. The library's own Encode is several times slower and not exact. Its
// generated matchers leave out U+007F, and end \s*[\r\n]+ at the first line end instead of the last.
func (e *Encoder) Append(dst []uint32, text []byte, _ bool) (tokens []uint32, repaired bool, err error) {
	if !utf8.Valid(text) {
		// The library knows which bytes become one U+FFFD together, and tokenizes the repaired text.
		_, pieces, err := e.codec.Encode(string(text))
		if err != nil {
			return dst, true, err
		}
		text, repaired = []byte(strings.Join(pieces, "")), true
	}
	for i := 0; i < len(text); {
		end := e.splits.next(e.splits, text, i)
		dst = e.piece(dst, text[i:end])
		i = end
	}
	return dst, repaired, nil
}

func (e *Encoder) piece(dst []uint32, piece []byte) []uint32 {
	if id, ok := e.ranks[string(piece)]; ok {
		return append(dst, id)
	}
	if tokens, ok := e.cache[string(piece)]; ok {
		return append(dst, tokens...)
	}
	text, start := string(piece), len(dst)
	dst = e.merger.append(dst, text)
	if len(text) <= cachePiece {
		if len(e.cache) >= cachePieces {
			clear(e.cache)
		}
		e.cache[text] = slices.Clone(dst[start:])
	}
	return dst
}
