package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// huggingFace is the part of a tokenizer.json that this program reads. Decoders are for tokens that become
// text.
type huggingFace struct {
	Truncation  json.RawMessage `json:"truncation"`
	Padding     json.RawMessage `json:"padding"`
	Added       []hfAdded       `json:"added_tokens"`
	Normalizer  json.RawMessage `json:"normalizer"`
	PreTokenize json.RawMessage `json:"pre_tokenizer"`
	Model       json.RawMessage `json:"model"`
	After       json.RawMessage `json:"post_processor"`
}

type hfAdded struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	Lstrip     bool   `json:"lstrip"`
	Rstrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// hfLoader makes a Tokenizer of a file, part by part.
type hfLoader struct {
	*Tokenizer
	vocab    map[string]uint32 // of the model, and then the added tokens
	byteWise bool              // the pre-tokenizer ends with ByteLevel
}

func parseHuggingFace(raw []byte, dir string) (*Tokenizer, error) {
	var f huggingFace
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, fmt.Errorf("read the tokenizer.json: %w", err)
	}
	if !isNull(f.Truncation) {
		return nil, errors.New("the tokenizer.json cuts texts off (truncation), and packing does not: set it to null")
	}
	if !isNull(f.Padding) {
		return nil, errors.New("the tokenizer.json fills texts up (padding), and packing does not: set it to null")
	}
	l := &hfLoader{Tokenizer: &Tokenizer{}, vocab: map[string]uint32{}}
	for _, step := range []func(huggingFace) error{l.loadNormalizer, l.loadPreTokenizer, l.loadModel, l.loadAdded} {
		if err := step(f); err != nil {
			return nil, fmt.Errorf("the tokenizer.json: %w", err)
		}
	}
	if slices.ContainsFunc(l.stages, func(s stage) bool { return s.next != nil }) {
		l.splits = newSplits(nil)
	}
	l.findCuts()
	l.ids = func(token string) (uint32, bool) { id, ok := l.vocab[token]; return id, ok }
	l.bos, l.eot = findBoundary(beginning(), dir, l.vocab, f.Added), findBoundary(ending(), dir, l.vocab, f.Added)
	l.around = parseAround(f.After, 0)
	return l.Tokenizer, nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// loadAdded gives added tokens their numbers as the package does: those that they have in the model, else the next.
func (l *hfLoader) loadAdded(f huggingFace) error {
	next := int64(len(l.vocab))
	var raw, normalized []addedToken
	seen := map[string]bool{}
	for _, a := range f.Added {
		if a.Content == "" || seen[a.Content] {
			if a.Content != "" {
				return fmt.Errorf("the added token %q is there twice", a.Content)
			}
			continue
		}
		seen[a.Content] = true
		id, ok := l.vocab[a.Content]
		if !ok {
			id = uint32(next)
			next++
		}
		if int64(id) != a.ID {
			return fmt.Errorf("the added token %q has the number %d there, but the tokenizers package gives it %d", a.Content, a.ID, id)
		}
		if len(a.Content) > maxToken {
			return fmt.Errorf("the added token %.20q... has more than %d bytes", a.Content, maxToken)
		}
		if a.SingleWord && !a.Special {
			return fmt.Errorf("the added token %q is for single words, which is not supported", a.Content)
		}
		l.size = max(l.size, int64(id)+1)
		l.vocab[a.Content] = id
		t := addedToken{id, a.Content, a.Lstrip, a.Rstrip, a.Special, a.SingleWord}
		if !a.Normalized {
			raw = append(raw, t)
			continue
		}
		if t.content = l.normalForm(a.Content); t.content == "" || len(t.content) > maxToken {
			return fmt.Errorf("the added token %q has no normalized form, or a long one", a.Content)
		}
		normalized = append(normalized, t)
	}
	for _, list := range [][]addedToken{raw, normalized} {
		texts := map[string]bool{}
		for _, t := range list {
			if texts[t.content] {
				return fmt.Errorf("two added tokens are %q", t.content)
			}
			texts[t.content] = true
		}
	}
	total := 0
	for _, t := range slices.Concat(raw, normalized) {
		total += len(t.content)
	}
	if total > maxText || l.size > maxSize {
		return fmt.Errorf("its added tokens have %d bytes, or numbers up to %d: this program holds %d, and numbers below %d",
			total, l.size-1, maxText, maxSize)
	}
	l.lists = [2][]addedToken{raw, normalized}
	l.added = [2]*addedTokens{newAddedTokens(raw), newAddedTokens(normalized)}
	return nil
}

// normalForm returns the normal form of the text of an added token, or nothing where that takes too long.
func (l *hfLoader) normalForm(content string) string {
	steps := 1 << 20
	text := []byte(content)
	for i := range l.normalizer {
		text = l.normalizer[i].append(nil, text, false, &steps)
	}
	if steps < 0 {
		return ""
	}
	return string(text)
}

// kindOf returns the type of a part.
func kindOf(raw json.RawMessage) (string, error) {
	var head struct {
		Type string `json:"type"`
	}
	err := json.Unmarshal(raw, &head)
	return head.Type, err
}

// decode reads a part, and refuses one that has keys besides its type and these.
func decode(raw json.RawMessage, to any, keys ...string) error {
	if err := json.Unmarshal(raw, to); err != nil {
		return err
	}
	return sameKeys(raw, keys...)
}

// sameKeys reports whether raw has only the keys that are known, besides its type. Unknown parts may matter.
func sameKeys(raw json.RawMessage, names ...string) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return err
	}
	for key := range keys {
		if key != "type" && !slices.Contains(names, key) {
			return fmt.Errorf("it has the key %q, which this program does not know", key)
		}
	}
	return nil
}
