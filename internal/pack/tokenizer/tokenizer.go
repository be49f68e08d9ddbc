package tokenizer

import "unicode/utf8"

// Tokenizer is a vocabulary and the way to it, ready to use. It may be shared by many goroutines.
type Tokenizer struct {
	name     string
	sum      string // of the file, or empty
	size     int64
	bos, eot boundary
	around   around
	ids      func(token string) (uint32, bool)

	lists      [2][]addedToken // of tokens that are found in the text as it is, and in normalized text
	added      [2]*addedTokens // their finders; nil for none
	normalizer []normalizer
	stages     []stage
	splits     *splits // for known patterns
	model      model
	cuts       cuts

	noSpecialText error // why WithSpecialText has none
}

// model is one of the four.
type model struct {
	ranks    ranks // of bytes, as tiktoken has them
	merges   *merges
	unigram  *unigram         // of a tokenizer.json
	sentence *sentenceUnigram // of sentencepiece
}

// Name returns the name, as manifests have it: that of an embedded vocabulary, of a file, or of a model's directory.
func (t *Tokenizer) Name() string { return t.name }

// Size returns a bound: every token is less.
func (t *Tokenizer) Size() int64 { return t.size }

// SHA256 returns the checksum of the file in hexadecimal digits, or nothing for an embedded vocabulary.
func (t *Tokenizer) SHA256() string { return t.sum }

// ID returns the token whose name is content, such as <|endoftext|>. The name of a token that stands for text is the
// file's own notation of it.
func (t *Tokenizer) ID(content string) (uint32, bool) {
	if t.ids == nil {
		return 0, false
	}
	return t.ids(content)
}

// Bounds of an Encoder's memory: it keeps pieces of up to cachePiece bytes, with their tokens. Text repeats its words, so
// few pieces need merging. Full, it holds about 10 MiB.
const (
	cachePieces = 1 << 15
	cachePiece  = 64
)

// Encoder turns text into tokens. One goroutine uses it.
type Encoder struct {
	*Tokenizer
	merger   merger
	pairs    pairMerger
	unigram  unigramEncoder
	sentence sentenceEncoder
	cache    map[string][]uint32
	kept     []uint32 // the values of cache are cut from it

	dst       []uint32
	err       error
	steps     int
	continued bool
	buffers   [2][]byte // for normalizers
	scratch   [][]byte  // for stages that change text
	repair    []byte
}

// NewEncoder returns an Encoder of t's vocabulary.
func (t *Tokenizer) NewEncoder() *Encoder {
	e := &Encoder{Tokenizer: t, cache: map[string][]uint32{}, scratch: make([][]byte, len(t.stages))}
	e.merger.ranks, e.pairs.merges, e.unigram.unigram = t.model.ranks, t.model.merges, t.model.unigram
	e.sentence.sentenceUnigram = t.model.sentence
	return e
}

// Append appends the tokens of text to dst. Invalid UTF-8 becomes U+FFFD, and repaired says so. continued says that text
// goes on with a document whose parts before it ended where LastCut said.
//
// The tokens of embedded vocabularies and rank files are those of OpenAI's tiktoken (encode_ordinary). Those of a
// tokenizer.json are the tokenizers package's, with encode_special_tokens and without add_special_tokens. Text that looks
// like a special token is ordinary text, and none is added. [Tokenizer.WithSpecialText] changes the first. Those of a
// sentencepiece model are the ones of that package's encode.
func (e *Encoder) Append(dst []uint32, text []byte, continued bool) (tokens []uint32, repaired bool, err error) {
	if !utf8.Valid(text) {
		e.repair = repairUTF8(e.repair[:0], text)
		text, repaired = e.repair, true
	}
	const free = 1 << 20
	e.dst, e.err, e.continued, e.steps = dst, nil, continued, free+matchSteps*len(text)
	e.take(e.added[0], text, true, e.normalize)
	tokens, e.dst = e.dst, nil
	if e.err == nil && e.steps < 0 {
		e.err = errSteps
	}
	if cap(e.repair) > keepNodes {
		e.repair = nil
	}
	if e.err != nil {
		return dst, repaired, e.err
	}
	return tokens, repaired, nil
}

// take takes added tokens out of text, and gives the text around them to rest. head says that text is at the start of
// Append's argument.
func (e *Encoder) take(tokens *addedTokens, text []byte, head bool, rest func(text []byte, head bool)) {
	if tokens == nil {
		rest(text, head)
		return
	}
	for scan, from := 0, 0; ; {
		m, ok := tokens.next(text, scan, from)
		if !ok {
			if from < len(text) {
				rest(text[from:], head && from == 0)
			}
			return
		}
		if from < m.start {
			rest(text[from:m.start], head && from == 0)
		}
		e.dst = append(e.dst, m.id)
		scan, from = m.scan, m.end
	}
}

