package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// rankFile is the knowledge that a list of ranks lacks of itself.
type rankFile struct {
	sum   string // SHA-256 of the file
	split splitter
	size  int64
	eot   uint32
	named map[string]uint32
	bos   string // a name of named, or empty
}

// rankFiles are the lists that are known: OpenAI's, with the checksums of tiktoken (tiktoken_ext/openai_public.py), and
// those of Llama 3 and 4 (llama_models).
func rankFiles() []rankFile {
	const begin = "<|begin_of_text|>"
	llama := func(first uint32) map[string]uint32 {
		return map[string]uint32{begin: first, "<|end_of_text|>": first + 1}
	}
	return []rankFile{
		{"306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", gpt2, 50257, 50256, openaiSpecial("r50k_base"), ""},
		{"94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069", gpt2, 50281, 50256, openaiSpecial("p50k_base"), ""},
		{"223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7", cl100k(3, false), 100277, 100257, openaiSpecial("cl100k_base"), ""},
		{"446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d", o200k(3, true), 200019, 199999, openaiSpecial("o200k_base"), ""},
		{"82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55", cl100k(3, false), 128256, 128001, llama(128000), begin},
		{"d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed", o200k(3, true), 201136, 200001, llama(200000), begin},
	}
}

// isRankFile reports whether text begins with a line of base64, a space and a number.
func isRankFile(text []byte) bool {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	_, _, err := parseRank(bytes.TrimSuffix(line, []byte("\r")))
	return err == nil
}

func parseRank(line []byte) (token []byte, rank uint64, err error) {
	encoded, number, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return nil, 0, errors.New("it is not a token in base64, a space, and its rank")
	}
	if rank, err = strconv.ParseUint(string(number), 10, 32); err != nil {
		return nil, 0, errors.New("the rank is not a number")
	}
	if token, err = base64.StdEncoding.DecodeString(string(encoded)); err != nil || len(token) == 0 {
		return nil, 0, errors.New("the token is not in base64, or empty")
	}
	return token, rank, nil
}

// parseRanks loads a list of ranks, whose checksum says which pattern belongs to it.
func parseRanks(raw []byte) (*Tokenizer, error) {
	sum := sha256.Sum256(raw)
	for _, known := range rankFiles() {
		if known.sum != hex.EncodeToString(sum[:]) {
			continue
		}
		r := ranks{}
		for number := 1; len(raw) > 0; number++ {
			line, rest, _ := bytes.Cut(raw, []byte("\n"))
			raw = rest
			if len(line) == 0 {
				continue
			}
			token, rank, err := parseRank(line)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", number, err)
			}
			r[string(token)] = uint32(rank)
		}
		t := rankTokenizer("", r, known.split)
		t.size, t.eot.token = known.size, known.eot
		t.special(known.named)
		t.bos.token = known.named[known.bos]
		if known.bos == "" {
			t.bos.err = errNoBOS
			return t, nil
		}
		t.noSpecialText = errors.New("a rank file of Llama does not list its special tokens: name the model's tokenizer.json to find them in texts")
		return t, nil
	}
	return nil, errors.New("the list of ranks is none of OpenAI's and Llama's, and it does not say by which pattern text is split: " +
		"name the model's tokenizer.json instead")
}

// tekken is Mistral's file (mistral_common/tokens/tokenizers/tekken.py).
type tekken struct {
	Config struct {
		Pattern string `json:"pattern"`
		Size    int64  `json:"default_vocab_size"`
		Special int64  `json:"default_num_special_tokens"`
	} `json:"config"`
	Vocab []struct {
		Rank  int64  `json:"rank"`
		Bytes []byte `json:"token_bytes"`
	} `json:"vocab"`
	SpecialTokens []struct {
		Rank int64  `json:"rank"`
		Text string `json:"token_str"`
	} `json:"special_tokens"`
}

func parseTekken(raw []byte) (*Tokenizer, error) {
	var f tekken
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, fmt.Errorf("read the tekken.json: %w", err)
	}
	inner := f.Config.Size - f.Config.Special
	if f.Config.Special < 0 || inner <= 0 || inner > int64(len(f.Vocab)) || f.Config.Size > maxSize {
		return nil, fmt.Errorf("the tekken.json has %d tokens, %d of them special, and lists %d", f.Config.Size, f.Config.Special, len(f.Vocab))
	}
	split := known(f.Config.Pattern)
	if split == nil {
		return nil, fmt.Errorf("the tekken.json splits text by %q, which this program does not know", f.Config.Pattern)
	}
	r := make(ranks, inner)
	for i, v := range f.Vocab[:inner] {
		if v.Rank != int64(i) || len(v.Bytes) == 0 {
			return nil, fmt.Errorf("the tekken.json has the rank %d in the place of %d, or an empty token", v.Rank, i)
		}
		r[string(v.Bytes)] = uint32(v.Rank + f.Config.Special)
	}
	named := map[string]uint32{}
	if f.SpecialTokens == nil { // files before version 8 leave it to the library
		named = map[string]uint32{"<unk>": 0, "<s>": 1, "</s>": 2}
	}
	for _, s := range f.SpecialTokens {
		if s.Rank < 0 || s.Rank >= f.Config.Special {
			return nil, fmt.Errorf("the tekken.json has the special token %q of rank %d, and only %d of them", s.Text, s.Rank, f.Config.Special)
		}
		named[s.Text] = uint32(s.Rank)
	}
	t := rankTokenizer("", r, split)
	t.size = f.Config.Size
	t.special(named)
	t.noSpecialText = errors.New("a tekken.json is for Mistral's library, which never finds special tokens in texts: leave them as they are, or name a tokenizer.json")
	begin, ok := named["<s>"]
	if t.bos.token = begin; !ok {
		t.bos.err = errors.New("the tekken.json names no <s>: say with --bos which token begins a document, or none")
	}
	end, ok := named["</s>"]
	if t.eot.token = end; !ok {
		t.eot.err = errors.New("the tekken.json names no </s>: say with --eot which token ends a document, or none")
	}
	return t, nil
}
