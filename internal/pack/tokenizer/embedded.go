package tokenizer

import (
	"fmt"
	"os"
	"strings"

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
		{"cl100k_base", tiktoken.Cl100kBase, cl100k(3, false), 100277, 100257},
		{"o200k_base", tiktoken.O200kBase, o200k(3, true), 200019, 199999},
	}
}

// Names returns the names of the vocabularies that are part of the program, the default first.
func Names() []string {
	var names []string
	for _, v := range vocabularies() {
		names = append(names, v.name)
	}
	return names
}

// Open loads a tokenizer: an embedded vocabulary by its name, of which the empty one means gpt2; else a file, or a model's
// directory. The files are tokenizer.json, tekken.json and tiktoken's rank files, known by their content.
//
// It takes about a tenth of a second for an embedded one, and a second for the largest files.
func Open(name string) (*Tokenizer, error) {
	if name == "" {
		name = vocabularies()[0].name
	}
	for _, v := range vocabularies() {
		if v.name == name {
			return v.open()
		}
	}
	if _, err := os.Stat(name); err != nil && !strings.ContainsAny(name, `/\.`) {
		return nil, fmt.Errorf("tokenizer %q is none of %s, and no file: name one of these, a model's directory, or its tokenizer.json",
			name, strings.Join(Names(), ", "))
	}
	t, err := openFile(name)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer %s: %w", name, err)
	}
	return t, nil
}

func (v vocabulary) open() (*Tokenizer, error) {
	codec, err := tiktoken.Get(v.encoding)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer %q: %w", v.name, err)
	}
	t := rankTokenizer(v.name, loadRanks(codec, v.size), v.split)
	t.size, t.eot.token, t.bos.err = v.size, v.eot, errNoBOS
	t.special(openaiSpecial(v.name))
	return t, nil
}

// rankTokenizer returns a tokenizer with tiktoken's behaviour.
func rankTokenizer(name string, r ranks, split splitter) *Tokenizer {
	return &Tokenizer{
		name: name, model: model{ranks: r}, splits: newSplits(split), stages: []stage{{next: split}},
		cuts: cuts{letterSpace: true, lines: true},
	}
}