func (e *Encoder) normalize(text []byte, head bool) {
	whole := text
	for i := range e.normalizer {
		buffer := &e.buffers[i%2]
		*buffer = e.normalizer[i].append((*buffer)[:0], text, head && e.continued, &e.steps)
		if text = *buffer; !grows(text, whole, &e.steps) {
			return
		}
	}
	e.take(e.added[1], text, head, func(text []byte, head bool) { e.split(0, text, head) })
	for i := range e.buffers {
		if cap(e.buffers[i]) > 16*keepNodes {
			e.buffers[i] = nil
		}
	}
}

// split gives text to the stages of the pre-tokenizer from level on, and its pieces to the model.
func (e *Encoder) split(level int, text []byte, head bool) {
	if e.err != nil || len(text) == 0 {
		return
	}
	if level < len(e.stages) {
		e.stages[level].split(e, level, text, head)
		return
	}
	if m := e.model.merges; m != nil && m.borders != nil {
		m.pieces(text, e.piece)
		return
	}
	e.piece(text)
}

// piece appends the tokens of a piece.
func (e *Encoder) piece(piece []byte) {
	if e.model.sentence != nil {
		e.dst = e.sentence.append(e.dst, piece)
		return
	}
	if e.model.merges == nil && e.model.unigram == nil {
		if id, ok := e.model.ranks[string(piece)]; ok {
			e.dst = append(e.dst, id)
			return
		}
	} else if e.model.merges != nil && e.model.merges.whole != nil {
		if id, ok := e.model.merges.whole[string(piece)]; ok {
			e.dst = append(e.dst, id)
			return
		}
	}
	if tokens, ok := e.cache[string(piece)]; ok {
		e.dst = append(e.dst, tokens...)
		return
	}
	start := len(e.dst)
	switch {
	case e.model.merges != nil:
		e.dst = e.pairs.append(e.dst, piece)
	case e.model.unigram != nil:
		e.dst, e.err = e.unigram.append(e.dst, piece)
	default:
		e.dst = e.merger.append(e.dst, string(piece))
	}
	if len(piece) <= cachePiece && e.err == nil {
		e.remember(piece, e.dst[start:])
	}
}

// remember keeps the tokens of a piece.
func (e *Encoder) remember(piece []byte, tokens []uint32) {
	const block = 1 << 12
	if len(e.cache) >= cachePieces {
		clear(e.cache)
		e.kept = nil
	}
	if cap(e.kept)-len(e.kept) < len(tokens) {
		e.kept = make([]uint32, 0, max(block, len(tokens)))
	}
	n := len(e.kept)
	e.kept = append(e.kept, tokens...)
	e.cache[string(piece)] = e.kept[n:len(e.kept):len(e.kept)]
}

// repairUTF8 appends text to dst, with U+FFFD in the place of bytes that are no UTF-8. There is one for each longest
// start of a rune, as Unicode 3.9 says and Rust and Python do.
func repairUTF8(dst, text []byte) []byte {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r != utf8.RuneError || n > 1 {
			dst = append(dst, text[i:i+n]...)
			i += n
			continue
		}
		dst = append(dst, "\ufffd"...)
		i += badLength(text[i:])
	}
	return dst
}

// badLength returns how many bytes of the start of text, which is no rune, are the longest start of one, or 1.
func badLength(text []byte) int {
	n := 1
	for n < min(len(text), utf8.UTFMax) && startsRune(text[:n+1]) {
		n++
	}
	return n
}

// startsRune reports whether more bytes would make text a rune.
func startsRune(text []byte) bool {
	var whole [utf8.UTFMax]byte
	n := copy(whole[:], text)
	for _, fill := range [...]byte{0x80, 0xbf} {
		for i := n; i < len(whole); i++ {
			whole[i] = fill
		}
		if r, size := utf8.DecodeRune(whole[:]); r != utf8.RuneError && size > n {
			return true
		}
	}
	return false
}

// none is the rank or the token where there is none.
const none = ^uint32(0)

// maxSize bounds vocabularies. The largest that models ship has 262,144 tokens.
const maxSize = 1 << 24

// maxToken and maxText bound the texts that are looked for at each place of a document: one of them, and all, in bytes.
const (
	maxToken = 1 << 10
	maxText  = 8 << 20
)
