package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// BOS returns the token that begins a document, or an error that says why there is none.
func (t *Tokenizer) BOS() (uint32, error) { return t.bos.token, t.bos.err }

// EOT returns the token that ends a document, or an error that says why there is none.
func (t *Tokenizer) EOT() (uint32, error) { return t.eot.token, t.eot.err }

// Around returns the tokens that the tokenizers package adds before and after one text with add_special_tokens, which a
// tokenizer.json calls its post_processor. The error says why that is not known.
func (t *Tokenizer) Around() (before, after []uint32, err error) {
	return t.around.before, t.around.after, t.around.err
}

// around is the tokens before and after a text, or the reason why they are not known.
type around struct {
	before, after []uint32
	err           error
}

// WithSpecialText returns a tokenizer for which the name of a special token in a text is that token, as by default in the tokenizers
// package, and as with tiktoken's allowed_special="all".
func (t *Tokenizer) WithSpecialText() (*Tokenizer, error) {
	if t.noSpecialText != nil {
		return nil, t.noSpecialText
	}
	with := *t
	for i, list := range t.lists {
		list = slices.Clone(list)
		for k := range list {
			if list[k].singleWord {
				return nil, fmt.Errorf("the special token %q is for single words, which is not supported: leave special tokens in texts as they are", list[k].content)
			}
			list[k].special = false
		}
		with.added[i] = newAddedTokens(list)
		with.cuts.added(list)
	}
	with.cuts.lines = with.cuts.lines && with.cuts.letterSpace
	return &with, nil
}

// postProcessor is a part of a tokenizer.json: the kinds that add tokens.
type postProcessor struct {
	Type       string            `json:"type"`
	Processors []json.RawMessage `json:"processors"` // Sequence
	Single     []struct {        // TemplateProcessing
		Special *struct {
			ID string `json:"id"`
		} `json:"SpecialToken"`
		Sequence *struct {
			ID string `json:"id"`
		} `json:"Sequence"`
	} `json:"single"`
	Special map[string]struct {
		IDs []uint32 `json:"ids"`
	} `json:"special_tokens"`
	Cls []json.RawMessage `json:"cls"` // BertProcessing, RobertaProcessing: a token and its number
	Sep []json.RawMessage `json:"sep"`
}

// errAround is why a post_processor is not known.
var errAround = errors.New("the post_processor of the tokenizer.json is of no known kind: say with --bos and --eot what goes around a document")

// parseAround reads the effect of a post_processor on one text.
func parseAround(raw json.RawMessage, depth int) (a around) {
	if isNull(raw) {
		return around{}
	}
	var p postProcessor
	if err := json.Unmarshal(raw, &p); err != nil || depth > maxParts {
		return around{err: errAround}
	}
	switch p.Type {
	case "ByteLevel": // it moves offsets
		return around{}
	case "BertProcessing", "RobertaProcessing":
		cls, ok1 := pairedToken(p.Cls)
		sep, ok2 := pairedToken(p.Sep)
		if ok1 && ok2 {
			return around{before: []uint32{cls}, after: []uint32{sep}}
		}
	case "TemplateProcessing":
		return p.template()
	case "Sequence":
		for _, raw := range p.Processors {
			next := parseAround(raw, depth+1)
			if next.err != nil {
				return next
			}
			if len(next.before)+len(next.after) == 0 {
				continue
			}
			if len(a.before)+len(a.after) > 0 { // the package cannot do that
				return around{err: errAround}
			}
			a = next
		}
		return a
	}
	return around{err: errAround}
}

// template reads the template of one text, which is in it once.
func (p *postProcessor) template() (a around) {
	texts := 0
	for _, piece := range p.Single {
		switch {
		case piece.Sequence != nil && piece.Sequence.ID == "A":
			texts++
		case piece.Special != nil:
			token, ok := p.Special[piece.Special.ID]
			if !ok {
				return around{err: errAround}
			}
			if texts == 0 {
				a.before = append(a.before, token.IDs...)
			} else {
				a.after = append(a.after, token.IDs...)
			}
		default:
			return around{err: errAround}
		}
	}
	if texts != 1 {
		return around{err: errAround}
	}
	return a
}

// pairedToken returns the number of a token and its number.
func pairedToken(pair []json.RawMessage) (id uint32, ok bool) {
	return id, len(pair) == 2 && json.Unmarshal(pair[1], &id) == nil
}

// errNoAround is the error of all files but a tokenizer.json.
var errNoAround = errors.New("only a tokenizer.json says what goes around a text: say it with --bos and --eot")

// special gives a tokenizer of ranks its special tokens.
func (t *Tokenizer) special(named map[string]uint32) {
	t.ids = func(token string) (uint32, bool) { id, ok := named[token]; return id, ok }
	t.around.err = errNoAround
	for content, id := range named {
		t.lists[0] = append(t.lists[0], addedToken{id: id, content: content, special: true})
	}
}

// errNoBOS is the error of OpenAI's vocabularies.
var errNoBOS = errors.New("no token of OpenAI's vocabularies begins a text: say it with --bos, or none")

// openaiSpecial are the special tokens of OpenAI's vocabularies (tiktoken_ext/openai_public.py).
func openaiSpecial(vocabulary string) map[string]uint32 {
	const end = "<|endoftext|>"
	switch vocabulary {
	case "p50k_edit":
		return map[string]uint32{end: 50256, "<|fim_prefix|>": 50281, "<|fim_middle|>": 50282, "<|fim_suffix|>": 50283}
	case "cl100k_base":
		return map[string]uint32{end: 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260, "<|endofprompt|>": 100276}
	case "o200k_base":
		return map[string]uint32{end: 199999, "<|endofprompt|>": 200018}
	}
	return map[string]uint32{end: 50256}
}
