package pack

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer"
)

// vocabulary is what tiktoken-go/tokenizer does not tell about an encoding. The counts are tiktoken's n_vocab
// (tiktoken_ext/openai_public.py), special tokens and gaps included.
type vocabulary struct {
	name     string
	encoding tokenizer.Encoding
	size     int64
	eot      uint32 // <|endoftext|>
}

func vocabularies() []vocabulary {
	return []vocabulary{
		{"gpt2", tokenizer.R50kBase, 50257, 50256},
		{"r50k_base", tokenizer.R50kBase, 50257, 50256},
		{"p50k_base", tokenizer.P50kBase, 50281, 50256},
		{"p50k_edit", tokenizer.P50kEdit, 50284, 50256},
		{"cl100k_base", tokenizer.Cl100kBase, 100277, 100257},
		{"o200k_base", tokenizer.O200kBase, 200019, 199999},
	}
}

// Tokenizers returns the names that NewTokenizer knows, the default first.
func Tokenizers() []string {
	var names []string
	for _, v := range vocabularies() {
		names = append(names, v.name)
	}
	return names
}

// Tokenizer turns text into tokens of one vocabulary. It may be used by many goroutines.
type Tokenizer struct {
	vocabulary
	codec tokenizer.Codec
}

// NewTokenizer loads a vocabulary, which is part of the program; the empty name means gpt2.
func NewTokenizer(name string) (*Tokenizer, error) {
	if name == "" {
		name = vocabularies()[0].name
	}
	for _, v := range vocabularies() {
		if v.name != name {
			continue
		}
		codec, err := tokenizer.Get(v.encoding)
		if err != nil {
			return nil, fmt.Errorf("load tokenizer %q: %w", name, err)
		}
		codec.SetErrorMode(tokenizer.ErrorModeReplace)
		return &Tokenizer{v, codec}, nil
	}
	return nil, fmt.Errorf("tokenizer %q is not known: use %s", name, strings.Join(Tokenizers(), ", "))
}

// Append appends the tokens of text to dst. Invalid UTF-8 becomes U+FFFD, and repaired says so.
func (t *Tokenizer) Append(dst []uint32, text []byte) (tokens []uint32, repaired bool, err error) {
	ids, _, err := t.codec.Encode(string(text))
	if err != nil {
		return dst, false, err
	}
	for _, id := range ids {
		dst = append(dst, uint32(id))
	}
	return dst, !utf8.Valid(text), nil
}
