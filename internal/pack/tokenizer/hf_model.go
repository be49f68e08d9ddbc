package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// hfModel is the model of a tokenizer.json, of any type.
type hfModel struct {
	Type         string          `json:"type"`
	Dropout      *float64        `json:"dropout"`
	Unk          *string         `json:"unk_token"`
	UnkID        *int64          `json:"unk_id"`
	Prefix       *string         `json:"continuing_subword_prefix"`
	Suffix       *string         `json:"end_of_word_suffix"`
	FuseUnk      bool            `json:"fuse_unk"`
	ByteFallback bool            `json:"byte_fallback"`
	IgnoreMerges bool            `json:"ignore_merges"`
	Vocab        json.RawMessage `json:"vocab"`
	Merges       json.RawMessage `json:"merges"`
}

func (l *hfLoader) loadModel(f huggingFace) error {
	var m hfModel
	err := json.Unmarshal(f.Model, &m)
	if err == nil {
		switch {
		case m.Type == "BPE" || m.Type == "" && m.Merges != nil:
			err = l.loadMerges(&m)
		case m.Type == "Unigram":
			err = l.loadUnigram(&m)
		default:
			err = fmt.Errorf("%q is not supported: BPE and Unigram are", m.Type)
		}
	}
	if err != nil {
		return fmt.Errorf("its model: %w", err)
	}
	return nil
}

func (l *hfLoader) loadMerges(m *hfModel) error {
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return errors.New("it leaves merges out at random (dropout): set it to null")
	case m.Prefix != nil && *m.Prefix != "":
		return errors.New("continuing_subword_prefix is not supported")
	case m.Suffix != nil && *m.Suffix != "":
		return errors.New("end_of_word_suffix is not supported")
	}
	if err := l.loadVocab(m.Vocab); err != nil {
		return err
	}
	pairs, err := parseMerges(m.Merges)
	if err != nil {
		return err
	}
	b := &merges{byteWise: l.byteWise, unk: none, fuse: m.FuseUnk}
	if m.Unk != nil {
		if b.unk = l.id(*m.Unk); b.unk == none {
			return fmt.Errorf("the unk_token %q is not in the vocabulary", *m.Unk)
		}
	}
	if m.ByteFallback {
		b.bytes = l.byteTokens()
	}
	l.setUnits(b)
	if m.IgnoreMerges {
		b.whole = l.wholeTokens()
	}
	b.pairs = newPairTable(len(pairs))
	for rank, pair := range pairs {
		x, y, joined := l.id(pair[0]), l.id(pair[1]), l.id(pair[0]+pair[1])
		if x == none || y == none || joined == none {
			return fmt.Errorf("the merge %d, of %q and %q, is not of tokens in the vocabulary", rank, pair[0], pair[1])
		}
		b.pairs.set(x, y, pairMerge{uint32(rank), joined})
	}
	if l.byteWise && m.ByteFallback {
		if slices.Contains(b.units, none) {
			return errors.New("byte_fallback is not supported with ByteLevel, where a byte has no token")
		}
	}
	l.model.merges = b
	if !l.byteWise && b.whole == nil {
		b.borders = l.findBorders(b, pairs)
	}
	return nil
}

func (l *hfLoader) id(token string) uint32 {
	if id, ok := l.vocab[token]; ok {
		return id
	}
	return none
}

// loadVocab reads tokens and their numbers.
func (l *hfLoader) loadVocab(raw json.RawMessage) error {
	var vocab map[string]int64
	if err := json.Unmarshal(raw, &vocab); err != nil {
		return fmt.Errorf("its vocab: %w", err)
	}
	if len(vocab) == 0 {
		return errors.New("its vocab is empty")
	}
	seen := make(map[int64]string, len(vocab))
	for token, id := range vocab {
		if id < 0 || id >= maxSize {
			return fmt.Errorf("the token %q has the number %d: this program holds those from 0 to below %d", token, id, maxSize)
		}
		if other, ok := seen[id]; ok {
			return fmt.Errorf("the tokens %q and %q have the same number %d", min(token, other), max(token, other), id)
		}
		seen[id] = token
		l.vocab[token] = uint32(id)
		l.size = max(l.size, id+1)
	}
	return nil
}

// parseMerges reads a list of pairs: arrays of two, or as older files have them, texts with a space between.
func parseMerges(raw json.RawMessage) ([][2]string, error) {
	var lists [][]string
	if err := json.Unmarshal(raw, &lists); err == nil {
		pairs := make([][2]string, len(lists))
		for i, list := range lists {
			if len(list) != 2 {
				return nil, fmt.Errorf("the merge %d is of %d tokens, not of two", i, len(list))
			}
			pairs[i] = [2]string(list)
		}
		return pairs, nil
	}
	var lines []string
	if err := json.Unmarshal(raw, &lines); err != nil {
		return nil, errors.New("its merges are not a list of pairs")
	}
	pairs := make([][2]string, 0, len(lines))
	for i, line := range lines {
		if strings.HasPrefix(line, "#version") {
			continue
		}
		a, b, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(b, " ") {
			return nil, fmt.Errorf("the merge %d is %q, not two tokens", i, line)
		}
		pairs = append(pairs, [2]string{a, b})
	}
	return pairs, nil
}

