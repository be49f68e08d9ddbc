package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// maxConfig bounds the small files beside a tokenizer.json. 4 MiB.
const maxConfig = 4 << 20

// findEOT looks for the token that ends a text: what the files beside a tokenizer.json call eos_token, then eos_token_id,
// and at last the one of the usual names that is an added token.
func findEOT(dir string, vocab map[string]uint32, added []hfAdded) endOfText {
	for _, name := range []string{"tokenizer_config.json", "special_tokens_map.json"} {
		var config struct {
			EOS json.RawMessage `json:"eos_token"`
		}
		if !readConfig(filepath.Join(dir, name), &config) || isNull(config.EOS) {
			continue
		}
		token := eosToken(config.EOS)
		if id, ok := vocab[token]; ok && token != "" {
			return endOfText{token: id}
		}
		return endOfText{err: fmt.Errorf("%s names %q as the end of a text, and the tokenizer.json has no such token: say with --eot which one it is, or none",
			name, token)}
	}
	var config struct {
		EOS json.RawMessage `json:"eos_token_id"`
	}
	if readConfig(filepath.Join(dir, "config.json"), &config) && !isNull(config.EOS) {
		var id uint32
		if err := json.Unmarshal(config.EOS, &id); err == nil && id < maxSize {
			return endOfText{token: id}
		}
		return endOfText{err: fmt.Errorf("config.json has %.40s as the ends of a text: say with --eot which one it is, or none", config.EOS)}
	}
	usual := []string{"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end\u2581of\u2581sentence|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"}
	var found []uint32
	for _, a := range added {
		if a.Special && slices.Contains(usual, a.Content) {
			found = append(found, vocab[a.Content])
		}
	}
	if len(found) == 1 {
		return endOfText{token: found[0]}
	}
	return endOfText{err: errors.New("no tokenizer_config.json beside the tokenizer.json says which token ends a text: say it with --eot, or none")}
}

func readConfig(path string, into any) bool {
	raw, err := readBounded(path, maxConfig)
	return err == nil && json.Unmarshal(raw, into) == nil
}

// eosToken returns the text of a token, which is a string or an object with its content.
func eosToken(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var token struct {
		Content string `json:"content"`
	}
	_ = json.Unmarshal(raw, &token) // then there is no content
	return token.Content
}
