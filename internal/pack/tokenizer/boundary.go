package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// boundary is the token that begins or ends a document, or why there is none.
type boundary struct {
	token uint32
	err   error
}

// maxConfig bounds the small files beside a tokenizer.json. 4 MiB.
const maxConfig = 4 << 20

// side is which end of a document a boundary is at. It has its keys in the files beside a tokenizer.json, words for errors, and the usual
// names.
type side struct {
	key, verb, noun, flag string
	usual                 []string
}

func beginning() side {
	return side{"bos_token", "begins", "beginning", "--bos", []string{
		"<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|begin\u2581of\u2581sentence|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
	}}
}

func ending() side {
	return side{"eos_token", "ends", "end", "--eot", []string{
		"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end\u2581of\u2581sentence|>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
	}}
}

// findBoundary looks for the token at one side of a text. The files beside a tokenizer.json call it bos_token or eos_token, then
// bos_token_id or eos_token_id. At last it takes the one of the usual names that is an added token.
func findBoundary(of side, dir string, vocab map[string]uint32, added []hfAdded) boundary {
	for _, name := range []string{"tokenizer_config.json", "special_tokens_map.json"} {
		var config map[string]json.RawMessage
		if !readConfig(filepath.Join(dir, name), &config) || isNull(config[of.key]) {
			continue
		}
		token := tokenText(config[of.key])
		if id, ok := vocab[token]; ok && token != "" {
			return boundary{token: id}
		}
		return boundary{err: fmt.Errorf("%s names %q as the %s of a text, and the tokenizer.json has no such token: say with %s which one it is, or none",
			name, token, of.noun, of.flag)}
	}
	var config map[string]json.RawMessage
	if raw := of.key + "_id"; readConfig(filepath.Join(dir, "config.json"), &config) && !isNull(config[raw]) {
		var id uint32
		if err := json.Unmarshal(config[raw], &id); err == nil && id < maxSize {
			return boundary{token: id}
		}
		return boundary{err: fmt.Errorf("config.json has %.40s as the %ss of a text: say with %s which one it is, or none", config[raw], of.noun, of.flag)}
	}
	var found []uint32
	for _, a := range added {
		if a.Special && slices.Contains(of.usual, a.Content) {
			found = append(found, vocab[a.Content])
		}
	}
	if len(found) == 1 {
		return boundary{token: found[0]}
	}
	return boundary{err: errors.New("no tokenizer_config.json beside the tokenizer.json says which token " + of.verb + " a text: say it with " + of.flag + ", or none")}
}

func readConfig(path string, into any) bool {
	raw, err := readBounded(path, maxConfig)
	return err == nil && json.Unmarshal(raw, into) == nil
}

// tokenText returns the text of a token, which is a string or an object with its content.
func tokenText(raw json.RawMessage) string {
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