// byteTokens returns the tokens <0x00> and so on.
func (l *hfLoader) byteTokens() *[256]uint32 {
	var tokens [256]uint32
	for b := range tokens {
		tokens[b] = l.id(fmt.Sprintf("<0x%02X>", b))
	}
	return &tokens
}

// setUnits sets the tokens of single bytes or runes.
func (l *hfLoader) setUnits(b *merges) {
	if l.byteWise {
		b.units = make([]uint32, 256)
		for i, r := range byteRunes() {
			b.units[i] = l.id(string(r))
		}
		return
	}
	b.units, b.rare = make([]uint32, unitsTabled), map[rune]uint32{}
	for i := range b.units {
		b.units[i] = none
	}
	for token, id := range l.vocab {
		if r, n := utf8.DecodeRuneInString(token); n == len(token) && n > 0 {
			if int(r) < len(b.units) {
				b.units[r] = id
			} else {
				b.rare[r] = id
			}
		}
	}
}

// wholeTokens returns the vocabulary by the kind of pieces: bytes or text.
func (l *hfLoader) wholeTokens() map[string]uint32 {
	if !l.byteWise {
		return l.modelVocab()
	}
	bytesOf := map[rune]byte{}
	for b, r := range byteRunes() {
		bytesOf[r] = byte(b)
	}
	whole := make(map[string]uint32, len(l.vocab))
	var raw []byte
tokens:
	for token, id := range l.vocab {
		raw = raw[:0]
		for _, r := range token {
			b, ok := bytesOf[r]
			if !ok {
				continue tokens // no text becomes this
			}
			raw = append(raw, b)
		}
		whole[string(raw)] = id
	}
	return whole
}

// modelVocab copies the vocabulary before added tokens come to it.
func (l *hfLoader) modelVocab() map[string]uint32 {
	whole := make(map[string]uint32, len(l.vocab))
	maps.Copy(whole, l.vocab)
	return whole
}

// byteRunes returns the rune that ByteLevel writes for each byte.
func byteRunes() [256]rune {
	var runes [256]rune
	next := rune(256)
	for b := range runes {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			runes[b] = rune(b)
		} else {
			runes[b] = next
			next++
		}
	}
	return runes
}

// findBorders returns where no merge lies over, or nil where a token that stands for something else than its text is
// merged.
func (l *hfLoader) findBorders(b *merges, pairs [][2]string) *borders {
	other := map[uint32]bool{b.unk: true}
	if b.bytes != nil {
		for _, id := range b.bytes {
			other[id] = true
		}
	}
	joined := make(map[[2]rune]struct{}, len(pairs))
	for _, pair := range pairs {
		if other[l.id(pair[0])] || other[l.id(pair[1])] {
			return nil
		}
		last, _ := utf8.DecodeLastRuneInString(pair[0])
		first, _ := utf8.DecodeRuneInString(pair[1])
		joined[[2]rune{last, first}] = struct{}{}
	}
	return &borders{joined}
}

func (l *hfLoader) loadUnigram(m *hfModel) error {
	if l.byteWise {
		return errors.New("a Unigram model with ByteLevel is not supported")
	}
	var vocab [][2]json.RawMessage
	if err := json.Unmarshal(m.Vocab, &vocab); err != nil {
		return fmt.Errorf("its vocab is not a list of tokens with scores: %w", err)
	}
	if len(vocab) == 0 || len(vocab) > maxSize {
		return fmt.Errorf("its vocab has %d tokens", len(vocab))
	}
	u := &unigram{ids: make(map[string]uint32, len(vocab)), scores: make([]float64, len(vocab)), unk: none}
	tokens, total := make([]string, len(vocab)), 0
	for i, entry := range vocab {
		if err := json.Unmarshal(entry[0], &tokens[i]); err != nil {
			return fmt.Errorf("the token %d: %w", i, err)
		}
		if total += len(tokens[i]); len(tokens[i]) > maxToken || total > maxText {
			return fmt.Errorf("the token %d, %.20q..., has more than %d bytes, or all have more than %d", i, tokens[i], maxToken, maxText)
		}
		score, err := parseScore(string(entry[1]))
		if err != nil {
			return fmt.Errorf("the score of the token %d: %w", i, err)
		}
		u.scores[i] = score
		if i == 0 || score < u.worst {
			u.worst = score
		}
		u.ids[tokens[i]] = uint32(i) // the last, where a token is there twice
		l.vocab[tokens[i]] = uint32(i)
	}
	if m.UnkID != nil {
		if *m.UnkID < 0 || *m.UnkID >= int64(len(vocab)) {
			return fmt.Errorf("the unk_id %d is not a token", *m.UnkID)
		}
		u.unk = uint32(*m.UnkID)
	}
	if m.ByteFallback {
		u.bytes = l.byteTokens()
	}
	u.nodes = newUnigramTrie(tokens, u.ids)
	l.size = int64(len(vocab))
	l.model.unigram = u
	return nil
}
